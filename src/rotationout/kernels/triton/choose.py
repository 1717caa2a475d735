"""Which program turns or adds up the features of a plan, and the size of its tiles.

They were found by measurement on an H200; those of sums and registers by what a compiler makes of them for it.
``python -m benchmarks.centred --without`` measures them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ... import pairing
from .lanes import lanes_kernel
from .lanes_sum import lanes_sum_kernel, signs_kernel
from .launch import Program, Sums
from .layout import Layout, Plan, cdiv, next_power_of_2
from .once import once_kernel
from .rows import rows_kernel
from .sums import finish_kernel, sum_kernel
from .tables import SHARED, STRUCTURED, gather_kernel, gather_sum_kernel, pairs_kernel

__all__ = ["once", "packs", "sums", "turn"]

PAIR_POSITIONS = 16, 192
"""Maps at least this large are turned pair by pair, smaller ones element by element: of an even and an odd size."""
PAIR_TILE, PAIR_WARPS, PAIR_TILES = (1024, 2048), (2, 4), 2
"""Elements of a tile and warps, for large maps and those of up to 64 positions, and tiles of a program."""
ROW_FEATURES = 256
"""The most features of 16 bits that meet in shared memory; beyond, a cache does as well."""
ROW_TILE, ROW_WARPS, ROW_REGISTERS = (512, 1024), (1, 2), 0
"""Words that are exchanged at once and warps, for up to 64 features and more; registers about a mean (0: no limit)."""
GATHER_TILE, GATHER_WARPS = 1024, (1, 2)
"""Elements of a program, and its warps on maps and with the features last."""
LANES_TILE, LANES_WARPS = (1024, 512, 2048), (1, 1, 4)
"""Elements and warps of a program: for up to 1024 features, if a power of two or not; and for more."""
LANES_REGISTERS = 80, 80, 0
"""The most registers of a thread about a mean, 0 if there is no limit."""
SUM_TILE, SUM_WARPS, SUM_REGISTERS = 8192, 8, (80, 64)
"""Elements of a tile and warps of a sum, registers on maps and with the features last,"""
SUM_POSITIONS, SUM_FEATURES = 128, 256
"""of which so many lie side by side at most: on maps, whose angles are then read in the order of the features, and with
the features last."""
SUM_PARTS = 2112, 528
"""Programs a sum is spread over, if there is enough to add up: more than run at once where a pairing belongs to an n,
as many where rows are all alike."""
LANES_SUM_TILE, LANES_SUM_WARPS, LANES_SUM_REGISTERS = 4096, 4, (128, 96)
"""The same for a sum of structured turns, registers for features of 32 bits and for words of two,"""
LANES_SUM_PROGRAMS = 528, 660
"""the programs that run at once then,"""
LANES_SUM_PARTS = 4
"""and groups of lanes, or parts of 16 bytes of them, that a thread adds up of a row."""
SIGNS_BLOCK = 1024
"""Words of random bits that a program makes."""
ONCE = 2**14
"""The most elements of a channel that a program holds, and of its partner."""
SMALL = 2**23
"""Features of maps with fewer elements are added up in tiles of SMALL_TILE, and left in up to FEW_PARTS parts for the
program that turns them to add up: a launch would take longer."""
SMALL_TILE, FEW_PARTS = 1024, 16
SMALL_ROWS = 2**20
"""The same of so many elements with the features last, where every program that turns them adds up all the parts."""


def packs(x: Tensor) -> bool:
    """Whether features have 16 bits and start at a word of 32, so that two can be read at once."""
    return x.element_size() == 2 and x.data_ptr() % 4 == 0


def turn(plan: Plan, x: Tensor, adjoint: bool, parts: tuple[int, int], weighted: bool, packed: bool) -> Program:
    """The program for y = x + tan θ · A(x − m) + w·s: of (x, y, tan, pairs, m, s, w, seed).

    ``parts`` says in how many parts m and s come, 0 if there is none.
    """
    layout, kind = plan.layout, plan.kind
    features, rows, count = layout.features, layout.rows, layout.n
    weight = plan.weight if weighted else (0, 0)
    again = parts != (0, 0)  # a sum has read x
    common = {"ADJOINT": adjoint, "MEAN": parts[0], "SHIFT": parts[1], "WEIGHT": weighted}
    if _by_pairs(plan):
        small = rows <= 64
        block = min(PAIR_TILE[small], next_power_of_2(rows) // (2 if rows > 256 else 1))
        channels = max(1, min(PAIR_TILE[small] // block if rows <= 256 else 1, next_power_of_2(features)))
        tiles = min(PAIR_TILES, cdiv(rows, block))
        strips, splits = cdiv(features, channels), cdiv(rows, block * tiles)
        piece = _piece(rows)
        return Program(
            pairs_kernel, count * strips * splits, features, rows // piece, strips, splits,
            plan.tan[0], plan.pairs[0], *weight, **common, TAN_EACH=plan.tan[1] != 0, PIECE=piece,
            CHANNELS=channels, BLOCK=block, TILES=tiles, num_warps=PAIR_WARPS[small],
        )  # fmt: skip
    if _by_rows(plan, x):
        wide = features > 64
        block_c = next_power_of_2(features)
        block_r = max(1, min(ROW_TILE[wide] // block_c, next_power_of_2(rows)))
        return Program(
            rows_kernel, count * cdiv(rows, 2 * block_r), features, rows, *plan.tan, plan.pairs[0], *weight,
            **common, DTYPE=_dtype(x), BLOCK_C=block_c, BLOCK_R=block_r, num_warps=ROW_WARPS[wide],
            registers=ROW_REGISTERS if again else 0,
        )  # fmt: skip

    form = {"LANES": pairing.lanes(features), "ODD": features % 2 == 1}
    if kind == STRUCTURED and layout.last:
        lanes = 2 * form["LANES"]
        size = 2 if features > 1024 else int(next_power_of_2(features) != features)
        block_b = _even_block(cdiv(features, lanes), max(1, LANES_TILE[size] // lanes))
        block_r = max(1, min(LANES_TILE[size] // (block_b * lanes), next_power_of_2(rows)))
        words = packed and features % 4 == 0 and parts == (0, 0)
        return Program(
            lanes_kernel, count * cdiv(rows, block_r), features, rows, *plan.tan, *plan.pairs, *weight,
            **common, **form, PACKED=_dtype(x) if words else None,
            BLOCK_R=block_r, BLOCK_B=block_b, words=2 * words, num_warps=LANES_WARPS[size],
            registers=LANES_REGISTERS[size] if again and _few_registers(layout, x) else 0,
        )  # fmt: skip

    block_c, block_p, span, warps = _gather_blocks(layout, kind)
    return Program(
        gather_kernel, count * cdiv(features, span) * cdiv(rows, block_p), features, rows, span,
        *layout.strides, *plan.tan, *plan.pairs, *weight, **common, **form, KIND=kind,
        BLOCK_C=block_c, BLOCK_P=block_p, num_warps=warps,
    )  # fmt: skip


def once(plan: Plan, adjoint: bool) -> Program | None:
    """The program for the operator about the batch mean in one launch, of (x, y, tan, pairs), if maps are so small."""
    layout = plan.layout
    features, rows, count = layout.features, layout.rows, layout.n
    block_n, block_p = next_power_of_2(count), next_power_of_2(rows)
    if not _by_pairs(plan) or plan.pairs[0] or block_n * block_p > ONCE:
        return None
    piece = _piece(rows)
    return Program(
        once_kernel, features, features, count, rows // piece, plan.tan[0], 1 / (count * rows),
        ADJOINT=adjoint, TAN_EACH=plan.tan[1] != 0, PIECE=piece, BLOCK_N=block_n, BLOCK_P=block_p,
        num_warps=max(1, min(16, block_n * block_p // 512)),
    )  # fmt: skip


def sums(plan: Plan, x: Tensor, turned: bool, weighted: bool, scale: float, packed: bool) -> Sums:
    """The programs for the sum over all rows of w·x, or of tan θ · A x: of (x, partial, w or tan, pairs, seed)."""
    layout = plan.layout
    features, rows, count = layout.features, layout.rows, layout.n
    if turned and plan.kind != SHARED:
        return _turned_sums(plan, x, scale, packed)
    weight = plan.tan if turned else plan.weight if weighted else (0, 0)
    if (
        layout.last and weight[0] == rows * weight[1] and not (turned and plan.pairs[0])
    ):  # no matter which n rows are of
        count, rows = 1, count * rows
    small = _by_pairs(plan) and x.numel() < SMALL and rows <= SMALL_TILE
    block_c, block_p = _sum_blocks(layout, rows, SMALL_TILE if small else SUM_TILE)
    tiles, programs = cdiv(features, block_c), SUM_PARTS[layout.last and count == 1]
    per_outer = cdiv(count, FEW_PARTS) if small else cdiv(count * tiles, programs)
    if turned and layout.last and plan.pairs[0]:  # every n has a pairing of its own
        per_outer = 1
    outer = cdiv(count, per_outer)
    few = count == 1 and tiles == 1 and _by_rows(plan, x) and x.numel() <= SMALL_ROWS
    splits = 1 if small else _splits(rows, block_p, FEW_PARTS if few else programs, outer * tiles)
    piece = _piece(rows)
    program = Program(
        sum_kernel, outer * splits * tiles, features, count, rows // piece, per_outer, splits,
        *weight, plan.pairs[0], scale, WEIGHT=turned or weighted, PADDED=weighted, CODE=turned, LAST=layout.last,
        PIECE=piece, TOGETHER=min(8, next_power_of_2(per_outer)) if small else 1, BLOCK_C=block_c, BLOCK_P=block_p,
        num_warps=SUM_WARPS, registers=SUM_REGISTERS[layout.last] if _few_registers(layout, x) else 0,
    )  # fmt: skip
    return Sums(outer * splits, program, None if small or few else _finish(features, outer * splits))


def _turned_sums(plan: Plan, x: Tensor, scale: float, packed: bool) -> Sums:
    """The same where every row has a pairing of its own."""
    layout = plan.layout
    features, rows, count = layout.features, layout.rows, layout.n
    lanes, odd = pairing.lanes(features), features % 2 == 1
    if plan.kind == STRUCTURED and layout.last:
        words = packed and features % 4 == 0
        part = lanes if words else min(lanes, 4)
        parts = next_power_of_2(features // part)
        block_h = min(LANES_SUM_PARTS, max(1, parts // 8))
        block_g = min(parts // block_h, max(1, LANES_SUM_TILE // (part * block_h)))
        block_r = max(1, min(LANES_SUM_TILE // (block_g * block_h * part), next_power_of_2(rows)))
        tiles = cdiv(features // part, block_g * block_h)
        splits = _splits(rows, block_r, LANES_SUM_PROGRAMS[words], count * tiles)
        program = Program(
            lanes_sum_kernel, count * splits * tiles, features, rows, splits, *plan.tan, *plan.pairs, scale,
            LANES=lanes, ODD=odd, PACKED=_dtype(x) if words else None, PART=part,
            BLOCK_G=block_g, BLOCK_R=block_r, BLOCK_H=block_h,
            words=int(words), num_warps=LANES_SUM_WARPS,
            registers=LANES_SUM_REGISTERS[words] if _piece(features) == 16 else 0,
        )  # fmt: skip
        draws = (count - 1) * plan.pairs[0] + (rows - 1) * plan.pairs[1] + 1
        sign_words = draws * cdiv(features // 2, 64)
        signs = Program(signs_kernel, cdiv(sign_words, SIGNS_BLOCK), sign_words, BLOCK=SIGNS_BLOCK)
        return Sums(count * splits, program, _finish(features, count * splits), signs, sign_words)
    block_c, block_p = _sum_blocks(layout, rows, SUM_TILE)
    tiles = cdiv(features, block_c)
    splits = _splits(rows, block_p, SUM_PARTS[False], count * tiles)
    program = Program(
        gather_sum_kernel, count * splits * tiles, features, rows, splits, *layout.strides, *plan.tan, *plan.pairs,
        scale, LANES=lanes, ODD=odd, KIND=plan.kind, BLOCK_C=block_c, BLOCK_P=block_p,
        num_warps=SUM_WARPS,
    )  # fmt: skip
    return Sums(count * splits, program, _finish(features, count * splits))


def _finish(features: int, parts: int) -> Program | None:
    if parts == 1:
        return None
    block_c = min(8, next_power_of_2(features))
    block_n = min(8192 // block_c, next_power_of_2(parts))
    return Program(
        finish_kernel, cdiv(features, block_c), features, parts, BLOCK_C=block_c, BLOCK_N=block_n, num_warps=8
    )


def _by_rows(plan: Plan, x: Tensor) -> bool:
    layout = plan.layout
    return plan.kind == SHARED and layout.last and layout.features <= ROW_FEATURES and x.element_size() == 2


def _by_pairs(plan: Plan) -> bool:
    rows = plan.layout.rows
    return plan.kind == SHARED and not plan.layout.last and rows >= PAIR_POSITIONS[rows % 2]


def _dtype(x: Tensor) -> Any:
    return tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16


def _piece(rows: int) -> int:
    """The largest power of two that divides the rows, 16 at most: elements that can be loaded together."""
    return min(16, rows & -rows)


def _few_registers(layout: Layout, x: Tensor) -> bool:
    """Whether a limit of registers costs programs nothing: where 16 elements of 16 bits lie together everywhere."""
    return x.element_size() == 2 and _piece(layout.features if layout.last else layout.rows) == 16


def _even_block(count: int, limit: int) -> int:
    """The largest power of two up to ``limit`` of which a multiple exceeds ``count`` by an eighth at most."""
    block = min(limit, next_power_of_2(count))
    while block > 8 and cdiv(count, block) * block > 1.125 * count:
        block //= 2
    return block


def _gather_blocks(layout: Layout, kind: int) -> tuple[int, int, int, int]:
    """Tile of features and rows, how many features a program walks, and its warps."""
    features, rows = layout.features, layout.rows
    if layout.last:
        block_c = min(_even_block(features, GATHER_TILE), next_power_of_2(features))
        block_p = max(1, min(GATHER_TILE // block_c, next_power_of_2(rows)))
        return block_c, block_p, features, GATHER_WARPS[True]
    block_p = min(next_power_of_2(rows), 64 if kind != SHARED else 1024)
    block_c = max(1, min(GATHER_TILE // block_p, next_power_of_2(features)))
    if kind != SHARED:  # partners differ by position: keep all the features of these positions at hand
        return min(block_c, 32), block_p, features, GATHER_WARPS[False]
    return block_c, block_p, block_c, GATHER_WARPS[False]


def _splits(rows: int, block: int, programs: int, others: int) -> int:
    """Into how many parts the rows are split: a part has two tiles at least."""
    return max(1, min(programs // others, cdiv(rows, 2 * block)))


def _sum_blocks(layout: Layout, rows: int, tile: int) -> tuple[int, int]:
    """Features and rows of a tile."""
    if layout.last:
        block_c = _even_block(layout.features, SUM_FEATURES)
        return block_c, max(1, min(tile // block_c, next_power_of_2(rows)))
    few = cdiv(tile, next_power_of_2(layout.features))
    block_p = min(max(few, SUM_POSITIONS if tile > SMALL_TILE else SMALL_TILE), next_power_of_2(rows))
    return max(1, min(tile // block_p, next_power_of_2(layout.features))), block_p
