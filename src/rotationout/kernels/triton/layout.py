"""The layout of features in memory, and where a GPU program finds the pairing and angle of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ... import pairing
from ..memory import in_memory_order
from .launch import Program, Sums
from .pairing import table_kernel
from .tables import EACH, SHARED, STRUCTURED

__all__ = ["Arranged", "Layout", "Plan", "aligned", "arrange", "cdiv", "next_power_of_2"]

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


class Plan:
    """Everything that shapes, strides and dtypes determine about a draw and the features it turns, computed once."""

    def __init__(
        self, layout: Layout, out: tuple[int, ...], tan: Tensor | None, pairs: Tensor | None, weight: Tensor | None
    ) -> None:
        self.layout, self.out = layout, out
        self.tan, self.pairs, self.weight = _steps(tan), _steps(pairs), _steps(weight)
        structured = pairs is not None and pairs.ndim == 2
        self.kind = int(STRUCTURED if structured else EACH if self.pairs[1] else SHARED)
        self.programs: dict[object, Program] = {}
        """Those that turn the features, by what `apply` and `plane` ask of them;"""
        self.sums: dict[object, Sums] = {}
        """those that add them up,"""
        self.once: dict[bool, Program | None] = {}
        """and those that do both, where there are such."""


class Arranged(NamedTuple):
    """Features and what was drawn for them, as programs read it: from the start of each tensor, by a plan's strides."""

    plan: Plan
    x: Tensor
    tan: Tensor | None
    pairs: Tensor | None
    seed: Tensor | None
    weight: Tensor | None

    def empty(self) -> Tensor:
        """Room for the result: with the axes of x, in the order of memory in which programs write."""
        return torch.empty_strided(self.x.shape, self.plan.out, dtype=self.x.dtype, device=self.x.device)


def aligned(t: Tensor, order: list[int], dim: int, dense: Tensor, tail: int = 0) -> Tensor:
    """Expand (…) to the axes of ``dense`` without the features; the last ``tail`` axes stay as they are."""
    lead = len(order) - 1
    full = t.view(*(1,) * (lead + tail - t.ndim), *t.shape) if t.ndim < lead + tail else t
    axes = [a - (a > dim) for a in order if a != dim]
    shape = [n for n, a in zip(dense.shape, order, strict=True) if a != dim]
    return full.permute([*axes, *range(lead, lead + tail)]).expand((*shape, *full.shape[lead:]))


_plans: dict[tuple[object, ...], tuple[Plan, bool]] = {}
"""Plans by shapes and strides, if nothing need be copied, and whether structured draws are turned into tables first.
Working one out takes the host longer than a launch, and models repeat theirs."""


def arrange(
    x: Tensor, tan: Tensor | None, index: Tensor | None, seed: Tensor | None, dim: int, weight: Tensor | None
) -> Arranged:
    """Bring features, and what was drawn for them if anything was, into the form that programs read."""
    index = None if index is None else index.contiguous()
    key = (x.device, dim, seed is None, _form(x), _form(tan), _form(index), _form(weight))
    known = _plans.get(key)
    if known is not None:
        plan, as_table = known
        if as_table and index is not None and seed is not None:
            index, seed = _table(index, seed, plan.layout.features), None
        return Arranged(plan, x, tan, index, seed, weight)

    dense, order = in_memory_order(x)
    as_table = index is not None and seed is not None and not _has_strides(dense, order, dim, index)
    if as_table and index is not None and seed is not None:
        index, seed = _table(index, seed, x.size(dim)), None
    made = _arrange(dense, order, tan, index, seed, dim, weight)
    given = (x, tan, index, weight)
    used = (made.x, made.tan, made.pairs, made.weight)
    if all(a is None or b is None or a.data_ptr() == b.data_ptr() for a, b in zip(given, used, strict=True)):
        if len(_plans) >= 1024:
            _plans.clear()
        _plans[key] = made.plan, as_table
    return made


def _arrange(
    dense: Tensor,
    order: list[int],
    tan: Tensor | None,
    index: Tensor | None,
    seed: Tensor | None,
    dim: int,
    weight: Tensor | None,
) -> Arranged:
    angles, weights = (None if t is None else aligned(t, order, dim, dense) for t in (tan, weight))
    spread = [t for t in (angles, weights) if t is not None]
    pairs = None if index is None else aligned(index, order, dim, dense, tail=int(seed is None))
    layout = Layout.of(dense, order.index(dim), spread, pairs if seed is None or pairs is None else pairs.unsqueeze(-1))
    angles, weights = (None if t is None else layout.grid(t) for t in (angles, weights))
    if angles is not None and not layout.last and angles.stride(1) > 1:  # positions of a map are read side by side
        angles = angles.contiguous()
    if pairs is not None:
        pairs = pairs.reshape(layout.n, layout.rows, -1) if seed is None else layout.grid(pairs)
    axes = [order.index(axis) for axis in range(len(order))]
    out = tuple(dense.stride(axis) for axis in axes)
    return Arranged(Plan(layout, out, angles, pairs, weights), dense.permute(axes), angles, pairs, seed, weights)


def _form(t: Tensor | None) -> tuple[object, ...] | None:
    return None if t is None else (t.shape, t.stride(), t.dtype)


def _steps(grid: Tensor | None) -> tuple[int, int]:
    """The strides of n and p."""
    return (0, 0) if grid is None else (grid.stride(0), grid.stride(1))


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
