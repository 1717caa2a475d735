"""Structured pairings inside a GPU program: `rotationout.pairing` element by element, in registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "draws_of",
    "first_state",
    "games",
    "meet",
    "mix",
    "negatives",
    "sign_bits",
    "structured_code",
    "table_kernel",
]

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def first_state(seed, number, features):
    """The state of SplitMix64 at the first sign word of a draw, see `rotationout.pairing.sign_words`."""
    width = (features // 2 + 63) // 64
    return seed.to(tl.uint64) + (number.to(tl.int64) * width + 1).to(tl.uint64) * GOLDEN


@triton.jit
def mix(state):
    """The output of SplitMix64 for one state."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def sign_bits(state, block, LANES: tl.constexpr):
    """The sign bits of a block, from bit 0 on; ``state`` is what `first_state` gives for the draw."""
    bit = block * LANES
    word = mix(state + (bit >> 6).to(tl.uint64) * GOLDEN)
    return (word >> (bit & 63).to(tl.uint64)).to(tl.int32)


@triton.jit
def draws_of(
    program,
    tan,
    index,
    seed,
    rows,
    tan_n,
    tan_p,
    index_n,
    index_p,
    FEATURES: tl.constexpr,
    MANY: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """What a program of BLOCK_R rows (1, rows, 1) reads for them: which they are, and what was drawn.

    That is n, the first row, the others counted from there, which of them there are, and their draws, tangents and
    states, see `first_state`. MANY says whether there is more than one n. Rows beyond the last are that one again.
    """
    tiles = tl.cdiv(rows, BLOCK_R)
    n = (program // tiles).to(tl.int64) if MANY else 0
    start = (program % tiles if MANY else program).to(tl.int64) * BLOCK_R
    row = tl.arange(0, BLOCK_R)[None, :, None]
    present = row < rows - start
    row = tl.minimum(row, (rows - 1 - start).to(tl.int32))
    number = n * index_n + start * index_p + row * index_p
    k = tl.load(index + number).to(tl.int32)
    t = tl.load(tan + n * tan_n + start * tan_p + row * tan_p).to(tl.float32)
    return n, start, row, present, k, t, first_state(tl.load(seed), number, FEATURES)


@triton.jit
def modulo(number, modulus):
    """A number from −modulus to modulus, exclusive, modulo it: of the two that it may be, a negative one is huge."""
    return tl.minimum(number.to(tl.uint32), (number + modulus).to(tl.uint32)).to(tl.int32)


@triton.jit
def meet(k, group, groups, LANES: tl.constexpr, ODD: tl.constexpr):
    """`pairing.structured_groups` element-wise: partner group, lane flip, sign block and who is second in its pair.

    That comes as whether all lanes of the group are, and as a mask of lanes that are the other way round: not 0 if
    lanes meet inside a group. An odd D is the tournament of D single features with a bye; there the idle feature meets
    itself.
    """
    half = groups // 2
    modulus = groups if ODD else groups - 1
    played = tl.maximum(k - (LANES - 1), 0)
    game = played // LANES
    pivot = (game + (game & 1) * modulus) >> 1  # half of the round, modulo an odd number
    delta = modulo(group - pivot, modulus)
    flip = played & (LANES - 1)
    upper = flip * 0
    if ODD:
        partner = modulo(pivot - delta, modulus)
        block = tl.maximum(tl.minimum(delta, modulus - delta), 1) - 1
        behind = delta > half
    else:
        last = group == modulus
        delta = tl.where(last, 0, delta)
        partner = tl.where(group == pivot, modulus, modulo(pivot - delta, modulus))
        block = tl.minimum(delta, modulus - delta)
        behind = last | (delta >= half)
    if LANES > 1:
        inside = k < LANES - 1
        flip = tl.where(inside, k + 1, flip)
        low = flip & -flip
        full: tl.constexpr = 2**LANES - 1
        upper = tl.where(inside, tl.where(low == 1, 0xAA, tl.where(low == 2, 0xCC, 0xF0)) & full, 0)
        partner = tl.where(inside, group, partner)
        block = tl.where(inside, tl.where(group < half, group, group - half), block)
        behind = tl.where(inside, group >= half, behind)
    return partner, flip, block, behind, upper


@triton.jit
def games(k, b, groups, LANES: tl.constexpr, ODD: tl.constexpr):
    """Structured draws k (rows, 1) by blocks b (1, blocks): the two groups that share sign block b.

    Returns both groups, the lane flip, and the lowest bit of it if lanes meet inside a group, else 0. There
    the firsts of the second group are the lanes with that bit, those of the first group the others.
    """
    half = groups // 2
    modulus = groups if ODD else groups - 1
    played = tl.maximum(k - (LANES - 1), 0)
    game = played // LANES
    pivot = (game + (game & 1) * modulus) >> 1
    one = modulo(pivot + b - modulus, modulus)
    two = modulo(pivot - b, modulus)
    flip = played & (LANES - 1)
    low = flip * 0
    if not ODD:
        two = tl.where(b == 0, modulus, two)
    if LANES > 1:
        inside = k < LANES - 1
        flip = tl.where(inside, k + 1, flip)
        low = tl.where(inside, flip & -flip, 0)
        one = tl.where(inside, b, one)
        two = tl.where(inside, b + half, two)
    return one, two, flip, low


@triton.jit
def negatives(bits, flip, second, LANES: tl.constexpr):
    """The lanes of a group whose sign is −1, as bits; up to four groups, a byte each.

    ``second`` are those that are second in their pair: such a lane negates the bit of its first.
    """
    theirs = bits
    if LANES > 1:
        theirs = tl.where((flip & 1) != 0, ((theirs & 0x55555555) << 1) | ((theirs >> 1) & 0x55555555), theirs)
    if LANES > 2:
        theirs = tl.where((flip & 2) != 0, ((theirs & 0x33333333) << 2) | ((theirs >> 2) & 0x33333333), theirs)
    if LANES > 4:
        theirs = tl.where((flip & 4) != 0, ((theirs & 0x0F0F0F0F) << 4) | ((theirs >> 4) & 0x0F0F0F0F), theirs)
    return (theirs & second) | (~bits & ~second)


@triton.jit
def structured_code(k, seed, number, feature, features, LANES: tl.constexpr, ODD: tl.constexpr):
    """The signed partner of single features of structured draws, 0 for an idle one."""
    group = feature // LANES
    lane = feature % LANES
    partner, flip, block, behind, upper = meet(k, group, features // LANES, LANES, ODD)
    second = tl.where(behind, 2**LANES - 1, 0) ^ upper
    bits = sign_bits(first_state(seed, number, features), block, LANES)
    negative = (negatives(bits, flip, second, LANES) >> lane) & 1
    other = partner * LANES + (lane ^ flip)
    code = tl.where(negative != 0, -(other + 1), other + 1)
    if ODD:
        code = tl.where(other == feature, 0, code)
    return code


@triton.jit
def table_kernel(index, seed, code, features, LANES: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr):
    """The table of every structured draw: one row of signed partners each."""
    tiles = tl.cdiv(features, BLOCK)
    number = (tl.program_id(0) // tiles).to(tl.int64)
    feature = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(index + number).to(tl.int32)
    signed = structured_code(k, tl.load(seed), number, feature, features, LANES, ODD)
    tl.store(code + number * features + feature, signed.to(code.dtype.element_ty), mask=feature < features)
