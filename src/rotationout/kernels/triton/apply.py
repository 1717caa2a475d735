"""The operator on a GPU: one pass over the features, two when it turns about their batch mean.

Here the tensors are brought into the form that the programs in the files beside this one read, and tile sizes
are chosen. Nothing waits for the device. Nothing here is differentiable; `rotationout.kernels.autograd` wraps
it.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from ... import pairing
from .. import reference
from ..memory import in_memory_order
from .lanes import lanes_kernel, lanes_sum_kernel
from .layout import Arranged, Layout, aligned, arrange, cdiv, next_power_of_2
from .sums import exchange_kernel, sum_kernel
from .tables import SHARED, STRUCTURED, gather_kernel, gather_sum_kernel, pairs_kernel

__all__ = ["feature_sum", "rotate", "rotate_centred"]

PAIR_POSITIONS = 16, 192
"""Maps at least this large are turned pair by pair, smaller ones element by element: of an even and an odd size."""
PAIR_TILE, PAIR_WARPS, PAIR_TILES = (1024, 2048), (2, 4), 2
"""Elements of a tile and warps, for large maps and those of up to 64 positions, and tiles of a program. By measurement,
like the next."""
GATHER_TILE, GATHER_WARPS = 1024, (1, 2)
"""Elements of a program, and its warps on maps and with the features last."""
LANES_TILE, LANES_WARPS = (1024, 512, 2048), (1, 1, 4)
"""Elements and warps of a program: for up to 1024 features, if a power of two or not; and for more."""
SUM_TILE, SUM_WARPS = 4096, 4
SUM_PARTS = 2048
"""Programs a sum is spread over, if there is enough to add up."""


def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate`."""
    if (mean is not None and mean.numel() != x.size(dim)) or not _fits(x, dim):
        return reference.rotate(x, mean, tan, index, seed, dim, adjoint)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        draw = arrange(x, tan, index, seed, dim, None)
        return draw.restored(_apply(draw, mean, None, adjoint))


