"""A GPU program for features last in memory and one table for many rows: they meet in shared memory."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import high_half, low_half, pack
from .overlap import AFTER, BESIDE, wait_if
from .tables import program_number, whole

__all__ = ["rows_kernel"]


@triton.jit
def turned(own, other, t, sign, shift, w, SHIFT: tl.constexpr, WEIGHT: tl.constexpr):
    """The turned features of rows: x + tan θ · s(x' − m') + w·shift, where ``other`` is x' − m'."""
    value = own + t * sign * other
    if SHIFT:
        value += shift * w if WEIGHT else shift
    return value


@triton.jit
def exchange(words, partner, FLAT: tl.constexpr):
    """Every feature's word from where its partner is, rows by features.

    Where a warp holds whole rows, the compiler exchanges them by a shuffle and a choice for each of the words that a
    thread has of a row; with FLAT, all rows as one and several warps, in shared memory.
    """
    if not FLAT:
        return tl.gather(words, tl.broadcast_to(partner[None, :], words.shape), 1)
    place = tl.arange(0, words.shape[0])[:, None] * words.shape[1] + partner[None, :]
    return tl.reshape(tl.gather(tl.ravel(words), tl.ravel(place), 0), words.shape)


@triton.jit
def exchange_halves(one, two, partner, DTYPE: tl.constexpr, FLAT: tl.constexpr):
    """The same of two tiles of rows, whose features of 16 bits share words."""
    words = exchange(pack(one, two, DTYPE), partner, FLAT)
    return low_half(words, DTYPE), high_half(words, DTYPE)


@triton.jit
def partners_mean(mean, c, partner, features, known, MEAN: tl.constexpr, LONG: tl.constexpr):
    """The mean of every feature's partner; if rows are LONG it goes the way of the features.

    Loads from places that lie far apart take longer than shared memory does.
    """
    if LONG:
        return tl.gather(whole(mean, c, features, known, MEAN), partner, 0)[None, :]
    return whole(mean, partner, features, known, MEAN)[None, :]


@triton.jit
def rows_kernel(
    x,
    y,
    tan,
    code,
    mean,
    shift,
    weight,
    pieces,
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
    FLAT: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BACKWARDS: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Whole rows are read once, in order, and each feature fetches its partner's from other threads.

    That goes by 32 bits at a time. Of features of 16 bits, whose dtype is DTYPE, those of two rows go to a word; for
    features of 32 bits DTYPE is None. ``pieces`` times PIECE is their number: so the compiler knows what divides it.
    MEAN and SHIFT say in how many parts the mean and the shift come, to be added up. FLAT: see `exchange`.
    """
    features = pieces * PIECE
    height: tl.constexpr = BLOCK_R if DTYPE is None else 2 * BLOCK_R
    tiles = tl.cdiv(rows, height)
    program = program_number(BACKWARDS)
    n = (program // tiles).to(tl.int64)
    p = program % tiles * height + tl.arange(0, BLOCK_R)[:, None]
    q = p + BLOCK_R
    c = tl.arange(0, BLOCK_C)
    known = c < features
    wait_if(FOLLOWS == AFTER)
    cache: tl.constexpr = ".cg" if FOLLOWS == BESIDE else ""
    at, step = (n * rows + p) * features + c[None, :], BLOCK_R * features
    above, below = (p < rows) & known[None, :], (q < rows) & known[None, :]
    tan += n * tan_n
    weight += n * weight_n
    one = tl.load(x + at, above, 0.0, cache_modifier=cache).to(tl.float32)
    t = tl.load(tan + p.to(tl.int64) * tan_p, mask=p < rows, other=0.0, cache_modifier=cache).to(tl.float32)
    if DTYPE is not None:
        two = tl.load(x + at + step, below, 0.0, cache_modifier=cache).to(tl.float32)
        u = tl.load(tan + q.to(tl.int64) * tan_p, mask=q < rows, other=0.0, cache_modifier=cache).to(tl.float32)
    signed = tl.load(code + n * code_n + c, mask=known, other=0, cache_modifier=cache).to(tl.int32)
    partner = tl.where(signed == 0, c, tl.abs(signed) - 1)
    sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))[None, :]
    sign = -sign if ADJOINT else sign
    wait_if(FOLLOWS == BESIDE)
    s = whole(shift, c, features, known, SHIFT)[None, :] if SHIFT else sign
    w = tl.load(weight + p.to(tl.int64) * weight_p, mask=p < rows, other=0.0) if WEIGHT else t
    if DTYPE is None:
        about = one - whole(mean, c, features, known, MEAN)[None, :] if MEAN else one
        one = turned(one, exchange(about, partner, FLAT), t, sign, s, w, SHIFT, WEIGHT)
    else:
        m = partners_mean(mean, c, partner, features, known, MEAN, BLOCK_R == 1) if MEAN else 0.0
        low, high = exchange_halves(one, two, partner, DTYPE, FLAT)
        if MEAN:
            low -= m
            high -= m
        v = tl.load(weight + q.to(tl.int64) * weight_p, mask=q < rows, other=0.0) if WEIGHT else u
        one = turned(one, low, t, sign, s, w, SHIFT, WEIGHT)
        two = turned(two, high, u, sign, s, v, SHIFT, WEIGHT)
        tl.store(y + at + step, two.to(DTYPE), mask=below)
    tl.store(y + at, one.to(y.dtype.element_ty), mask=above)
