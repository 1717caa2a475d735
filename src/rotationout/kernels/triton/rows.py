"""A GPU program for features last in memory and one table for many rows: it exchanges partners in shared memory."""

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
def tile_of(x, tan, p, known, rows, tan_p, CACHE: tl.constexpr):
    """The rows p, which are at ``x``, as they lie in memory, and the tangents of their angles."""
    values = tl.load(x, (p < rows) & known[None, :], 0.0, cache_modifier=CACHE)
    return values, tl.load(tan + p.to(tl.int64) * tan_p, mask=p < rows, other=0.0, cache_modifier=CACHE)


@triton.jit
def store_turned(y, own, other, t, shift, weight, p, known, rows, weight_p, SHIFT: tl.constexpr, WEIGHT: tl.constexpr):
    """Turned rows p, at ``y``: x + tan θ · s(x' − m') + w·shift, where ``other`` is s(x' − m')."""
    value = own.to(tl.float32) + t.to(tl.float32) * other
    if SHIFT:
        value += shift * tl.load(weight + p.to(tl.int64) * weight_p, mask=p < rows, other=0.0) if WEIGHT else shift
    tl.store(y, value.to(y.dtype.element_ty), mask=(p < rows) & known[None, :])


@triton.jit
def exchange(words, partner):
    """Every feature's word from where its partner is, rows by features.

    All rows are one, with several warps, so that the compiler goes through shared memory: along rows that a warp holds,
    it would take a shuffle and a choice for each of the words that a thread has of a row.
    """
    place = tl.arange(0, words.shape[0])[:, None] * words.shape[1] + partner[None, :]
    return tl.reshape(tl.gather(tl.ravel(words), tl.ravel(place), 0), words.shape)


@triton.jit
def exchange_halves(one, two, partner, DTYPE: tl.constexpr):
    """The same of two tiles of rows, whose features of 16 bits share words."""
    words = exchange(pack(one, two, DTYPE), partner)
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
    PIECE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    TILES: tl.constexpr,
    BACKWARDS: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Whole rows are read once, in order, and each feature fetches its partner's from other threads.

    That goes by 32 bits at a time. Of features of 16 bits, whose dtype is DTYPE, those of two rows go to a word; for
    features of 32 bits DTYPE is None. ``pieces`` times PIECE is their number: so the compiler knows what divides it.
    MEAN and SHIFT say in how many parts the mean and the shift come, to be added up. A program has TILES tiles
    of rows: what is the same for all rows it reads once, and a tile while that before is turned.
    """
    features = pieces * PIECE
    height: tl.constexpr = BLOCK_R if DTYPE is None else 2 * BLOCK_R
    strips = tl.cdiv(rows, TILES * height)
    program = program_number(BACKWARDS)
    n = (program // strips).to(tl.int64)
    p = program % strips * (TILES * height) + tl.arange(0, BLOCK_R)[:, None]
    last = tl.minimum(program % strips * (TILES * height) + TILES * height, rows)
    c = tl.arange(0, BLOCK_C)
    known = c < features
    wait_if(FOLLOWS == AFTER)
    cache: tl.constexpr = ".cg" if FOLLOWS == BESIDE else ""
    at, step = (n * rows + p) * features + c[None, :], BLOCK_R * features
    tan += n * tan_n
    weight += n * weight_n
    one, t = tile_of(x + at, tan, p, known, last, tan_p, cache)
    if DTYPE is not None:
        two, u = tile_of(x + at + step, tan, p + BLOCK_R, known, last, tan_p, cache)
    signed = tl.load(code + n * code_n + c, mask=known, other=0, cache_modifier=cache).to(tl.int32)
    partner = tl.where(signed == 0, c, tl.abs(signed) - 1)
    sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))[None, :]
    sign = -sign if ADJOINT else sign
    wait_if(FOLLOWS == BESIDE)
    s = whole(shift, c, features, known, SHIFT)[None, :] if SHIFT else 0.0
    m = 0.0
    if MEAN and DTYPE is None:
        m = whole(mean, c, features, known, MEAN)[None, :]
    elif MEAN:
        m = sign * partners_mean(mean, c, partner, features, known, MEAN, BLOCK_R == 1)
    for _ in range(TILES):
        here, there, own, angle = p, at, one, t
        p += height
        at += height * features
        if TILES > 1:
            one, t = tile_of(x + at, tan, p, known, last, tan_p, cache)
        if DTYPE is None:
            other = sign * exchange(own - m, partner)
        else:
            second, second_angle = two, u
            if TILES > 1:
                two, u = tile_of(x + at + step, tan, p + BLOCK_R, known, last, tan_p, cache)
            low, high = exchange_halves(own, second, partner, DTYPE)
            other = sign * low - m
            store_turned(
                y + there + step, second, sign * high - m, second_angle, s, weight, here + BLOCK_R, known, last,
                weight_p, SHIFT, WEIGHT,
            )  # fmt: skip
        store_turned(y + there, own, other, angle, s, weight, here, known, last, weight_p, SHIFT, WEIGHT)
