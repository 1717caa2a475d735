"""GPU programs that add up features over all rows, in two stages and always in the same order."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "exchange_kernel",
    "sum_kernel",
]


@triton.jit
def sum_kernel(
    x,
    partial,
    weight,
    features,
    outer,
    pieces,
    per_outer,
    splits,
    per_split,
    weight_n,
    weight_p,
    WEIGHT: tl.constexpr,
    LAST: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Weighted sums of every feature over ``per_outer`` values of n and one split of the rows.

    ``pieces`` times PIECE is the number of rows: so the compiler knows what divides it.
    """
    program = tl.program_id(0)
    rows = pieces * PIECE
    tiles = tl.cdiv(features, BLOCK_C)
    part = (program // tiles).to(tl.int64)
    first = part // splits * per_outer
    begin = (part % splits).to(tl.int32) * per_split
    feature = (program % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[None, :] if LAST else feature[:, None]
    total = tl.zeros((BLOCK_P, BLOCK_C) if LAST else (BLOCK_C, BLOCK_P), tl.float32)
    for step in range(per_outer):
        n = first + step
        for offset in range(0, per_split, BLOCK_P):
            local = offset + tl.arange(0, BLOCK_P)
            local = local[:, None] if LAST else local[None, :]
            p = begin + local
            present = (local < per_split) & (p < rows) & (n < outer)
            if LAST:
                at = n * features * rows + p.to(tl.int64) * features + c
            else:
                at = n * features * rows + c.to(tl.int64) * rows + p
            value = tl.load(x + at, mask=present & (c < features), other=0.0).to(tl.float32)
            if WEIGHT:
                w = tl.load(weight + n * weight_n + p.to(tl.int64) * weight_p, mask=present, other=0.0)
                value = tl.where(w != 0, value * w.to(tl.float32), 0.0)  # padding may hold anything, NaN too
            total += value
    tl.store(partial + part * features + feature, tl.sum(total, axis=0 if LAST else 1), mask=feature < features)


@triton.jit
def exchange_kernel(
    sums, code, partial, features, count, per_part, code_n, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):
    """The sum over n of A applied to row n of ``sums``, a partial one for every ``per_part`` rows."""
    tiles = tl.cdiv(features, BLOCK_C)
    part = (tl.program_id(0) // tiles).to(tl.int64)
    feature = (tl.program_id(0) % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for offset in range(0, per_part, BLOCK_N):
        local = (offset + tl.arange(0, BLOCK_N))[:, None]
        n = part * per_part + local
        valid = (local < per_part) & (n < count) & (c < features)
        signed = tl.load(code + n * code_n + c, mask=valid, other=0).to(tl.int32)
        valid = valid & (signed != 0)
        value = tl.load(sums + n * features + tl.abs(signed) - 1, mask=valid, other=0.0)
        total += tl.where(signed < 0, -value, value)
    tl.store(partial + part * features + feature, tl.sum(total, axis=0), mask=feature < features)
