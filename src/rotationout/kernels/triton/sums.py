"""GPU programs that add up features over all rows, in two stages and always in the same order."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "finish_kernel",
    "sum_kernel",
]


@triton.jit
def sum_kernel(
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
    LAST: tl.constexpr,
    PIECE: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Weighted sums of every feature over ``per_outer`` values of n and one of ``splits`` of the rows, times ``scale``.

    Programs take turns, each a tile of rows, so that they walk through memory side by side.
    With CODE the pairing A is applied to the sums: on maps every n
    has its own, and a channel adds up its partner's rows; with the features last it holds for all that a program adds,
    and a sum is stored where its partner is. ``pieces`` times PIECE is the number of rows: so the compiler knows what
    divides it. TOGETHER values of n are read at a time; if more than one, all the rows of each. PADDED: rows of weight
    0 may hold anything.
    """
    program = tl.program_id(0)
    rows = pieces * PIECE
    tiles = tl.cdiv(features, BLOCK_C)
    part = (program // tiles).to(tl.int64)
    first = part // splits
    split = (part % splits).to(tl.int32)
    feature = (program % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[None, :] if LAST else feature[:, None]
    local = tl.arange(0, BLOCK_P)
    local = local[:, None] if LAST else local[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_C) if LAST else (BLOCK_C, BLOCK_P), tl.float32)
    for step in range(0, per_outer, TOGETHER):
        for extra in tl.static_range(TOGETHER):
            n = first + (step + extra) * tl.cdiv(outer, per_outer)
            source = c
            sign = 1.0
            if CODE and not LAST:
                signed = tl.load(code + n * code_n + c, mask=(n < outer) & (c < features), other=0).to(tl.int32)
                source = tl.maximum(tl.abs(signed) - 1, 0)
                sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))
            for tile in range(split, 1 if TOGETHER > 1 else tl.cdiv(rows, BLOCK_P), splits):
                p = tile * BLOCK_P + local
                present = (p < rows) & (n < outer)
                at = (n * rows + p) * features + c if LAST else (n * features + source) * rows + p
                value = tl.load(x + at, mask=present & (c < features), other=0.0).to(tl.float32)
                if WEIGHT:
                    w = tl.load(weight + n * weight_n + p.to(tl.int64) * weight_p, mask=present, other=0.0)
                    if PADDED:  # whatever the padding holds, NaN too
                        value = tl.where(w != 0, value, 0.0)
                    total += value * (w.to(tl.float32) * sign)
                else:
                    total += value
    sums = tl.sum(total, axis=0 if LAST else 1) * scale
    known = feature < features
    if CODE and LAST:
        signed = tl.load(code + first * code_n + feature, mask=known, other=0).to(tl.int32)
        sums = tl.where(signed > 0, -sums, tl.where(signed < 0, sums, 0.0))
        feature = tl.where(signed == 0, feature, tl.abs(signed) - 1)
    tl.store(partial + part * features + feature, sums, mask=known)


@triton.jit
def finish_kernel(partial, total, features, parts, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sum of all parts."""
    feature = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    sums = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for start in range(0, parts, BLOCK_N):
        part = (start + tl.arange(0, BLOCK_N))[:, None]
        sums += tl.load(
            partial + part.to(tl.int64) * features + feature, mask=(part < parts) & (feature < features), other=0.0
        )
    added = tl.reshape(tl.sum(sums, axis=0), (1, BLOCK_C))
    tl.store(total + feature, added, mask=feature < features)
