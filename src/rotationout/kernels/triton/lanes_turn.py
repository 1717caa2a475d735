"""A GPU program for structured draws with the features last in memory: groups of lanes move in one piece.

Two groups that meet are loaded once, turned in registers and stored. There are three ways to do it:

- in words, two features of 16 bits in each: see `lanes_words`;
- in parts of 16 bytes of features of 32 bits, where a lane flip that goes beyond a part changes its address;
- feature by feature: odd D, features of 16 bits that do not start at a word or whose number is no multiple of 4, and
  the rare rows of the second way whose lanes meet inside their group.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import as_bits, as_numbers, exchange_where, flat, signed_by, swap_features
from .lanes_words import turn_words
from .pairing import draws_of, games, sign_bits
from .tables import program_number

__all__ = ["lanes_kernel"]


@triton.jit
def turn_parts(
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
    BLOCK_G: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Pairs of groups from ``offset`` on, in parts of 4 features, where no lanes meet inside their group."""
    part: tl.constexpr = 4 if LANES > 4 else LANES
    parts: tl.constexpr = LANES // part
    groups = FEATURES // LANES
    piece = tl.arange(0, BLOCK_G * parts)[:, None, None] + tl.arange(0, BLOCK_H)[None, None, :] * (BLOCK_G * parts)
    b = offset + piece // parts
    valid = (present & (b < groups // 2))[:, :, :, None]
    b = tl.minimum(b, groups // 2 - 1)
    one, two, flip, _ = games(k, b, groups, LANES, False)
    first = piece % parts
    lane = tl.arange(0, part)[None, None, None, :]
    c_one = ((one * parts + first) * part)[:, :, :, None] + lane
    c_two = ((two * parts + (first ^ (flip // part))) * part)[:, :, :, None] + lane
    at_one = (row * FEATURES)[:, :, :, None] + c_one
    at_two = (row * FEATURES)[:, :, :, None] + c_two
    u = flat(tl.load(x + at_one))
    v = flat(tl.load(x + at_two))
    signed = signed_by(t, flat((~sign_bits(state, b, LANES) >> (first * part))[:, :, :, None] >> lane))
    own, other = u, v
    if MEAN:
        own -= flat(tl.load(mean + c_one))
        other -= flat(tl.load(mean + c_two))
    u += signed * as_numbers(swap_features(as_bits(other), flip, part))
    v -= as_numbers(swap_features(as_bits(signed * own), flip, part))
    if SHIFT:
        u += flat(tl.load(shift + c_one)) * weight
        v += flat(tl.load(shift + c_two)) * weight
    tl.store(y + at_one, tl.reshape(u, at_one.shape), mask=valid)
    tl.store(y + at_two, tl.reshape(v, at_two.shape), mask=valid)


@triton.jit
def turn_features(
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
    ODD: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Pairs of groups from ``offset`` on, whatever they are; with ODD the first block is the idle feature's."""
    groups = FEATURES // LANES
    blocks = groups // 2 + ODD
    b = offset + tl.arange(0, BLOCK_B)[:, None, None]
    valid = present & (b < blocks)
    b = tl.minimum(b, blocks - 1)
    one, two, flip, low = games(k, b, groups, LANES, ODD)
    lane = tl.arange(0, LANES)[None, None, :]
    c_one = one * LANES + lane
    c_two = two * LANES + lane
    at_one = row * FEATURES + c_one
    at_two = row * FEATURES + c_two
    mask = tl.where((low & lane) != 0, -1, 0)
    own = tl.load(x + at_one).to(tl.float32)
    other = tl.load(x + at_two).to(tl.float32)
    u, v = own, other
    if MEAN:
        u -= tl.load(mean + c_one)
        v -= tl.load(mean + c_two)
    signed = signed_by(t, ~sign_bits(state, tl.maximum(b - ODD, 0), LANES) >> lane)
    if ODD:
        signed = tl.where(b == 0, 0.0, signed)
    u, v = exchange_where(as_bits(u), as_bits(v), mask)
    v = swap_features(v, flip, LANES)
    h = swap_features(as_bits(-signed * as_numbers(u)), flip, LANES)
    u, v = exchange_where(as_bits(signed * as_numbers(v)), h, mask)
    own += as_numbers(u)
    other += as_numbers(v)
    if SHIFT:
        own += tl.load(shift + c_one) * weight
        other += tl.load(shift + c_two) * weight
    tl.store(y + at_one, own.to(y.dtype.element_ty), mask=valid)
    tl.store(y + at_two, other.to(y.dtype.element_ty), mask=valid & (b > 0) if ODD else valid)


@triton.jit
def lanes_kernel(
    x,
    y,
    tan,
    index,
    mean,
    shift,
    weight,
    seed,
    rows,
    tan_n,
    tan_p,
    index_n,
    index_p,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    MANY: tl.constexpr,
    PACKED: tl.constexpr,
    PARTS: tl.constexpr,
    ASM: tl.constexpr,
    LATE: tl.constexpr,
    BACKWARDS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Features last, structured draws, y = x + tan θ · A(x − m) + w·s for a tile of rows.

    With PACKED, the dtype of the features, x and y hold two of them to a word. PARTS: they have 32 bits, and D is even.
    MANY: see `draws_of`; rows beyond the last are not stored. LATE: see `turn_words`.
    """
    n, start, row, present, k, t, state = draws_of(
        program_number(BACKWARDS), tan, index, seed, rows, tan_n, tan_p, index_n, index_p, FEATURES, MANY, BLOCK_R
    )
    t = as_bits(-t if ADJOINT else t)
    w = 1.0
    if WEIGHT:
        w = tl.load(weight + n * weight_n + start * weight_p + row * weight_p)
    rare = tl.min(tl.min(tl.min(k, axis=2), axis=1), axis=0) < LANES - 1
    base = (n * rows + start) * (FEATURES if PACKED is None else FEATURES // 2)
    x += base
    y += base
    block_b: tl.constexpr = BLOCK_G * BLOCK_H
    for offset in range(0, FEATURES // LANES // 2 + ODD, block_b):
        if PACKED is not None:
            if rare:
                turn_words(
                    x, y, mean, shift, w, k, t, state, row, present, offset, FEATURES,
                    LANES, MEAN, SHIFT, True, PACKED, ASM, LATE, BLOCK_G, BLOCK_H,
                )  # fmt: skip
            else:
                turn_words(
                    x, y, mean, shift, w, k, t, state, row, present, offset, FEATURES,
                    LANES, MEAN, SHIFT, False, PACKED, ASM, LATE, BLOCK_G, BLOCK_H,
                )  # fmt: skip
        elif PARTS:
            if rare:
                turn_features(
                    x, y, mean, shift, w, k, t, state, row, present, offset, FEATURES,
                    LANES, ODD, MEAN, SHIFT, block_b,
                )  # fmt: skip
            else:
                turn_parts(
                    x, y, mean, shift, w, k, t, state, row, present, offset, FEATURES,
                    LANES, MEAN, SHIFT, BLOCK_G, BLOCK_H,
                )  # fmt: skip
        else:
            turn_features(
                x, y, mean, shift, w, k, t, state, row, present, offset, FEATURES,
                LANES, ODD, MEAN, SHIFT, block_b,
            )  # fmt: skip
