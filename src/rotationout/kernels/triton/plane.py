"""The GPU programs for a gradient in one plane, see `kernels.plane`.

If draws are structured and a program can hold a vector, one launch reads the features and the gradient, and works out
again what the features were turned to (`lanes_plane`). Otherwise one launch turns the features, and another reads the
three.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ... import pairing
from .. import reference
from ..memory import memory_order
from . import choose, sizes
from .apply import fits, turned
from .lanes_plane import plane_lanes_kernel, shares
from .launch import Program
from .layout import Arranged, Plan, arrange, cdiv, next_power_of_2
from .overlap import AFTER, wait_if

__all__ = ["plane_kernel", "turn_back"]


def turn_back(grad: Tensor, z: Tensor, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.turn_back`; what another launch has turned is rounded, as in forward."""
    if not fits(z, dim):
        return reference.turn_back(grad, z, tan, index, seed, dim)
    with torch.cuda.device_of(z):  # Triton launches on the current device
        draw, order = arrange(z, tan, index, seed, dim, None), memory_order(z)
        g = grad.permute(order).contiguous()
        result = torch.empty_like(g)
        if not _at_once(draw, g, result):
            w = turned(draw, None, None, False, centred=False)
            axis = order.index(dim)
            before, after = (math.prod(shape) for shape in (g.shape[:axis], g.shape[axis + 1 :]))
            _program(before, g.size(axis), after, grad.dtype, z.dtype, z.device)(g, draw.x, w, result)
    return result.permute([order.index(a) for a in range(z.ndim)])


def _at_once(draw: Arranged, grad: Tensor, result: Tensor) -> bool:
    """Write the result in one launch, if a program can do that; ``grad`` and ``result`` are in the order of memory."""
    plan, x = draw.plan, draw.x
    features = plan.layout.features
    if draw.tan is None or draw.pairs is None or draw.seed is None:
        return False
    if not choose.by_lanes(plan) or features > sizes.PLANE_LANES_FEATURES or grad.dtype != x.dtype:
        return False
    packed = sizes.LANES_WORDS and features % 4 == 0 and choose.packs(x) and choose.packs(grad)
    key = "plane", packed
    program = plan.programs.get(key)
    if program is None:
        program = plan.programs[key] = _lanes_program(plan, x, packed)
    program(grad, x, result, draw.tan, draw.pairs, draw.seed)
    return True


def _lanes_program(plan: Plan, x: Tensor, packed: bool) -> Program:
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    lanes, odd = pairing.lanes(features), features % 2 == 1
    block_b = next_power_of_2(features // lanes // 2 + odd)
    block_r = max(1, min(sizes.PLANE_LANES // (2 * lanes * block_b), next_power_of_2(rows)))
    warps = max(1, 2 * lanes * block_b * block_r // sizes.PLANE_LANES) * (1 if packed else 2)
    block_h = max(1, min(sizes.LANES_BLOCKS, block_b // 8, block_b * block_r // (32 * warps)))
    return Program(
        plane_lanes_kernel, count * cdiv(rows, block_r), rows, *plan.tan, *plan.pairs, FEATURES=features, LANES=lanes,
        ODD=odd, MANY=count > 1, PACKED=choose.dtype_of(x) if packed else None, ASM=choose.by_instructions(x),
        BLOCK_G=block_b // block_h, BLOCK_R=block_r, BLOCK_H=block_h,
        words=3 * packed, num_warps=warps,
    )  # fmt: skip


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
        g, own, moved = tile_of(grad + at, known), tile_of(z + at, known), tile_of(w + at, known)
        along, across = shares(tl.sum(moved * g, 0, True), tl.sum(own * g, 0, True), tl.sum(own * own, 0, True))
        tl.store(y + at, (g + along * own - across * moved).to(y.dtype.element_ty), mask=known)
    else:
        nothing = tl.zeros((1, BLOCK_P), tl.float32)
        wg, zg, zz = nothing, nothing, nothing
        here = at
        for start_c in range(0, features, BLOCK_C):
            known = inside & (c < features - start_c)
            g, own = tile_of(grad + here, known), tile_of(z + here, known)
            moved = tile_of(w + here, known)
            wg += tl.sum(moved * g, 0, True)
            zg += tl.sum(own * g, 0, True)
            zz += tl.sum(own * own, 0, True)
            here += step
        along, across = shares(wg, zg, zz)
        here = at
        for start_c in range(0, features, BLOCK_C):
            known = inside & (c < features - start_c)
            g, own = tile_of(grad + here, known), tile_of(z + here, known)
            moved = tile_of(w + here, known)
            tl.store(y + here, (g + along * own - across * moved).to(y.dtype.element_ty), mask=known)
            here += step


@triton.jit
def tile_of(x, known):
    """What is there, in fp32; zero where nothing is known."""
    return tl.load(x, mask=known, other=0.0).to(tl.float32)
