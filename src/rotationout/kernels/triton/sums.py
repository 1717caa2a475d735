"""GPU programs that add up features over all rows, in two stages and always in the same order.

Programs take tiles of rows in turn, so that they walk through memory side by side. A thread adds up its part of a tile
at once: it can load much at a time and keeps few sums.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .overlap import AFTER, wait_if

__all__ = [
    "finish_kernel",
    "maps_sum_kernel",
    "rows_sum_kernel",
]


@triton.jit
def weighted_tile(
    x,
    weight,
    start,
    end,
    at,
    p,
    known,
    step_p,
    weight_p,
    WEIGHT: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """The tile of rows p that begins at ``start``, times their weights, in fp32; zeros from the row ``end`` on.

    ``at`` is where its features are in the first tile, and ``step_p`` the step from row to row. PADDED: rows of weight
    0 may hold anything, NaN too.
    """
    present = p < tl.minimum(end - start, BLOCK_P).to(tl.int32)
    value = tl.load(x + start * step_p + at, mask=present & known, other=0.0).to(tl.float32)
    if WEIGHT:
        w = tl.load(weight + (start + p) * weight_p, mask=present, other=0.0).to(tl.float32)
        if PADDED:
            value = tl.where(w != 0, value, 0.0)
        value *= w
    return value


@triton.jit
def rows_sum_kernel(
    x,
    partial,
    weight,
    code,
    features,
    outer,
    rows,
    per_outer,
    splits,
    weight_n,
    weight_p,
    code_n,
    scale,
    WEIGHT: tl.constexpr,
    PADDED: tl.constexpr,
    CODE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    THREAD: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Features last: weighted sums over ``per_outer`` values of n and one of ``splits`` of the rows, times ``scale``.

    With CODE the pairing A is applied to the sums: it is the same for all that a program adds, and a sum is stored
    where its partner is. THREAD of the BLOCK_P rows of a tile are in one thread. PADDED: see `weighted_tile`.
    """
    tiles = tl.cdiv(features, BLOCK_C)
    part = tl.program_id(0) // tiles
    first = (part // splits).to(tl.int64)
    feature = (tl.program_id(0) % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = feature < features
    p = tl.arange(0, BLOCK_P)[:, None]
    at = p.to(tl.int64) * features + feature[None, :]
    begin = (part % splits).to(tl.int64) * BLOCK_P
    shape: tl.constexpr = (THREAD, BLOCK_P // THREAD, BLOCK_C)
    total = tl.zeros((BLOCK_P // THREAD, BLOCK_C), tl.float32)
    wait_if(FOLLOWS == AFTER)
    for turn in range(per_outer):
        n = first + turn * tl.cdiv(outer, per_outer)
        end = tl.where(n < outer, rows, 0).to(tl.int64)
        for start in range(begin, end, tl.full((), BLOCK_P, tl.int64) * splits):
            value = weighted_tile(
                x + n * rows * features, weight + n * weight_n, start, end, at, p, known[None, :], features, weight_p,
                WEIGHT, PADDED, BLOCK_P,
            )  # fmt: skip
            total += tl.sum(tl.reshape(value, shape), axis=0)
    sums = tl.sum(total, axis=0) * scale
    if CODE:
        signed = tl.load(code + first * code_n + feature, mask=known, other=0).to(tl.int32)
        sums = tl.where(signed > 0, -sums, tl.where(signed < 0, sums, 0.0))
        feature = tl.where(signed == 0, feature, tl.abs(signed) - 1)
    tl.store(partial + part.to(tl.int64) * features + feature, sums, mask=known)


@triton.jit
def maps_sum_kernel(
    x,
    partial,
    weight,
    code,
    features,
    outer,
    pieces,
    per_outer,
    splits,
    weight_n,
    weight_p,
    code_n,
    scale,
    WEIGHT: tl.constexpr,
    PADDED: tl.constexpr,
    CODE: tl.constexpr,
    PIECE: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    THREAD: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Maps: weighted sums over ``per_outer`` values of n and one of ``splits`` of the positions, times ``scale``.

    With CODE the pairing A is applied to them: every n has its own, and a channel adds up its partner's positions.
    ``pieces`` times PIECE is the number of positions: so the compiler knows what divides it. TOGETHER values of n are
    read at a time; if more than one, a tile has all the positions of each. THREAD of the positions side by side in a
    tile are in one thread. PADDED: see `weighted_tile`.
    """
    positions = pieces * PIECE
    tiles = tl.cdiv(features, BLOCK_C)
    part = tl.program_id(0) // tiles
    first = (part // splits).to(tl.int64)
    feature = (tl.program_id(0) % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[:, None]
    known = c < features
    p = tl.arange(0, BLOCK_P)[None, :]
    begin = (part % splits).to(tl.int64) * BLOCK_P
    shape: tl.constexpr = (BLOCK_C, BLOCK_P // THREAD, THREAD)
    total = tl.zeros((BLOCK_C, BLOCK_P // THREAD), tl.float32)
    wait_if(FOLLOWS == AFTER)
    for turn in range(0, per_outer, TOGETHER):
        for extra in tl.static_range(TOGETHER):
            n = first + (turn + extra) * tl.cdiv(outer, per_outer)
            end = tl.where(n < outer, positions, 0).to(tl.int64)
            source, sign = c, 1.0
            if CODE:
                signed = tl.load(code + n * code_n + c, mask=known & (n < outer), other=0).to(tl.int32)
                source = tl.maximum(tl.abs(signed) - 1, 0)
                sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))
            at = source.to(tl.int64) * positions + p
            x_n, w_n = x + n * features * positions, weight + n * weight_n
            if TOGETHER > 1:  # without a loop: all of them are on their way before the first is added
                value = weighted_tile(x_n, w_n, begin, end, at, p, known, 1, weight_p, WEIGHT, PADDED, BLOCK_P)
                total += sign * tl.sum(tl.reshape(value, shape), axis=2)
            else:
                for start in range(begin, end, tl.full((), BLOCK_P, tl.int64) * splits):
                    value = weighted_tile(x_n, w_n, start, end, at, p, known, 1, weight_p, WEIGHT, PADDED, BLOCK_P)
                    total += sign * tl.sum(tl.reshape(value, shape), axis=2)
    sums = tl.sum(total, axis=1) * scale
    tl.store(partial + part.to(tl.int64) * features + feature, sums, mask=feature < features)


@triton.jit
def finish_kernel(
    partial,
    total,
    features,
    parts,
    momentum,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RUNNING: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """The sum of all parts; RUNNING, what is there comes nearer to it, by ``momentum`` of the way."""
    feature = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    sums = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    wait_if(FOLLOWS == AFTER)
    for start in range(0, parts, BLOCK_N):
        part = (start + tl.arange(0, BLOCK_N))[:, None]
        sums += tl.load(
            partial + part.to(tl.int64) * features + feature, mask=(part < parts) & (feature < features), other=0.0
        )
    added = tl.reshape(tl.sum(sums, axis=0), (1, BLOCK_C))
    if RUNNING:
        old = tl.load(total + feature, mask=feature < features, other=0.0).to(tl.float32)
        way = added - old
        added = tl.where(momentum < 0.5, old + momentum * way, added - (1 - momentum) * way)  # all the way: exactly
    tl.store(total + feature, added.to(total.dtype.element_ty), mask=feature < features)
