"""A GPU program for a gradient in one plane where draws are structured: two tensors are read, what is turned is not.

Each thread holds the features of a vector that meet, and their gradients; a program holds whole vectors. As in
`lanes_turn`, features of 16 bits go two to a word if they can, else one by one.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import as_bits, as_numbers, exchange_where, flat, signed_by, swap_features
from .lanes_words import halves_of, load_words, places_of, store_words
from .pairing import draws_of, games, sign_bits

__all__ = ["plane_lanes_kernel", "shares"]


@triton.jit
def of_row(values):
    """The sum over a vector's features, in every place of it."""
    return tl.sum(tl.sum(values, axis=2), axis=0)[None, :, None]


@triton.jit
def shares(wg, zg, zz):
    """How much of z is added to the gradient and how much of w is taken away; of a vector of zeros nothing."""
    square = tl.maximum(zz, 1.1754943508222875e-38)
    return wg / square, zg / square


@triton.jit
def in_plane(u, v, gu, gv, signed):
    """Y = g + (Δ·g z − z·g Δ) / |z|², where z is (u, v) and Δ is (signed·v, −signed·u)."""
    along, across = shares(of_row(signed * (v * gu - u * gv)), of_row(u * gu + v * gv), of_row(u * u + v * v))
    across *= signed
    return gu + along * u - across * v, gv + along * v + across * u


@triton.jit
def plane_of_words(
    grad,
    z,
    y,
    k,
    t,
    state,
    row,
    present,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    INSIDE: tl.constexpr,
    KIND: tl.constexpr,
    ASM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Features of the dtype KIND, two to a word. INSIDE: see `lanes_words.turn_words`."""
    groups: tl.constexpr = FEATURES // LANES
    b = tl.arange(0, BLOCK_G)[:, None, None] + tl.arange(0, BLOCK_H)[None, None, :] * BLOCK_G
    known = (b < groups // 2)[:, :, :, None]
    b = tl.minimum(b, groups // 2 - 1)
    one, two, flip, low = games(k, b, groups, LANES, False)
    at_one, at_two = places_of(row, one, two, FEATURES, LANES)
    mask = halves_of(low, LANES // 2 * BLOCK_H)
    full: tl.constexpr = groups // 2 == BLOCK_G * BLOCK_H
    u, v = load_words(z, at_one, at_two, flip, mask, known, LANES, INSIDE, KIND, ASM, full, False)
    gu, gv = load_words(grad, at_one, at_two, flip, mask, known, LANES, INSIDE, KIND, ASM, full, False)
    lane = tl.arange(0, LANES)[None, None, None, :]
    signed = signed_by(t, flat(~sign_bits(state, b, LANES)[:, :, :, None] >> lane))
    gu, gv = in_plane(u, v, gu, gv, signed)
    store_words(y, at_one, at_two, gu, gv, flip, mask, present[:, :, :, None] & known, LANES, INSIDE, KIND, ASM)


@triton.jit
def load_features(x, at_one, at_two, flip, mask, first, second, LANES: tl.constexpr):
    """Two groups in fp32, the features of a pair in the same lane, the first of them on the left."""
    u = as_bits(tl.load(x + at_one, mask=first, other=0.0).to(tl.float32))
    v = as_bits(tl.load(x + at_two, mask=second, other=0.0).to(tl.float32))
    u, v = exchange_where(u, v, mask)
    return as_numbers(u), as_numbers(swap_features(v, flip, LANES))


@triton.jit
def plane_of_features(
    grad,
    z,
    y,
    k,
    t,
    state,
    row,
    present,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Features whatever they are; with ODD the first block is the idle feature's, which meets a zero."""
    groups: tl.constexpr = FEATURES // LANES
    blocks = groups // 2 + ODD
    b = tl.arange(0, BLOCK_B)[:, None, None]
    first = b < blocks
    second = first & (b > 0) if ODD else first
    b = tl.minimum(b, blocks - 1)
    one, two, flip, low = games(k, b, groups, LANES, ODD)
    lane = tl.arange(0, LANES)[None, None, :]
    at_one = row * FEATURES + one * LANES + lane
    at_two = row * FEATURES + two * LANES + lane
    mask = tl.where((low & lane) != 0, -1, 0)
    u, v = load_features(z, at_one, at_two, flip, mask, first, second, LANES)
    gu, gv = load_features(grad, at_one, at_two, flip, mask, first, second, LANES)
    signed = signed_by(t, ~sign_bits(state, tl.maximum(b - ODD, 0), LANES) >> lane)
    gu, gv = in_plane(u, v, gu, gv, signed)
    u, v = exchange_where(as_bits(gu), swap_features(as_bits(gv), flip, LANES), mask)
    tl.store(y + at_one, as_numbers(u).to(y.dtype.element_ty), mask=present & first)
    tl.store(y + at_two, as_numbers(v).to(y.dtype.element_ty), mask=present & second)


@triton.jit
def plane_lanes_kernel(
    grad,
    z,
    y,
    tan,
    index,
    seed,
    rows,
    tan_n,
    tan_p,
    index_n,
    index_p,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    MANY: tl.constexpr,
    PACKED: tl.constexpr,
    ASM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The gradient of whole vectors in a tile of rows. PACKED, MANY, and rows beyond the last: see `lanes_kernel`."""
    n, start, row, present, k, t, state = draws_of(
        tl.program_id(0), tan, index, seed, rows, tan_n, tan_p, index_n, index_p, FEATURES, MANY, BLOCK_R
    )
    t = as_bits(t)
    base = (n * rows + start) * (FEATURES if PACKED is None else FEATURES // 2)
    grad += base
    z += base
    y += base
    if PACKED is None:
        plane_of_features(grad, z, y, k, t, state, row, present, FEATURES, LANES, ODD, BLOCK_G * BLOCK_H)
    elif tl.min(tl.min(tl.min(k, axis=2), axis=1), axis=0) < LANES - 1:
        plane_of_words(grad, z, y, k, t, state, row, present, FEATURES, LANES, True, PACKED, ASM, BLOCK_G, BLOCK_H)
    else:
        plane_of_words(grad, z, y, k, t, state, row, present, FEATURES, LANES, False, PACKED, ASM, BLOCK_G, BLOCK_H)
