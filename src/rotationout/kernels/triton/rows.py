"""A GPU program for features of 16 bits, last in memory, and one table for many rows: they meet in shared memory."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import high_half, low_half, pack
from .tables import whole

__all__ = ["rows_kernel"]


@triton.jit
def turn_rows(own, other, t, sign, mean, shift, w, MEAN: tl.constexpr, SHIFT: tl.constexpr, WEIGHT: tl.constexpr):
    """The turned features of rows: x + tan θ · s(x' − m') + w·shift."""
    if MEAN:
        other -= mean
    turned = own + t * sign * other
    if SHIFT:
        turned += shift * w if WEIGHT else shift
    return turned


@triton.jit
def rows_kernel(
    x,
    y,
    tan,
    code,
    mean,
    shift,
    weight,
    features,
    rows,
    tan_n,
    tan_p,
    code_n,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Whole rows are read once, in order, and each feature fetches its partner's from shared memory.

    That memory gives 32 bits at a time: of the features, 16 bits of DTYPE, those of two rows go to a word. MEAN and
    SHIFT say in how many parts the mean and the shift come, to be added up.
    """
    tiles = tl.cdiv(rows, 2 * BLOCK_R)
    program = tl.program_id(0)
    n = (program // tiles).to(tl.int64)
    p = program % tiles * (2 * BLOCK_R) + tl.arange(0, BLOCK_R)[:, None]
    q = p + BLOCK_R
    c = tl.arange(0, BLOCK_C)
    known = c < features
    signed = tl.load(code + n * code_n + c, mask=known, other=0).to(tl.int32)
    partner = tl.where(signed == 0, c, tl.abs(signed) - 1)
    sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))[None, :]
    sign = -sign if ADJOINT else sign
    m = whole(mean, partner, features, known, MEAN)[None, :] if MEAN else sign
    s = whole(shift, c, features, known, SHIFT)[None, :] if SHIFT else sign

    at = (n * rows + p) * features + c[None, :]
    above, below = (p < rows) & known[None, :], (q < rows) & known[None, :]
    one = tl.load(x + at, mask=above, other=0.0).to(tl.float32)
    two = tl.load(x + at + BLOCK_R * features, mask=below, other=0.0).to(tl.float32)
    words = tl.gather(pack(one, two, DTYPE), tl.broadcast_to(partner[None, :], (BLOCK_R, BLOCK_C)), 1)
    t = tl.load(tan + n * tan_n + p.to(tl.int64) * tan_p, mask=p < rows, other=0.0).to(tl.float32)
    u = tl.load(tan + n * tan_n + q.to(tl.int64) * tan_p, mask=q < rows, other=0.0).to(tl.float32)
    w = tl.load(weight + n * weight_n + p.to(tl.int64) * weight_p, mask=p < rows, other=0.0) if WEIGHT else t
    v = tl.load(weight + n * weight_n + q.to(tl.int64) * weight_p, mask=q < rows, other=0.0) if WEIGHT else u
    one = turn_rows(one, low_half(words, DTYPE), t, sign, m, s, w, MEAN, SHIFT, WEIGHT)
    two = turn_rows(two, high_half(words, DTYPE), u, sign, m, s, v, MEAN, SHIFT, WEIGHT)
    tl.store(y + at, one.to(DTYPE), mask=above)
    tl.store(y + at + BLOCK_R * features, two.to(DTYPE), mask=below)