def rotate_centred(
    x: Tensor, weight: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """I + K(I − M), or its adjoint I − (I − M)K: K = tan θ · A, M is the mean over every axis but ``dim``.

    Rows of weight 0 take no part in M, and there tan θ is 0. Either way x is read twice: for a sum over its
    rows, and to be turned; the adjoint sums K x and adds the mean back to every row.
    """
    if not _fits(x, dim):
        return reference.rotate_centred(x, weight, tan, index, seed, dim, adjoint)
    rows = x.numel() // x.size(dim) if weight is None else weight.sum().clamp(min=1)
    with torch.cuda.device_of(x):
        draw = arrange(x, tan, index, seed, dim, weight)
        if adjoint:
            return draw.restored(_apply(draw, None, _turn_sum(draw) / rows, True))
        mean = _sum(draw.layout, draw.dense, draw.weight) / rows
        return draw.restored(_apply(draw, mean, None, False))


def feature_sum(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.feature_sum`."""
    if not _fits(x, dim):
        return reference.feature_sum(x, weight, dim)
    dense, order = in_memory_order(x)
    spread = [] if weight is None else [aligned(weight, order, dim, dense)]
    layout = Layout.of(dense, order.index(dim), spread, None)
    with torch.cuda.device_of(x):
        return _sum(layout, dense, layout.grid(spread[0]) if spread else None)


def _fits(x: Tensor, dim: int) -> bool:
    """Whether the programs take x: it is not empty, fp32 is wide enough, and 32 bits count its rows."""
    return x.numel() > 0 and x.dtype != torch.float64 and x.numel() // x.size(dim) < 2**31


def _apply(draw: Arranged, mean: Tensor | None, shift: Tensor | None, adjoint: bool) -> Tensor:
    """The result of y = x + tan θ · A(x − m) + w·s, with −θ if ``adjoint``."""
    layout, x, tan, index = draw.layout, draw.dense, draw.tan, draw.pairs
    y = torch.empty_like(x)
    if mean is not None:
        mean = mean.reshape(-1).float().contiguous()
    weight = draw.weight if shift is not None else None
    given = {"MEAN": mean is not None, "SHIFT": shift is not None, "WEIGHT": weight is not None}
    mean, shift = (tan if t is None else t for t in (mean, shift))
    w, (weight_n, weight_p) = (tan, (0, 0)) if weight is None else (weight, weight.stride())
    features, rows, count = layout.features, layout.rows, layout.n
    common = {"ADJOINT": adjoint, **given}

    if draw.kind == SHARED and not layout.last and rows >= PAIR_POSITIONS[rows % 2]:
        each = tan.stride(1) != 0
        if each and tan.stride(1) != 1:
            tan = tan.contiguous()
        small = rows <= 64
        block = min(PAIR_TILE[small], next_power_of_2(rows) // (2 if rows > 256 else 1))
        channels = max(1, min(PAIR_TILE[small] // block if rows <= 256 else 1, next_power_of_2(features)))
        tiles = min(PAIR_TILES, cdiv(rows, block))
        strips, splits = cdiv(features, channels), cdiv(rows, block * tiles)
        piece = _piece(rows)
        pairs_kernel[(count * strips * splits,)](
            x, y, tan, index, mean, shift, w, features, rows // piece, strips, splits,
            tan.stride(0), index.stride(0), weight_n, weight_p,
            **common, TAN_EACH=each, PIECE=piece,
            CHANNELS=channels, BLOCK=block, TILES=tiles, num_warps=PAIR_WARPS[small],
        )  # fmt: skip
        return y

    form = {"LANES": pairing.lanes(features), "ODD": features % 2 == 1}
    if draw.kind == STRUCTURED and layout.last:
        lanes = 2 * form["LANES"]
        blocks = cdiv(features, lanes)
        size = 2 if features > 1024 else int(next_power_of_2(features) != features)
        block_b = _even_block(blocks, max(1, LANES_TILE[size] // lanes))
        block_r = max(1, min(LANES_TILE[size] // (block_b * lanes), next_power_of_2(rows)))
        packed = None if given["MEAN"] or given["SHIFT"] else _packed(x, features)
        source, target = (x, y) if packed is None else (_words(x), _words(y))
        lanes_kernel[(count * cdiv(rows, block_r),)](
            source, target, tan, index, draw.seed, mean, shift, w, features, rows,
            *tan.stride(), *index.stride(), weight_n, weight_p,
            **common, **form, PACKED=packed, BLOCK_R=block_r, BLOCK_B=block_b, num_warps=LANES_WARPS[size],
        )  # fmt: skip
        return y

    block_c, block_p, span = _gather_blocks(layout, draw.kind)
    gather_kernel[(count * cdiv(features, span) * cdiv(rows, block_p),)](
        x, y, tan, index, tan if draw.seed is None else draw.seed, mean, shift, w, features, rows, span,
        *layout.strides, *tan.stride(), index.stride(0), index.stride(1), weight_n, weight_p,
        **common, **form, KIND=draw.kind, LAST=layout.last,
        BLOCK_C=block_c, BLOCK_P=block_p, num_warps=GATHER_WARPS[layout.last],
    )  # fmt: skip
    return y


def _packed(x: Tensor, features: int) -> tl.dtype | None:
    """The dtype of features that move two to a word of 32 bits: if they have 16 bits and lie so."""
    if x.element_size() != 2 or features % 4 or x.data_ptr() % 4:
        return None
    return tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16


def _words(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.int32)


def _piece(rows: int) -> int:
    """The largest power of two that divides the rows, 16 at most: elements that can be loaded together."""
    return min(16, rows & -rows)


def _even_block(count: int, limit: int) -> int:
    """The largest power of two up to ``limit`` of which a multiple exceeds ``count`` by an eighth at most."""
    block = min(limit, int(next_power_of_2(count)))
    while block > 8 and cdiv(count, block) * block > 1.125 * count:
        block //= 2
    return block


def _gather_blocks(layout: Layout, kind: int) -> tuple[int, int, int]:
    """Tile of features and rows, and how many features a program walks."""
    if layout.last:
        block_c = min(_even_block(layout.features, GATHER_TILE), next_power_of_2(layout.features))
        block_p = max(1, min(GATHER_TILE // block_c, next_power_of_2(layout.rows)))
        return block_c, block_p, layout.features
    block_p = min(next_power_of_2(layout.rows), 64 if kind != SHARED else 1024)
    block_c = max(1, min(GATHER_TILE // block_p, next_power_of_2(layout.features)))
    if kind != SHARED:  # partners differ by position: keep all the features of these positions at hand
        return min(block_c, 32), block_p, layout.features
    return block_c, block_p, block_c


def _sum(layout: Layout, x: Tensor, weight: Tensor | None) -> Tensor:
    return _sum_parts(layout, x, weight, keep=False).sum(0)


def _sum_parts(layout: Layout, x: Tensor, weight: Tensor | None, keep: bool) -> Tensor:
    """Weighted sums of every feature over parts of the rows (parts, D); with ``keep`` every n is a part."""
    features, rows, count = layout.features, layout.rows, layout.n
    block_c, block_p = _sum_blocks(layout, SUM_TILE)
    tiles = cdiv(features, block_c)
    per_outer = 1 if keep else cdiv(count * tiles, SUM_PARTS)
    outer = cdiv(count, per_outer)
    splits, per_split = _splits(rows, block_p, SUM_PARTS // (outer * tiles))
    partial = torch.empty((outer * splits, features), dtype=torch.float32, device=x.device)
    weight_n, weight_p = (0, 0) if weight is None else weight.stride()
    piece = _piece(rows)
    sum_kernel[(outer * splits * tiles,)](
        x, partial, x if weight is None else weight, features, count, rows // piece, per_outer, splits, per_split,
        weight_n, weight_p, WEIGHT=weight is not None, LAST=layout.last, PIECE=piece,
        BLOCK_C=block_c, BLOCK_P=block_p, num_warps=SUM_WARPS,
    )  # fmt: skip
    return partial.view(outer, splits, features).sum(1) if keep and splits > 1 else partial


def _splits(rows: int, block: int, wanted: int) -> tuple[int, int]:
    """Into how many parts the rows are split, and how many rows each has: a multiple of the block."""
    splits = max(1, min(wanted, cdiv(rows, 4 * block)))
    per_split = cdiv(cdiv(rows, splits), block) * block
    return cdiv(rows, per_split), per_split


def _sum_blocks(layout: Layout, tile: int) -> tuple[int, int]:
    if layout.last:
        block_c = min(256, next_power_of_2(layout.features))
        return block_c, max(1, min(tile // block_c, next_power_of_2(layout.rows)))
    block_p = min(512, next_power_of_2(layout.rows))
    return max(1, min(tile // block_p, next_power_of_2(layout.features))), block_p


def _turn_sum(draw: Arranged) -> Tensor:
    """The sum over all rows of tan θ · A x, shape (D,): A moves out of the sum where rows share it."""
    layout, x, tan, index = draw.layout, draw.dense, draw.tan, draw.pairs
    features, rows, count = layout.features, layout.rows, layout.n
    if draw.kind == SHARED:
        shared = index.stride(0) == 0 or count == 1
        sums = _sum_parts(layout, x, tan, keep=not shared)
        if shared:
            sums = sums.sum(0, keepdim=True)
        return _exchange(sums, index)

    form = {"LANES": pairing.lanes(features), "ODD": features % 2 == 1}
    if draw.kind == STRUCTURED and layout.last:
        block_g = min(next_power_of_2(features // form["LANES"]), max(1, SUM_TILE // form["LANES"]))
        block_r = max(1, min(SUM_TILE // (block_g * form["LANES"]), next_power_of_2(rows)))
        tiles = cdiv(features // form["LANES"], block_g)
        packed = _packed(x, features)
        splits, per_split = _splits(rows, block_r, SUM_PARTS // (count * tiles))
        partial = torch.empty((count * splits, features), dtype=torch.float32, device=x.device)
        lanes_sum_kernel[(count * splits * tiles,)](
            x if packed is None else _words(x), partial, tan, index, draw.seed, features, rows,
            splits, per_split, *tan.stride(), *index.stride(), **form, PACKED=packed,
            BLOCK_R=block_r, BLOCK_G=block_g, num_warps=SUM_WARPS,
        )  # fmt: skip
        return partial.sum(0)

    block_c, block_p = _sum_blocks(layout, SUM_TILE)
    tiles = cdiv(features, block_c)
    splits, per_split = _splits(rows, block_p, SUM_PARTS // (count * tiles))
    partial = torch.empty((count * splits, features), dtype=torch.float32, device=x.device)
    gather_sum_kernel[(count * splits * tiles,)](
        x, partial, tan, index, tan if draw.seed is None else draw.seed, features, rows, splits, per_split,
        *layout.strides, *tan.stride(), index.stride(0), index.stride(1),
        **form, KIND=draw.kind, LAST=layout.last, BLOCK_C=block_c, BLOCK_P=block_p, num_warps=SUM_WARPS,
    )  # fmt: skip
    return partial.sum(0)


def _exchange(sums: Tensor, index: Tensor) -> Tensor:
    """The sum over n of A applied to row n of ``sums`` (n, D), the tables (n, 1, D) or one for all."""
    count, features = sums.shape
    block_n, block_c = min(32, next_power_of_2(count)), min(64, next_power_of_2(features))
    per_part = max(block_n, cdiv(cdiv(count, 64), block_n) * block_n)
    parts = cdiv(count, per_part)
    partial = torch.empty((parts, features), dtype=torch.float32, device=sums.device)
    exchange_kernel[(parts * cdiv(features, block_c),)](
        sums, index, partial, features, count, per_part, index.stride(0), BLOCK_N=block_n, BLOCK_C=block_c
    )
    return partial.sum(0) if parts > 1 else partial[0]
