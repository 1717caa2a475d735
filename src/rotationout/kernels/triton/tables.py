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

from .overlap import AFTER, ALONE, BESIDE, wait_if
from .pairing import structured_code

__all__ = [
    "EACH",
    "SHARED",
    "STRUCTURED",
    "gather_kernel",
    "gather_sum_kernel",
    "pairs_kernel",
    "program_number",
    "whole",
]

SHARED: tl.constexpr = tl.constexpr(0)
"""One table for all p of a program."""
EACH: tl.constexpr = tl.constexpr(1)
"""A table for every p."""
STRUCTURED: tl.constexpr = tl.constexpr(2)
"""A structured draw for every p."""


@triton.jit
def program_number(BACKWARDS: tl.constexpr):
    """Which program this is; BACKWARDS, the first to run has the last features, which a sum has read last."""
    if BACKWARDS:
        return tl.num_programs(0) - 1 - tl.program_id(0)
    return tl.program_id(0)


@triton.jit
def whole(parts, feature, features, known, PARTS: tl.constexpr):
    """A number for each feature that comes in PARTS parts."""
    value = tl.load(parts + feature, mask=known, other=0.0)
    for part in tl.static_range(1, PARTS):
        value += tl.load(parts + part * features + feature, mask=known, other=0.0)
    return value


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
    pieces,
    strips,
    splits,
    tan_n,
    code_n,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    TAN_EACH: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    PIECE: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    BACKWARDS: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Maps: a pair's first channel turns both channels, so that each element is read once.

    A program takes a strip of CHANNELS channels and TILES tiles of positions; it ends at once if none of its channels
    is first. ``pieces`` times PIECE is the number of positions: so the compiler knows what divides it. MEAN and SHIFT
    say in how many parts the mean and the shift come, to be added up.
    """
    program = program_number(BACKWARDS)
    positions = pieces * PIECE
    split = program % splits
    channel = (program // splits) % strips * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    n = (program // splits // strips).to(tl.int64)
    known = channel < features
    wait_if(FOLLOWS == AFTER)
    cache: tl.constexpr = ".cg" if FOLLOWS == BESIDE else ""
    signed = tl.load(code + n * code_n + channel, mask=known, other=-1, cache_modifier=cache).to(tl.int32)
    if tl.max(tl.max(signed, 0), 0) >= 0:
        paired = signed > 0
        partner = tl.where(paired, signed - 1, channel)
        here = n * features * positions + channel.to(tl.int64) * positions
        there = n * features * positions + partner.to(tl.int64) * positions
        for tile in tl.static_range(TILES):
            position = (split * TILES + tile) * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside = position < positions
            first = inside & (signed >= 0)
            second = inside & paired
            u = tl.load(x + here + position, first, 0.0, cache_modifier=cache).to(tl.float32)
            v = tl.load(x + there + position, second, 0.0, cache_modifier=cache).to(tl.float32)
            if TAN_EACH:
                t = tl.load(tan + n * tan_n + position, mask=inside, other=0.0, cache_modifier=cache).to(tl.float32)
            else:
                t = tl.load(tan + n * tan_n, cache_modifier=cache).to(tl.float32)
            if ADJOINT:
                t = -t
            if tile == 0:
                wait_if(FOLLOWS == BESIDE)
                if MEAN:
                    here_mean = whole(mean, channel, features, known, MEAN)
                    there_mean = whole(mean, partner, features, known, MEAN)
                if SHIFT:
                    here_shift = whole(shift, channel, features, known, SHIFT)
                    there_shift = whole(shift, partner, features, known, SHIFT)
            if MEAN:
                turned = u + tl.where(paired, t * (v - there_mean), 0.0)
                other = v - t * (u - here_mean)
            else:
                turned = u + t * v
                other = v - t * u
            if SHIFT:
                if WEIGHT:
                    w = tl.load(weight + n * weight_n + position * weight_p, mask=inside, other=0.0)
                    turned += here_shift * w
                    other += there_shift * w
                else:
                    turned += here_shift
                    other += there_shift
            tl.store(y + here + position, turned.to(y.dtype.element_ty), mask=first)
            tl.store(y + there + position, other.to(y.dtype.element_ty), mask=second)


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
    rows,
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
    known = (c < features) & (p < rows)
    if KIND == STRUCTURED:
        number = n * index_n + p.to(tl.int64) * index_p
        k = tl.load(index + number, mask=p < rows, other=0).to(tl.int32)
        signed = structured_code(k, seed, number, c, features, LANES, ODD)
    elif KIND == EACH:
        signed = tl.load(index + n * index_n + p.to(tl.int64) * index_p + c, mask=known, other=0).to(tl.int32)
    else:
        signed = tl.load(index + n * index_n + c, mask=c < features, other=0).to(tl.int32)
    sign = tl.where(signed > 0, 1.0, tl.where(signed < 0, -1.0, 0.0))
    partner = tl.where(signed == 0, c, tl.abs(signed) - 1)
    other = tl.load(
        x + n * x_n + partner.to(tl.int64) * x_c + p.to(tl.int64) * x_p,
        mask=known & (partner < features),
        other=0.0,
    ).to(tl.float32)
    if MEAN:
        other -= tl.load(mean + partner, mask=partner < features, other=0.0)
    t = tl.load(tan + n * tan_n + p.to(tl.int64) * tan_p, mask=p < rows, other=0.0).to(tl.float32)
    return t * sign * other


@triton.jit
def gather_kernel(
    x,
    y,
    tan,
    index,
    mean,
    shift,
    weight,
    seed,
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
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BACKWARDS: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """Any layout and any pairing: each lane loads its own element and its partner's, which a cache holds.

    A program walks ``span`` features of BLOCK_P rows. Features are the first axis of a tile: where neither axis is
    contiguous, as among partners, the compiler gives it to neighbouring threads, which then read of few rows.
    """
    program = program_number(BACKWARDS)
    spans = tl.cdiv(features, span)
    tiles = tl.cdiv(rows, BLOCK_P)
    begin = (program % spans) * span
    n = (program // spans // tiles).to(tl.int64)
    p = ((program // spans) % tiles * BLOCK_P + tl.arange(0, BLOCK_P))[None, :]
    wait_if(FOLLOWS != ALONE)
    draw_seed = tl.load(seed) if KIND == STRUCTURED else 0
    for offset in range(0, span, BLOCK_C):
        c = (begin + offset + tl.arange(0, BLOCK_C))[:, None]
        inside = (c < features) & (p < rows)
        at = n * x_n + c.to(tl.int64) * x_c + p.to(tl.int64) * x_p
        own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        turn = gather_turn(
            x, tan, index, draw_seed, mean, n, c, p, features, rows,
            x_n, x_c, x_p, tan_n, tan_p, index_n, index_p, KIND, LANES, ODD, MEAN,
        )  # fmt: skip
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
    x_n,
    x_c,
    x_p,
    tan_n,
    tan_p,
    index_n,
    index_p,
    scale,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """The sum over rows of tan θ · A x, times ``scale``, a partial one for every n and split of the rows.

    Programs take turns, each a tile of rows.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(features, BLOCK_C)
    part = (program // tiles).to(tl.int64)
    n = part // splits
    split = (part % splits).to(tl.int32)
    feature = (program % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = feature[:, None]
    total = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    draw_seed = tl.load(seed) if KIND == STRUCTURED else 0
    for tile in range(split, tl.cdiv(rows, BLOCK_P), splits):
        p = (tile * BLOCK_P + tl.arange(0, BLOCK_P))[None, :]
        total += gather_turn(
            x, tan, index, draw_seed, x, n, c, p, features, rows,
            x_n, x_c, x_p, tan_n, tan_p, index_n, index_p, KIND, LANES, ODD, False,
        )  # fmt: skip
    sums = tl.sum(total, axis=1) * scale
    tl.store(partial + part * features + feature, sums, mask=feature < features)
