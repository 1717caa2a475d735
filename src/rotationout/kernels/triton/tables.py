"""GPU programs that turn features whose partners come from a table, and the sums of such turns.

Every program sees x as (n, c, p): c is the feature, p the rows that lie together, n everything outside. With
the features last in memory p counts rows a stride D apart; otherwise p counts the positions of a map, side by
side. Offsets that can pass 2³¹ are 64 bits wide.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .pairing import structured_code

__all__ = [
    "EACH",
    "SHARED",
    "STRUCTURED",
    "gather_kernel",
    "gather_sum_kernel",
    "pairs_kernel",
]

SHARED: tl.constexpr = tl.constexpr(0)
"""One table for all p of a program."""
EACH: tl.constexpr = tl.constexpr(1)
"""A table for every p."""
STRUCTURED: tl.constexpr = tl.constexpr(2)
"""A structured draw for every p."""


@triton.jit
def pairs_kernel(
    x,
    y,
    tan,
    code,
    mean,
    shift,
    weight,
    features,
    positions,
    tiles,
    tan_n,
    code_n,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    TAN_EACH: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Maps: the program of a pair's first channel turns both channels, so that each element is read once.

    Programs of second channels end at once.
    """
    program = tl.program_id(0)
    start = (program % tiles).to(tl.int64) * BLOCK
    channel = (program // tiles) % features
    n = (program // tiles // features).to(tl.int64)
    signed = tl.load(code + n * code_n + channel).to(tl.int32)
    if signed >= 0:
        local = tl.arange(0, BLOCK)
        inside = local < positions - start
        base = n * features * positions + start
        here = base + channel.to(tl.int64) * positions
        u = tl.load(x + here + local, mask=inside).to(tl.float32)
        if WEIGHT:
            w = tl.load(weight + n * weight_n + (start + local) * weight_p, mask=inside)
        if signed > 0:
            partner = signed - 1
            there = base + partner.to(tl.int64) * positions
            v = tl.load(x + there + local, mask=inside).to(tl.float32)
            if TAN_EACH:
                t = tl.load(tan + n * tan_n + start + local, mask=inside).to(tl.float32)
            else:
                t = tl.load(tan + n * tan_n).to(tl.float32)
            if ADJOINT:
                t = -t
            a = v
            b = u
            if MEAN:
                a = v - tl.load(mean + partner)
                b = u - tl.load(mean + channel)
            first = u + t * a
            other = v - t * b
            if SHIFT:
                s = tl.load(shift + partner)
                if WEIGHT:
                    other += s * w
                else:
                    other += s
            tl.store(y + there + local, other.to(y.dtype.element_ty), mask=inside)
        else:
            first = u
        if SHIFT:
            s = tl.load(shift + channel)
            if WEIGHT:
                first += s * w
            else:
                first += s
        tl.store(y + here + local, first.to(y.dtype.element_ty), mask=inside)


@triton.jit
def gather_turn(
    x,
    tan,
    index,
    seed,
    mean,
    n,
    c,
    p,
    features,
    inside,
    x_n,
    x_c,
    x_p,
    tan_n,
    tan_p,
    index_n,
    index_p,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    MEAN: tl.constexpr,
):
    """The turn tan θ · A(x − m) at features c and rows p, whose shapes broadcast against each other."""
    if KIND == STRUCTURED:
        number = n * index_n + p.to(tl.int64) * index_p
        k = tl.load(index + number, mask=inside, other=0).to(tl.int32)
        signed = structured_code(k, seed, number, c, features, LANES, ODD)
    elif KIND == EACH:
        signed = tl.load(index + n * index_n + p.to(tl.int64) * index_p + c, mask=inside, other=0).to(tl.int32)
    else:
        signed = tl.load(index + n * index_n + c, mask=c < features, other=0).to(tl.int32)
    sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))
    partner = tl.where(signed == 0, c, tl.abs(signed) - 1)
    other = tl.load(
        x + n * x_n + partner.to(tl.int64) * x_c + p.to(tl.int64) * x_p,
        mask=inside & (partner < features),
        other=0.0,
    ).to(tl.float32)
    if MEAN:
        other -= tl.load(mean + partner, mask=partner < features, other=0.0)
    t = tl.load(tan + n * tan_n + p.to(tl.int64) * tan_p, mask=inside, other=0.0).to(tl.float32)
    return t * sign * other


