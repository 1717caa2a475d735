"""The operator of `reference` on a CPU, in few passes over memory and few allocations.

Nothing here is differentiable; `rotationout.kernels.autograd` wraps it.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import pairing
from . import reference
from .memory import in_memory_order
from .reference import feature_sum, follow_mean, mean_parts

__all__ = [
    "WIDTHS",
    "feature_sum",
    "follow_mean",
    "mean_parts",
    "rotate",
    "rotate_centred",
    "signs_of_bytes",
    "turn_back",
]

WIDTHS = 32
"""The most feature sizes D of which tables are cached: a network that has more makes them anew at every call.

A table has O(D²) entries, so the memory depends on the sizes. Here, where D is a multiple of 16 up to 2048: 32 sizes
spread evenly take 73 MB, the powers of two 9 MB, the 32 largest 162 MB, which is the bound. In
`rotationout.kernels.small`, D up to 1024: 45 MB, 6 MB and 124 MB.
"""


def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate`."""
    dense, order = in_memory_order(x)
    axis = order.index(dim)
    leading = [a - (a > dim) for a in order if a != dim]

    def aligned(t: Tensor) -> Tensor:
        """(…, D or 1) → the axes of ``dense``."""
        full = t.view(*(1,) * (x.ndim - t.ndim), *t.shape)
        return full.permute([*leading, x.ndim - 1]).movedim(-1, axis)

    wide = torch.promote_types(x.dtype, torch.float32)
    turn = aligned((-tan if adjoint else tan).to(wide).unsqueeze(-1))
    centre = None if mean is None else aligned(mean.to(wide))

    features = x.size(dim)
    rows = x.numel() // features
    if seed is not None and index.numel() == rows > 1 and features % 16 == 0 and _is_last(dense, axis):
        words = pairing.sign_words(seed, index, features)
        rotated = _rotate_lanes(dense, centre, turn, aligned(index.unsqueeze(-1)), aligned(words))
    else:
        partner, sign = pairing.partner_and_sign(index, seed, features)
        rotated = _rotate_table(dense, centre, turn, aligned(partner), aligned(sign).to(wide), axis)
    restore = [order.index(a) for a in range(x.ndim)]
    return rotated.to(x.dtype).permute(restore)


rotate_centred = functools.partial(reference.rotate_centred, rotate=rotate)
"""See `rotationout.kernels.reference.rotate_centred`."""
turn_back = functools.partial(reference.turn_back, rotate=rotate)
"""See `rotationout.kernels.reference.turn_back`."""


def _is_last(dense: Tensor, axis: int) -> bool:
    return math.prod(dense.shape[axis + 1 :]) == 1


def _rotate_table(
    dense: Tensor, centre: Tensor | None, turn: Tensor, partner: Tensor, sign: Tensor, axis: int
) -> Tensor:
    """For a table of partners: fetch them in the largest contiguous pieces, then turn in place."""
    source = dense
    if centre is not None and centre.numel() > centre.size(axis):  # a mean that rows do not share: before the fetch
        source, centre = dense - centre, None
    fetched = _fetch(source, partner, axis).to(turn.dtype)
    if centre is None:
        fetched.mul_(sign)
    else:
        partner_centre = centre.expand(partner.shape).gather(axis, partner)
        torch.addcmul(-sign * partner_centre, fetched, sign, out=fetched)
    return torch.addcmul(dense.to(turn.dtype), fetched, turn, out=fetched)


def _fetch(dense: Tensor, partner: Tensor, axis: int) -> Tensor:
    features = dense.size(axis)
    if _is_last(dense, axis) and partner.numel() == features:
        return dense.view(-1, features).index_select(1, partner.flatten()).view_as(dense)
    if not _is_last(dense, axis) and partner.shape[axis + 1 :].numel() == 1:
        chunks = dense.view(-1, math.prod(dense.shape[axis + 1 :]))
        start = torch.arange(0, chunks.size(0), features, device="cpu")
        start = start.view(*dense.shape[:axis], *(1,) * (dense.ndim - axis))
        return chunks.index_select(0, (start + partner).flatten()).view_as(dense)
    return dense.gather(axis, partner.expand_as(dense))


def _rotate_lanes(dense: Tensor, centre: Tensor | None, turn: Tensor, index: Tensor, words: Tensor) -> Tensor:
    """For a structured pairing of its own for every row: eight features (lanes) at a time.

    Signs are computed a byte at a time, with a bit for each lane. A feature that is first in its pair has the bit of
    the pair; one that is second has its complement, with the lanes swapped as in the pairing.
    """
    rows, groups = index.numel(), dense.numel() // index.numel() // 8
    partner, flip, block, second = _lane_tables(index.reshape(-1), groups * 8)
    # Flat first: an axis of size 1 counts as contiguous whatever its stride, but cannot be viewed as bytes.
    bits = words.reshape(-1).contiguous().view(torch.uint8).view(rows, -1).gather(1, block)
    swapped_bits = _swapped_bytes().index_select(0, (flip * 256 + bits).flatten()).view_as(bits)
    signs = (bits & ~second) | (~swapped_bits & second)

    values = dense.to(turn.dtype)
    centred = values if centre is None else values - centre
    position = (torch.arange(0, rows * groups, groups, device="cpu").unsqueeze(1) + partner).flatten()
    position = position.int() if rows * groups < 2**31 else position  # the shorter index is read faster
    fetched = centred.view(-1, 8).index_select(0, position).view(rows, groups, 8)
    lane = (torch.arange(8, device="cpu") ^ flip).unsqueeze(1).expand_as(fetched)
    rotated = signs_of_bytes(turn.dtype).index_select(0, signs.flatten().int()).view_as(fetched)
    rotated = rotated.mul_(fetched.gather(2, lane)).view_as(dense)
    return torch.addcmul(values, rotated, turn, out=rotated)


def _lane_tables(draws: Tensor, features: int) -> tuple[Tensor, ...]:
    """`pairing.structured_groups` of the drawn pairings, from a cached table for up to 2048 features."""
    if features > 2048:
        return _narrowed(pairing.structured_groups(draws, features))
    drawn = draws.int()
    return tuple(table.index_select(0, drawn) for table in _all_lane_tables(features))


@functools.lru_cache(maxsize=WIDTHS)
def _all_lane_tables(features: int) -> tuple[Tensor, ...]:
    """`pairing.structured_groups` of all pairings, which depend on D alone: at most 7 MB, for 2048 features."""
    return _narrowed(
        pairing.structured_groups(torch.arange(pairing.count_structured(features), device="cpu"), features)
    )


@functools.lru_cache(maxsize=2)
def signs_of_bytes(dtype: torch.dtype) -> Tensor:
    """Row b holds +1 where a bit of b is set and −1 where it is not, (256, 8)."""
    return ((torch.arange(256, device="cpu").unsqueeze(1) >> torch.arange(8, device="cpu")) & 1).to(dtype) * 2 - 1


@functools.lru_cache(maxsize=1)
def _swapped_bytes() -> Tensor:
    """Entry 256 u + b is b with bit v moved to v XOR u, for every lane flip u and byte b, (2048,)."""
    lane = torch.arange(8, device="cpu")
    bits = (torch.arange(256, device="cpu").unsqueeze(1) >> (lane ^ lane.view(8, 1, 1))) & 1
    return (bits << lane).sum(-1).to(torch.uint8).flatten()


def _narrowed(tables: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    partner, flip, block, second = tables
    return partner.int(), flip, block, second.to(torch.uint8)
