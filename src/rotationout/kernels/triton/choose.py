"""Choose the program that turns or adds up the features of a plan, and its tiles; `sizes` has the limits."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ... import pairing
from . import sizes
from .lanes_sum import lanes_sum_kernel, signs_kernel
from .lanes_turn import lanes_kernel
from .launch import Program, Sums
from .layout import Layout, Plan, cdiv, next_power_of_2
from .once import once_kernel
from .overlap import AFTER, BESIDE, possible
from .rows import rows_kernel
from .sums import finish_kernel, maps_sum_kernel, rows_sum_kernel
from .tables import SHARED, STRUCTURED, gather_kernel, gather_sum_kernel, pairs_kernel

__all__ = ["by_instructions", "by_lanes", "dtype_of", "finish", "follows", "once", "packs", "piece_of", "sums", "turn"]


def packs(x: Tensor) -> bool:
    """Whether features have 16 bits and start at a word of 32, so that two can be read at once."""
    return x.element_size() == 2 and x.data_ptr() % 4 == 0


def follows(how: Any) -> int:
    """How a kernel follows the one before it on the current device; see `overlap`."""
    return int(how) if sizes.OVERLAP and possible() else 0


def turn(
    plan: Plan, x: Tensor, adjoint: bool, parts: tuple[int, int], weighted: bool, packed: bool, centred: bool
) -> Program:
    """The program for y = x + tan θ · A(x − m) + w·s: of (x, y, tan, pairs, m, s, w, seed).

    ``parts`` says in how many parts m and s come, 0 if there is none. ``centred``: the last launch added them up.
    """
    weight = plan.weight if weighted else (0, 0)
    again = parts != (0, 0)  # a sum has read x, also where the mean is a running one
    few = x.numel() <= sizes.FEW
    common = {"ADJOINT": adjoint, "MEAN": parts[0], "SHIFT": parts[1], "WEIGHT": weighted}
    common["BACKWARDS"] = sizes.BACKWARDS and again
    if by_lanes(plan):  # its programs do not start early
        return _lanes_turn(plan, x, weight, common, packed, again)
    common["FOLLOWS"] = follows(BESIDE if centred and few else AFTER)
    registers = sizes.FEW_REGISTERS if few else (0, 0)
    if _by_pairs(plan):
        return _pairs_turn(plan, weight, common, registers[0])
    if _by_rows(plan, x):
        return _rows_turn(plan, x, weight, common, registers[1], again)
    return _gather_turn(plan, weight, common)


def _pairs_turn(plan: Plan, weight: tuple[int, int], common: dict[str, int], registers: int) -> Program:
    """`turn` on maps with one pairing, pair by pair."""
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    small = rows <= 64
    block = min(sizes.PAIR_TILE[small], next_power_of_2(rows) // (2 if rows > 256 else 1))
    channels = max(1, min(sizes.PAIR_TILE[small] // block if rows <= 256 else 1, next_power_of_2(features)))
    tiles = min(sizes.PAIR_TILES, cdiv(rows, block))
    strips, splits = cdiv(features, channels), cdiv(rows, block * tiles)
    piece = piece_of(rows)
    return Program(
        pairs_kernel, count * strips * splits, features, rows // piece, strips, splits,
        plan.tan[0], plan.pairs[0], *weight, **common, TAN_EACH=plan.tan[1] != 0, PIECE=piece,
        CHANNELS=channels, BLOCK=block, TILES=tiles, num_warps=sizes.PAIR_WARPS[small], registers=registers,
    )  # fmt: skip


def _rows_turn(
    plan: Plan, x: Tensor, weight: tuple[int, int], common: dict[str, int], registers: int, again: bool
) -> Program:
    """`turn` of rows with one pairing, whole rows at a time."""
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    size = (features > 64) + (features > 256)
    block_c = next_power_of_2(features)
    block_r = max(1, min(sizes.ROW_TILE[size] // block_c, next_power_of_2(rows)))
    warps = sizes.ROW_WARPS[size] * max(1, block_c // sizes.ROW_TILE[size])
    wide, piece = x.element_size() == 4, piece_of(features)
    height = block_r if wide else 2 * block_r
    most = sizes.ROW_REGISTERS if warps > 8 else registers
    tiles = _row_tiles(plan.layout, height, block_c) if again else 1
    if tiles > 1:
        warps, most = warps * 2, sizes.ROW_REGISTERS
    return Program(
        rows_kernel, count * cdiv(rows, height * tiles), features // piece, rows,
        *plan.tan, plan.pairs[0], *weight, **common, DTYPE=None if wide else dtype_of(x),
        PIECE=piece, BLOCK_C=block_c, BLOCK_R=block_r, TILES=tiles, num_warps=warps, registers=most,
    )  # fmt: skip


def _lanes_turn(
    plan: Plan, x: Tensor, weight: tuple[int, int], common: dict[str, int], packed: bool, again: bool
) -> Program:
    """`turn` of rows with structured pairings."""
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    lanes, odd = 2 * pairing.lanes(features), features % 2 == 1
    size = 2 if features > 1024 else int(next_power_of_2(features) != features)
    block_b = _even_block(cdiv(features, lanes), max(1, sizes.LANES_TILE[size] // lanes))
    block_r = max(1, min(sizes.LANES_TILE[size] // (block_b * lanes), next_power_of_2(rows)))
    block_h = max(1, min(sizes.LANES_BLOCKS, block_b // 8, block_b * block_r // (32 * sizes.LANES_WARPS[size])))
    words = sizes.LANES_WORDS and packed and features % 4 == 0
    return Program(
        lanes_kernel, count * cdiv(rows, block_r), rows, *plan.tan, *plan.pairs, *weight, FEATURES=features,
        **common, LANES=lanes // 2, ODD=odd, MANY=count > 1, PACKED=dtype_of(x) if words else None,
        PARTS=sizes.LANES_PARTS and x.element_size() == 4 and not odd, ASM=by_instructions(x),
        LATE=sizes.LANES_LATE and again, BLOCK_G=block_b // block_h, BLOCK_R=block_r, BLOCK_H=block_h,
        words=2 * words, num_warps=sizes.LANES_WARPS[size] * x.element_size() // 2,
        registers=sizes.LANES_REGISTERS[size] if again and _few_registers(plan.layout, x) else 0,
    )  # fmt: skip


def _gather_turn(plan: Plan, weight: tuple[int, int], common: dict[str, int]) -> Program:
    """`turn` of anything else, element by element."""
    features, rows = plan.layout.features, plan.layout.rows
    block_c, block_p, span, warps = _gather_blocks(plan.layout, plan.kind)
    return Program(
        gather_kernel, plan.layout.n * cdiv(features, span) * cdiv(rows, block_p), features, rows, span,
        *plan.layout.strides, *plan.tan, *plan.pairs, *weight, **common, LANES=pairing.lanes(features),
        ODD=features % 2 == 1, KIND=plan.kind, BLOCK_C=block_c, BLOCK_P=block_p, num_warps=warps,
    )  # fmt: skip


def once(plan: Plan, adjoint: bool) -> Program | None:
    """The program that turns about the batch mean in one launch, of (x, y, tan, pairs); None if maps are too large."""
    layout = plan.layout
    features, rows, count = layout.features, layout.rows, layout.n
    block_n, block_p = next_power_of_2(count), next_power_of_2(rows)
    if not _by_pairs(plan) or plan.pairs[0] or block_n * block_p > sizes.ONCE:
        return None
    piece = piece_of(rows)
    return Program(
        once_kernel, features, features, count, rows // piece, plan.tan[0], 1 / (count * rows),
        ADJOINT=adjoint, TAN_EACH=plan.tan[1] != 0, PIECE=piece, BLOCK_N=block_n, BLOCK_P=block_p,
        FOLLOWS=follows(AFTER),
        num_warps=max(1, min(16, block_n * block_p // 512)),
    )  # fmt: skip


def sums(plan: Plan, x: Tensor, turned: bool, weighted: bool, scale: float, packed: bool) -> Sums:
    """The programs for the sum over all rows of w·x, or of tan θ · A x: of (x, partial, w or tan, pairs, seed)."""
    if turned and plan.kind != SHARED:
        return _turned_sums(plan, x, scale, packed)
    weight = plan.tan if turned else plan.weight if weighted else (0, 0)
    common = {"WEIGHT": turned or weighted, "PADDED": weighted, "CODE": turned, "FOLLOWS": follows(AFTER)}
    return (_rows_sums if plan.layout.last else _maps_sums)(plan, x, weight, scale, common)


def _rows_sums(plan: Plan, x: Tensor, weight: tuple[int, int], scale: float, common: dict[str, int]) -> Sums:
    """`sums` with the features last in memory."""
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    each = common["CODE"] and plan.pairs[0] != 0  # every n has a pairing of its own
    if weight[0] == rows * weight[1] and not each:  # no matter which n rows are of
        count, rows = 1, count * rows
    short = features <= sizes.SUM_FEATURES and x.element_size() == 2 and _by_rows(plan, x)
    few = count == 1 and short and x.numel() <= sizes.SMALL_ROWS
    tile = sizes.FEW_TILE if few and _few_registers(plan.layout, x) else _sum_tile(x)
    least = sizes.SUM_LEAST_FEATURES if common["WEIGHT"] and x.element_size() == 2 else 1
    block_c, block_p = _sum_blocks(plan.layout, rows, tile, least)
    tiles, programs = cdiv(features, block_c), sizes.SUM_PARTS[True]
    if x.element_size() == 2 and x.numel() <= sizes.MEDIUM_ROWS:
        programs = max(1, programs // 2)
    per_outer = 1 if each else cdiv(count * tiles, programs)
    outer = cdiv(count, per_outer)
    splits = min(sizes.FEW_PARTS, cdiv(rows, block_p)) if few else _splits(rows, block_p, programs, outer * tiles)
    thread = max(1, min(sizes.SUM_THREAD, block_c * block_p // (32 * sizes.SUM_WARPS)) // _vector(x, features))
    if common["WEIGHT"] and block_p >= 32 * sizes.SUM_WARPS:
        thread = 1  # the compiler gives each thread a row, as weights lie in memory
    program = Program(
        rows_sum_kernel, outer * splits * tiles, features, count, rows, per_outer, splits,
        *weight, plan.pairs[0], scale, **common, BLOCK_C=block_c, BLOCK_P=block_p,
        THREAD=thread, num_warps=sizes.SUM_WARPS,
        registers=_sum_registers(plan.layout, x, sizes.SUM_REGISTERS) if thread > 1 else 0,
    )  # fmt: skip
    return Sums(outer * splits, program, None if few else _finish(features, outer * splits))


def _maps_sums(plan: Plan, x: Tensor, weight: tuple[int, int], scale: float, common: dict[str, int]) -> Sums:
    """`sums` on maps."""
    features, rows, count = plan.layout.features, plan.layout.rows, plan.layout.n
    small = _by_pairs(plan) and x.numel() < sizes.SMALL and rows <= sizes.SMALL_TILE
    block_c, block_p = _sum_blocks(plan.layout, rows, sizes.SMALL_TILE if small else _sum_tile(x))
    tiles = cdiv(features, block_c)
    per_outer = cdiv(count, sizes.FEW_PARTS) if small else cdiv(count * tiles, sizes.SUM_PARTS[False])
    outer = cdiv(count, per_outer)
    splits = 1 if small else _splits(rows, block_p, sizes.SUM_PARTS[False], outer * tiles)
    piece = piece_of(rows)
    program = Program(
        maps_sum_kernel, outer * splits * tiles, features, count, rows // piece, per_outer, splits,
        *weight, plan.pairs[0], scale, **common, PIECE=piece,
        TOGETHER=min(8, next_power_of_2(per_outer)) if small else 1, BLOCK_C=block_c, BLOCK_P=block_p,
        THREAD=max(1, min(sizes.SUM_THREAD, _vector(x, rows), block_c * block_p // (32 * sizes.SUM_WARPS))),
        num_warps=sizes.SUM_WARPS,
        registers=_sum_registers(plan.layout, x, sizes.SMALL_REGISTERS if small else sizes.SUM_REGISTERS),
    )  # fmt: skip
    return Sums(outer * splits, program, None if small else _finish(features, outer * splits))


def _turned_sums(plan: Plan, x: Tensor, scale: float, packed: bool) -> Sums:
    """`sums` of tan θ · A x where every row has a pairing of its own."""
    layout = plan.layout
    features, rows, count = layout.features, layout.rows, layout.n
    lanes, odd = pairing.lanes(features), features % 2 == 1
    if by_lanes(plan):
        words = packed and features % 4 == 0
        part = lanes if words else min(lanes, 4)
        parts = next_power_of_2(features // part)
        block_h = min(sizes.LANES_SUM_PARTS, max(1, parts // 8))
        block_g = min(parts // block_h, max(1, sizes.LANES_SUM_TILE // (part * block_h)))
        block_r = max(1, min(sizes.LANES_SUM_TILE // (block_g * block_h * part), next_power_of_2(rows)))
        tiles = cdiv(features // part, block_g * block_h)
        splits = _splits(rows, block_r, sizes.LANES_SUM_PROGRAMS[words], count * tiles)
        program = Program(
            lanes_sum_kernel, count * splits * tiles, rows, splits, *plan.tan, *plan.pairs, scale,
            FEATURES=features, LANES=lanes, ODD=odd, PACKED=dtype_of(x) if words else None, ASM=by_instructions(x),
            PART=part, BLOCK_G=block_g, BLOCK_R=block_r, BLOCK_H=block_h,
            words=int(words), num_warps=sizes.LANES_SUM_WARPS,
            registers=sizes.LANES_SUM_REGISTERS[words] if piece_of(features) == 16 else 0,
        )  # fmt: skip
        draws = (count - 1) * plan.pairs[0] + (rows - 1) * plan.pairs[1] + 1
        sign_words = draws * cdiv(features // 2, 64)
        signs = Program(signs_kernel, cdiv(sign_words, sizes.SIGNS_BLOCK), sign_words, BLOCK=sizes.SIGNS_BLOCK)
        return Sums(count * splits, program, _finish(features, count * splits), signs, sign_words)
    block_c, block_p = _sum_blocks(layout, rows, _sum_tile(x))
    tiles = cdiv(features, block_c)
    splits = _splits(rows, block_p, sizes.SUM_PARTS[False], count * tiles)
    program = Program(
        gather_sum_kernel, count * splits * tiles, features, rows, splits, *layout.strides, *plan.tan, *plan.pairs,
        scale, LANES=lanes, ODD=odd, KIND=plan.kind, BLOCK_C=block_c, BLOCK_P=block_p,
        num_warps=sizes.SUM_WARPS,
    )  # fmt: skip
    return Sums(count * splits, program, _finish(features, count * splits))


def finish(features: int, parts: int, momentum: float | None = None) -> Program:
    """The program that adds up parts, or that moves a running mean towards their sum: of (parts, sum or mean)."""
    block_c = min(8, next_power_of_2(features))
    block_n = min(8192 // block_c, next_power_of_2(parts))
    return Program(
        finish_kernel, cdiv(features, block_c), features, parts, 0.0 if momentum is None else momentum,
        BLOCK_C=block_c, BLOCK_N=block_n, RUNNING=momentum is not None, FOLLOWS=follows(AFTER),
        num_warps=8, registers=sizes.FEW_REGISTERS[0],
    )  # fmt: skip


def _finish(features: int, parts: int) -> Program | None:
    return None if parts == 1 else finish(features, parts)


def by_instructions(x: Tensor) -> bool:
    """Whether there are instructions to move and round two features of 16 bits: from compute capability 8 on."""
    return sizes.LANES_ASM and torch.cuda.get_device_capability(x.device) >= (8, 0)


def _by_rows(plan: Plan, x: Tensor) -> bool:
    layout = plan.layout
    longest = sizes.ROW_FEATURES[x.element_size() == 4] // (1 if piece_of(layout.features) >= 8 else 2)
    return plan.kind == SHARED and layout.last and layout.features <= longest


def _row_tiles(layout: Layout, height: int, block_c: int) -> int:
    """Tiles of ``height`` rows that a program turns one after the other: several of long rows, if there are many."""
    walk = sizes.ROW_WALK
    long = 1024 < block_c <= sizes.ROW_WALK_FEATURES and piece_of(layout.features) >= 8
    return max(1, walk // height) if long and layout.n * cdiv(layout.rows, walk) >= sizes.ROW_WALK_PROGRAMS else 1


def _by_pairs(plan: Plan) -> bool:
    rows = plan.layout.rows
    return plan.kind == SHARED and not plan.layout.last and rows >= sizes.PAIR_POSITIONS[rows % 2]


def by_lanes(plan: Plan) -> bool:
    """Whether draws are structured and the features last in memory: then groups of lanes move in one piece."""
    return plan.kind == STRUCTURED and plan.layout.last


def dtype_of(x: Tensor) -> Any:
    """Triton's name of a dtype of 16 bits."""
    return tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16


