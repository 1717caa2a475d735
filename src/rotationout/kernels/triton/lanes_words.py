"""Groups of lanes whose features lie two to a word: load, turn and store them, and their part of a mean or a shift."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import (
    as_bits,
    as_numbers,
    exchange_where,
    flat,
    pack_lanes,
    signed_by,
    swap_features,
    swap_words,
    unpack_lanes,
)
from .pairing import games, sign_bits

__all__ = ["halves_of", "load_words", "places_of", "store_words", "turn_words"]


@triton.jit
def of_groups(numbers, group, flip, LANES: tl.constexpr):
    """The numbers of groups (blocks, rows, more blocks), lane v taken from v XOR flip; as bits."""
    half: tl.constexpr = LANES // 2
    place = tl.arange(0, half)[None, None, None, :]
    upper = ((flip & half) != 0).to(tl.int32)
    low = flat(as_bits(tl.load(numbers + ((group * 2 + upper) * half)[:, :, :, None] + place)))
    high = flat(as_bits(tl.load(numbers + ((group * 2 + 1 - upper) * half)[:, :, :, None] + place)))
    both = tl.join(swap_features(low, flip, half), swap_features(high, flip, half))
    both = tl.reshape(both, (group.shape[0], group.shape[1], group.shape[2], half, 2))
    return tl.reshape(tl.permute(both, (0, 1, 2, 4, 3)), (group.shape[0], group.shape[1], group.shape[2] * LANES))


@triton.jit
def of_both(numbers, one, two, flip, low, LANES: tl.constexpr, INSIDE: tl.constexpr):
    """The numbers of two groups, in the lanes in which `turn_words` has their features."""
    u = of_groups(numbers, one, flip * 0, LANES)
    if INSIDE:
        lane = tl.arange(0, u.shape[2])[None, None, :]
        u, v = exchange_where(u, of_groups(numbers, two, flip * 0, LANES), tl.where((low & lane) != 0, -1, 0))
        v = swap_features(v, flip, LANES)
    else:
        v = of_groups(numbers, two, flip, LANES)
    return as_numbers(u), as_numbers(v)


@triton.jit
def places_of(row, one, two, FEATURES: tl.constexpr, LANES: tl.constexpr):
    """Where the words of two groups are, (blocks, rows, more blocks, words)."""
    half: tl.constexpr = LANES // 2
    place = tl.arange(0, half)[None, None, None, :]
    at_one = (row * (FEATURES // 2) + one * half)[:, :, :, None] + place
    at_two = (row * (FEATURES // 2) + two * half)[:, :, :, None] + place
    return at_one, at_two


@triton.jit
def halves_of(low, WORDS: tl.constexpr):
    """The bits of WORDS words that two groups exchange if lanes meet inside them; ``low``: see `pairing.games`."""
    word = tl.arange(0, WORDS)[None, None, :]
    return tl.where(low == 1, -0x10000, tl.where((low & (2 * word)) != 0, -1, 0))


@triton.jit
def load_words(
    x,
    at_one,
    at_two,
    flip,
    mask,
    known,
    LANES: tl.constexpr,
    INSIDE: tl.constexpr,
    KIND: tl.constexpr,
    ASM: tl.constexpr,
    FULL: tl.constexpr,
    LATE: tl.constexpr,
):
    """Two groups in fp32, the features of a pair in the same lane, the first of them on the left.

    Not FULL: zeros where they are not ``known``. For INSIDE and LATE see `turn_words`.
    """
    u = flat(tl.load(x + at_one) if FULL else tl.load(x + at_one, mask=known, other=0))
    v = flat(tl.load(x + at_two) if FULL else tl.load(x + at_two, mask=known, other=0))
    if LATE:
        tl.debug_barrier()  # no load is moved across it
    if INSIDE:
        u, v = exchange_where(u, v, mask)
    return unpack_lanes(u, KIND), unpack_lanes(swap_words(v, flip, LANES, ASM), KIND)


@triton.jit
def store_words(
    y,
    at_one,
    at_two,
    u,
    v,
    flip,
    mask,
    valid,
    LANES: tl.constexpr,
    INSIDE: tl.constexpr,
    KIND: tl.constexpr,
    ASM: tl.constexpr,
):
    """Store what `load_words` has loaded, or what was made of it, where it is ``valid``."""
    u, v = pack_lanes(u, KIND, ASM), swap_words(pack_lanes(v, KIND, ASM), flip, LANES, ASM)
    if INSIDE:
        u, v = exchange_where(u, v, mask)
    tl.store(y + at_one, tl.reshape(u, at_one.shape), mask=valid)
    tl.store(y + at_two, tl.reshape(v, at_two.shape), mask=valid)


@triton.jit
def turn_words(
    x,
    y,
    mean,
    shift,
    weight,
    k,
    t,
    state,
    row,
    present,
    offset,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    INSIDE: tl.constexpr,
    KIND: tl.constexpr,
    ASM: tl.constexpr,
    LATE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Pairs of groups from ``offset`` on, of features of the dtype KIND that lie two to a word.

    INSIDE: lanes may meet inside their group. Then those that are first in their pair are brought together before.
    LATE: a mean or a shift, which caches hold, is asked for when all the features are on their way. Left alone, the
    compiler asks for half of either, to make do with few registers, and waits for features twice.
    """
    groups = FEATURES // LANES
    b = offset + tl.arange(0, BLOCK_G)[:, None, None] + tl.arange(0, BLOCK_H)[None, None, :] * BLOCK_G
    valid = (present & (b < groups // 2))[:, :, :, None]
    b = tl.minimum(b, groups // 2 - 1)
    one, two, flip, low = games(k, b, groups, LANES, False)
    at_one, at_two = places_of(row, one, two, FEATURES, LANES)
    mask = halves_of(low, LANES // 2 * BLOCK_H)
    u, v = load_words(x, at_one, at_two, flip, mask, valid, LANES, INSIDE, KIND, ASM, True, LATE)
    lane = tl.arange(0, LANES)[None, None, None, :]
    signed = signed_by(t, flat(~sign_bits(state, b, LANES)[:, :, :, None] >> lane))
    own, other = u, v
    if MEAN:
        m, r = of_both(mean, one, two, flip, low, LANES, INSIDE)
        own -= m
        other -= r
    u += signed * other
    v -= signed * own
    if SHIFT:
        m, r = of_both(shift, one, two, flip, low, LANES, INSIDE)
        u += m * weight
        v += r * weight
    store_words(y, at_one, at_two, u, v, flip, mask, valid, LANES, INSIDE, KIND, ASM)