@triton.jit
def gather_kernel(
    x,
    y,
    tan,
    index,
    seed,
    mean,
    shift,
    weight,
    features,
    rows,
    span,
    x_n,
    x_c,
    x_p,
    tan_n,
    tan_p,
    index_n,
    index_p,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Any layout and any pairing: each lane loads its own element and its partner's, which a cache holds.

    A program walks ``span`` features of BLOCK_P rows.
    """
    program = tl.program_id(0)
    spans = tl.cdiv(features, span)
    tiles = tl.cdiv(rows, BLOCK_P)
    begin = (program % spans) * span
    n = (program // spans // tiles).to(tl.int64)
    p = (program // spans) % tiles * BLOCK_P + tl.arange(0, BLOCK_P)
    p = p[:, None] if LAST else p[None, :]
    draw_seed = tl.load(seed) if KIND == STRUCTURED else 0
    for offset in range(0, span, BLOCK_C):
        c = begin + offset + tl.arange(0, BLOCK_C)
        c = c[None, :] if LAST else c[:, None]
        inside = (c < features) & (p < rows)
        at = n * x_n + c.to(tl.int64) * x_c + p.to(tl.int64) * x_p
        own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        turn = gather_turn(
            x,
            tan,
            index,
            draw_seed,
            mean,
            n,
            c,
            p,
            features,
            inside,
            x_n,
            x_c,
            x_p,
            tan_n,
            tan_p,
            index_n,
            index_p,
            KIND,
            LANES,
            ODD,
            MEAN,
        )
        turned = own - turn if ADJOINT else own + turn
        if SHIFT:
            s = tl.load(shift + c, mask=c < features, other=0.0)
            if WEIGHT:
                s = s * tl.load(weight + n * weight_n + p.to(tl.int64) * weight_p, mask=p < rows, other=0.0)
            turned += s
        tl.store(y + at, turned.to(y.dtype.element_ty), mask=inside)


@triton.jit
def gather_sum_kernel(
    x,
    partial,
    tan,
    index,
    seed,
    features,
    rows,
    splits,
    per_split,
    x_n,
    x_c,
    x_p,
    tan_n,
    tan_p,
    index_n,
    index_p,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """The sum over rows of tan θ · A x, a partial one for every n and split of the rows."""
    program = tl.program_id(0)
    tiles = tl.cdiv(features, BLOCK_C)
    part = (program // tiles).to(tl.int64)
    n = part // splits
    begin = (part % splits).to(tl.int32) * per_split
    feature = (program % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[None, :] if LAST else feature[:, None]
    total = tl.zeros((BLOCK_P, BLOCK_C) if LAST else (BLOCK_C, BLOCK_P), tl.float32)
    draw_seed = tl.load(seed) if KIND == STRUCTURED else 0
    for offset in range(0, per_split, BLOCK_P):
        local = offset + tl.arange(0, BLOCK_P)
        p = begin + local
        valid = (local < per_split) & (p < rows)
        p = p[:, None] if LAST else p[None, :]
        valid = valid[:, None] if LAST else valid[None, :]
        total += gather_turn(
            x,
            tan,
            index,
            draw_seed,
            x,
            n,
            c,
            p,
            features,
            valid & (c < features),
            x_n,
            x_c,
            x_p,
            tan_n,
            tan_p,
            index_n,
            index_p,
            KIND,
            LANES,
            ODD,
            False,
        )
    tl.store(partial + part * features + feature, tl.sum(total, axis=0 if LAST else 1), mask=feature < features)
