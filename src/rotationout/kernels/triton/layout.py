"""How features lie in memory and where a GPU program finds what was drawn for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ... import pairing
from ..memory import in_memory_order
from .pairing import table_kernel
from .tables import EACH, SHARED, STRUCTURED

__all__ = ["Arranged", "Layout", "aligned", "arrange", "cdiv", "next_power_of_2"]

MIN_ROWS = 32
"""A program of fewer rows leaves lanes idle: it pays to copy the angles into a simpler layout."""


def cdiv(n: int, by: int) -> int:
    """A quotient rounded up; triton's own costs the host more than all else here."""
    return -(-n // by)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not less than n."""
    return 1 << (n - 1).bit_length()


class Layout(NamedTuple):
    """How x lies in memory, seen as (n, c, p): see `tables`."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    features: int
    last: bool

    @classmethod
    def of(cls, dense: Tensor, axis: int, spread: Sequence[Tensor], table: Tensor | None) -> Layout:
        """Split the axes of ``dense`` but ``axis`` into n and p.

        On maps the feature axis does it. Otherwise the rows are split as early as can be, but so that what is
        drawn for them, ``spread`` and ``table``, can be found by strides.
        """
        before, after = tuple(dense.shape[:axis]), tuple(dense.shape[axis + 1 :])
        if math.prod(after) > 1:
            return cls(before, after, dense.size(axis), False)
        rows = before + after
        drawn = [t.stride() for t in spread]
        must = [] if table is None else [table.stride()[:-1]]
        split = _split(rows, must + drawn)
        if split is None or (split > 0 and math.prod(rows[split:]) < MIN_ROWS):
            split = _split(rows, must) or 0
        return cls(rows[:split], rows[split:], dense.size(axis), True)

    @property
    def n(self) -> int:
        """How many outer indices there are."""
        return math.prod(self.outer)

    @property
    def rows(self) -> int:
        """How many rows lie together."""
        return math.prod(self.inner)

    @property
    def strides(self) -> tuple[int, int, int]:
        """The strides of n, c and p."""
        n = self.features * self.rows
        return (n, 1, self.features) if self.last else (n, self.rows, 1)

    def grid(self, t: Tensor) -> Tensor:
        """What is drawn for rows, as (n, p); copied only if strides cannot tell where it is."""
        return t.reshape(self.n, self.rows)


class Arranged(NamedTuple):
    """A draw and the features it turns, in the order in which these lie in memory."""

    layout: Layout
    dense: Tensor
    order: list[int]
    tan: Tensor
    pairs: Tensor
    seed: Tensor | None
    weight: Tensor | None

    def restored(self, turned: Tensor) -> Tensor:
        """``turned`` with the axes of x, its memory untouched."""
        if self.order == sorted(self.order):
            return turned
        return turned.permute([self.order.index(axis) for axis in range(turned.ndim)])

    @property
    def kind(self) -> int:
        """SHARED, EACH or STRUCTURED."""
        if self.seed is not None:
            return int(STRUCTURED)
        return int(EACH if self.pairs.stride(1) else SHARED)


def aligned(t: Tensor, order: list[int], dim: int, dense: Tensor, tail: int = 0) -> Tensor:
    """Expand (…) to the axes of ``dense`` without the features; the last ``tail`` axes stay as they are."""
    lead = len(order) - 1
    full = t.view(*(1,) * (lead + tail - t.ndim), *t.shape) if t.ndim < lead + tail else t
    axes = [a - (a > dim) for a in order if a != dim]
    shape = [n for n, a in zip(dense.shape, order, strict=True) if a != dim]
    return full.permute([*axes, *range(lead, lead + tail)]).expand((*shape, *full.shape[lead:]))


class _Views(NamedTuple):
    """An arrangement in which nothing is copied: size and stride of each view."""

    layout: Layout
    order: list[int]
    dense: tuple[tuple[int, ...], tuple[int, ...]]
    tan: tuple[tuple[int, ...], tuple[int, ...]]
    pairs: tuple[tuple[int, ...], tuple[int, ...]]
    weight: tuple[tuple[int, ...], tuple[int, ...]] | None


_known: dict[tuple[object, ...], _Views] = {}
"""Arrangements by shapes and strides. Working one out takes the host longer than a launch, and models repeat theirs."""


def arrange(x: Tensor, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, weight: Tensor | None) -> Arranged:
    """Bring features and what was drawn for them into the form that programs read."""
    others = (None, None) if weight is None else (weight.shape, weight.stride())
    key = (x.shape, x.stride(), dim, tan.shape, tan.stride(), index.shape, index.stride(), seed is None, *others)
    views = _known.get(key)
    if views is not None:
        return Arranged(
            views.layout,
            x.as_strided(*views.dense),
            views.order,
            tan.as_strided(*views.tan),
            index.as_strided(*views.pairs),
            seed,
            None if weight is None or views.weight is None else weight.as_strided(*views.weight),
        )
    found = _arrange(x, tan, index, seed, dim, weight)
    pairs = [(x, found.dense), (tan, found.tan), (index, found.pairs)]
    if weight is not None and found.weight is not None:
        pairs.append((weight, found.weight))
    if all(given.data_ptr() == used.data_ptr() for given, used in pairs):
        if len(_known) >= 1024:
            _known.clear()
        dense, *drawn = ((tuple(used.shape), used.stride()) for _, used in pairs)
        _known[key] = _Views(
            found.layout, found.order, dense, drawn[0], drawn[1], drawn[2] if weight is not None else None
        )
    return found


def _arrange(x: Tensor, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, weight: Tensor | None) -> Arranged:
    dense, order = in_memory_order(x)
    axis, features = order.index(dim), x.size(dim)
    index = index.contiguous()
    if seed is not None and not _has_strides(dense, order, dim, index):
        index, seed = _table(index, seed, features), None
    spread = [aligned(t, order, dim, dense) for t in ([tan] if weight is None else [tan, weight])]
    if seed is None:
        table = aligned(index, order, dim, dense, tail=1)
        layout = Layout.of(dense, axis, spread, table)
        index = table.reshape(layout.n, layout.rows, features)
    else:
        draws = aligned(index, order, dim, dense)
        layout = Layout.of(dense, axis, spread, draws.unsqueeze(-1))
        index = layout.grid(draws)
    grids = [layout.grid(t) for t in spread]
    return Arranged(layout, dense, order, grids[0], index, seed, grids[1] if weight is not None else None)


def _has_strides(dense: Tensor, order: list[int], dim: int, index: Tensor) -> bool:
    """Whether structured draws are read as they are: if strides find them, and on maps if they vary there.

    A draw's place in ``index`` is the number its signs are made from, so a copy in another order will not do.
    """
    axis = order.index(dim)
    shape, strides = dense.shape[:axis] + dense.shape[axis + 1 :], aligned(index, order, dim, dense).stride()
    if math.prod(dense.shape[axis + 1 :]) == 1:
        return _split(shape, [strides]) is not None
    varies = any(n > 1 and stride for n, stride in zip(shape[axis:], strides[axis:], strict=True))
    return varies and _merges(shape[:axis], strides[:axis]) and _merges(shape[axis:], strides[axis:])


def _split(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> int | None:
    """The first place to split the axes such that one stride walks either part, in all of ``strides``."""
    for split in range(len(shape)):
        if all(_merges(shape[:split], s[:split]) and _merges(shape[split:], s[split:]) for s in strides):
            return split
    return 0 if not shape else None


def _merges(shape: Sequence[int], strides: Sequence[int]) -> bool:
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    return all(a[1] == b[1] * b[0] for a, b in pairwise(axes))


def _table(index: Tensor, seed: Tensor, features: int) -> Tensor:
    code = torch.empty((*index.shape, features), dtype=pairing.index_dtype(features), device=index.device)
    block = min(1024, next_power_of_2(features))
    table_kernel[(index.numel() * cdiv(features, block),)](
        index, seed, code, features, LANES=pairing.lanes(features), ODD=features % 2 == 1, BLOCK=block
    )
    return code
