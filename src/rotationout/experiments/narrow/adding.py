"""Adds up the sums that several programs computed, in a launch of its own and always in one order, in Triton.

Each program that uses the totals could add them up itself, which would save the launch. But there are hundreds of such
programs, and where several runs share a GPU the total work counts, not the number of launches. Import this only where
triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles

__all__ = ["add_up"]


def add_up(sums: Tensor, total: Tensor, beside: tuple[Tensor, Tensor] | None = None) -> None:
    """Add up sums over their parts.

    Args:
        sums: the sums, (parts, …) in fp32.
        total: where the total is written: as many elements as a part has, in any precision.
        beside: other sums and their total, to add up in the same launch.
    """
    more, other = beside or (sums, total)
    programs, sizes = _shared_out(sums, total)
    others, other_sizes = _shared_out(more, other)
    with torch.cuda.device_of(sums):  # Triton launches on the current device
        _add_up_kernel[(programs + (others if beside else 0),)](
            sums, total, len(sums), more, other, len(more), FIRST=programs, TWO=beside is not None, **sizes,
            **{f"OTHER_{name}": size for name, size in other_sizes.items()},
        )  # fmt: skip


def _shared_out(sums: Tensor, total: Tensor) -> tuple[int, dict[str, int]]:
    """The number of programs, and the block sizes of each."""
    most, numbers = tiles.ADDED
    at_once = min(most, tiles.power_of_two(len(sums)))
    block = numbers // at_once
    return triton.cdiv(total.numel(), block), {"SIZE": total.numel(), "AT_ONCE": at_once, "BLOCK": block}


@triton.jit
def _add_up_kernel(
    sums,
    total,
    parts,
    more,
    other,
    more_parts,
    FIRST: tl.constexpr,
    TWO: tl.constexpr,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
    OTHER_SIZE: tl.constexpr,
    OTHER_AT_ONCE: tl.constexpr,
    OTHER_BLOCK: tl.constexpr,
):
    """The FIRST programs add up sums; if there are TWO kinds, the programs after them add up the others."""
    program = tl.program_id(0)
    if TWO:
        if program < FIRST:
            _add(program, sums, total, parts, SIZE, AT_ONCE, BLOCK)
        else:
            _add(program - FIRST, more, other, more_parts, OTHER_SIZE, OTHER_AT_ONCE, OTHER_BLOCK)
    else:
        _add(program, sums, total, parts, SIZE, AT_ONCE, BLOCK)


@triton.jit
def _add(program, sums, total, parts, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Add up sums (parts, SIZE) over their parts for some of the elements, always in one order."""
    element = program * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        inside = (part < parts)[:, None] & (element < SIZE)[None, :]
        found += tl.load(sums + part[:, None] * SIZE + element[None, :], mask=inside, other=0.0)
    tl.store(total + element, tl.sum(found, 0).to(total.dtype.element_ty), mask=element < SIZE)