def piece_of(together: int) -> int:
    """The largest power of two that divides a number of elements, 16 at most: so many can be loaded together."""
    return min(16, together & -together)


def _vector(x: Tensor, together: int) -> int:
    """Elements that a thread loads at once, 16 bytes at most, where so many lie together."""
    return min(16 // x.element_size(), piece_of(together))


def _sum_tile(x: Tensor) -> int:
    return sizes.SUM_TILE[x.element_size() == 4]


def _sum_registers(layout: Layout, x: Tensor, most: int) -> int:
    return sizes.FEW_REGISTERS[0] if x.numel() <= sizes.FEW else most if _few_registers(layout, x) else 0


def _few_registers(layout: Layout, x: Tensor) -> bool:
    """Whether a limit of registers costs programs nothing: where 16 elements of 16 bits lie together everywhere."""
    return x.element_size() == 2 and piece_of(layout.features if layout.last else layout.rows) == 16


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
        block_c = min(_even_block(features, sizes.GATHER_TILE), next_power_of_2(features))
        block_p = max(1, min(sizes.GATHER_TILE // block_c, next_power_of_2(rows)))
        return block_c, block_p, features, sizes.GATHER_WARPS[True]
    block_p = min(next_power_of_2(rows), 64 if kind != SHARED else 1024)
    block_c = max(1, min(sizes.GATHER_TILE // block_p, next_power_of_2(features)))
    if kind != SHARED:  # partners differ by position: keep all the features of these positions at hand
        return min(block_c, 32), block_p, features, sizes.GATHER_WARPS[False]
    return block_c, block_p, block_c, sizes.GATHER_WARPS[False]


def _splits(rows: int, block: int, programs: int, others: int) -> int:
    """Into how many parts the rows are split: a part has two tiles at least."""
    return max(1, min(programs // others, cdiv(rows, 2 * block)))


def _sum_blocks(layout: Layout, rows: int, tile: int, least: int = 1) -> tuple[int, int]:
    """Features and rows of a tile; for ``least`` see `sizes.SUM_LEAST_FEATURES`."""
    if layout.last:
        block_c = _even_block(layout.features, sizes.SUM_FEATURES)
        if block_c < least and cdiv(layout.features, least) * least <= 1.25 * layout.features:
            block_c = least
        return block_c, max(1, min(tile // block_c, next_power_of_2(rows)))
    few = cdiv(tile, next_power_of_2(layout.features))
    block_p = min(max(few, sizes.SUM_POSITIONS if tile > sizes.SMALL_TILE else sizes.SMALL_TILE), next_power_of_2(rows))
    return max(1, min(tile // block_p, next_power_of_2(layout.features))), block_p
