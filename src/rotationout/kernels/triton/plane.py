"""The GPU program for a gradient in one plane: three tensors are read and one is written, see `kernels.plane`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import reference
from ..memory import in_memory_order
from . import choose, sizes
from .apply import fits, rotate
from .launch import Program
from .layout import cdiv, next_power_of_2
from .overlap import AFTER, wait_if

__all__ = ["plane_kernel", "turn_back"]


def turn_back(grad: Tensor, z: Tensor, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.turn_back`; what is turned is rounded, as it was in forward."""
    if not fits(z, dim):
        return reference.turn_back(grad, z, tan, index, seed, dim)
    turned = rotate(z, None, tan, index, seed, dim, False)
    with torch.cuda.device_of(z):  # Triton launches on the current device
        dense, order = in_memory_order(z)
        g, w = (t.permute(order).contiguous() for t in (grad, turned))
        axis = order.index(dim)
        before, after = (math.prod(shape) for shape in (dense.shape[:axis], dense.shape[axis + 1 :]))
        result = torch.empty_like(g)
        _program(before, dense.size(axis), after, grad.dtype, z.dtype, z.device)(g, dense, w, result)
    return result.permute([order.index(a) for a in range(z.ndim)])


@functools.lru_cache(maxsize=1024)
def _program(before: int, features: int, after: int, *kinds: torch.dtype | torch.device) -> Program:
    """The program for maps, or for rows if nothing comes after the features; ``kinds`` tell programs apart."""
    last = after == 1
    outer, rows = (1, before) if last else (before, after)
    piece = choose.piece_of(features if last else rows)
    if last:
        block_p = max(1, sizes.PLANE_TILE // next_power_of_2(features))
        block_c = sizes.PLANE_FEATURES
    else:
        block_p = min(_side_by_side(outer, rows), next_power_of_2(rows))
        block_c = sizes.PLANE_TILE // block_p
        if features > block_c and piece < 4:  # loads one by one, in a loop, take more registers
            block_c //= 2
        block_c = max(1, min(block_c, 2**30 // next_power_of_2(rows)))  # 32 bits count positions in a tile
    block_c, block_p = min(block_c, next_power_of_2(features)), min(block_p, next_power_of_2(rows))
    return Program(
        plane_kernel, outer * cdiv(rows, block_p), rows if last else features, (features if last else rows) // piece,
        LAST=last, PIECE=piece, WHOLE=features <= block_c, BLOCK_C=block_c, BLOCK_P=block_p,
        FOLLOWS=choose.follows(AFTER),
        num_warps=sizes.PLANE_WARPS * max(1, block_c * block_p // sizes.PLANE_TILE),
    )  # fmt: skip


def _side_by_side(outer: int, positions: int) -> int:
    """Positions in a tile of maps: fewer where there would be few programs, of which each walks all features."""
    most, least = sizes.PLANE_POSITIONS
    while most > least and outer * cdiv(positions, most) < sizes.PLANE_PROGRAMS:
        most //= 2
    return most


@triton.jit
def plane_kernel(
    grad,
    z,
    w,
    y,
    others,
    pieces,
    LAST: tl.constexpr,
    PIECE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Y = g + (w·g z − z·g w) / |z|² for BLOCK_P vectors: read once if a tile holds them WHOLE, else twice.

    ``pieces`` times PIECE elements lie together, so the compiler knows what divides them: the features of a vector if
    these are LAST in memory, and ``others`` vectors; else positions of a map, and ``others`` are its features.
    """
    together = pieces * PIECE
    features, rows = (together, others) if LAST else (others, together)
    strips = tl.cdiv(rows, BLOCK_P)
    first = tl.program_id(0) % strips * BLOCK_P
    c, p = tl.arange(0, BLOCK_C)[:, None], tl.arange(0, BLOCK_P)[None, :]
    inside = p < rows - first
    start, step = first.to(tl.int64), tl.full((), BLOCK_C, tl.int64)
    if LAST:
        at = start * features + p * features + c
    else:
        at = start + (tl.program_id(0) // strips).to(tl.int64) * features * rows + c * rows + p
        step *= rows
    wait_if(FOLLOWS == AFTER)
    if WHOLE:
        known = inside & (c < features)
        g, own, turned = tile_of(grad + at, known), tile_of(z + at, known), tile_of(w + at, known)
        along, across = shares(tl.sum(turned * g, 0), tl.sum(own * g, 0), tl.sum(own * own, 0))
        tl.store(y + at, (g + along * own - across * turned).to(y.dtype.element_ty), mask=known)
    else:
        nothing = tl.zeros((BLOCK_P,), tl.float32)
        wg, zg, zz = nothing, nothing, nothing
        here = at
        for start_c in range(0, features, BLOCK_C):
            known = inside & (c < features - start_c)
            g, own = tile_of(grad + here, known), tile_of(z + here, known)
            turned = tile_of(w + here, known)
            wg += tl.sum(turned * g, 0)
            zg += tl.sum(own * g, 0)
            zz += tl.sum(own * own, 0)
            here += step
        along, across = shares(wg, zg, zz)
        here = at
        for start_c in range(0, features, BLOCK_C):
            known = inside & (c < features - start_c)
            g, own = tile_of(grad + here, known), tile_of(z + here, known)
            turned = tile_of(w + here, known)
            tl.store(y + here, (g + along * own - across * turned).to(y.dtype.element_ty), mask=known)
            here += step


@triton.jit
def tile_of(x, known):
    """What is there, in fp32; zero where nothing is known."""
    return tl.load(x, mask=known, other=0.0).to(tl.float32)


@triton.jit
def shares(wg, zg, zz):
    """How much of z is added to the gradient and how much of w is taken away; of a vector of zeros nothing."""
    square = tl.maximum(zz, 1.1754943508222875e-38)
    return (wg / square)[None, :], (zg / square)[None, :]
