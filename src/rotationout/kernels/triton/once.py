"""The GPU program for small maps about their batch mean: one launch, and every element is read once."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .overlap import AFTER, wait_if

__all__ = ["once_kernel"]


@triton.jit
def once_kernel(
    x,
    y,
    tan,
    code,
    features,
    count,
    pieces,
    tan_n,
    scale,
    ADJOINT: tl.constexpr,
    TAN_EACH: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """I + K(I − M) on maps, or its adjoint I − (I − M)K: a pair's first channel holds both whole, so M is at hand.

    There is a program for every channel; those of second channels end at once. ``scale`` is one over the rows, and
    ``pieces`` times PIECE the positions of a map: so the compiler knows what divides them.
    """
    channel = tl.program_id(0)
    wait_if(FOLLOWS == AFTER)
    signed = tl.load(code + channel).to(tl.int32)
    if signed >= 0:
        positions = pieces * PIECE
        paired = signed > 0
        partner = tl.where(paired, signed - 1, channel)
        n = tl.arange(0, BLOCK_N)[:, None]
        p = tl.arange(0, BLOCK_P)[None, :]
        inside = (n < count) & (p < positions)
        at = n.to(tl.int64) * features * positions + p
        here = channel.to(tl.int64) * positions + at
        there = partner.to(tl.int64) * positions + at
        u = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + there, mask=inside & paired, other=0.0).to(tl.float32)
        if TAN_EACH:
            t = tl.load(tan + n.to(tl.int64) * tan_n + p, mask=inside, other=0.0).to(tl.float32)
        else:
            t = tl.load(tan + n.to(tl.int64) * tan_n, mask=n < count, other=0.0).to(tl.float32)
        if ADJOINT:
            turned, other = t * v, t * u
            first = u - turned + _sum(turned) * scale
            second = v + other - _sum(other) * scale
        else:
            first = u + tl.where(paired, t * (v - _sum(v) * scale), 0.0)
            second = v - t * (u - _sum(u) * scale)
        tl.store(y + here, first.to(y.dtype.element_ty), mask=inside)
        tl.store(y + there, second.to(y.dtype.element_ty), mask=inside & paired)


@triton.jit
def _sum(values):
    return tl.sum(tl.sum(values, 1), 0)
