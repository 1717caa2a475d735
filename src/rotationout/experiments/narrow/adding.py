"""Sums that several programs took, added up in a launch of its own, always in one order, on a GPU in Triton.

The programs that use the sums could each do it for themselves, and a launch less; but there are hundreds of them, and
where several runs share a GPU it is what they do that counts. Import this only where triton is installed.
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


def add_up(sums: Tensor, total: Tensor) -> None:
    """Add up sums (parts, …) in fp32 to a total of as many elements as a part has, of any precision."""
    parts, size = len(sums), total.numel()
    most, numbers = tiles.ADDED
    at_once = min(most, tiles.power_of_two(parts))
    elements = numbers // at_once
    with torch.cuda.device_of(sums):  # Triton launches on the current device
        _add_up_kernel[(triton.cdiv(size, elements),)](sums, total, parts, SIZE=size, AT_ONCE=at_once, BLOCK=elements)


@triton.jit
def _add_up_kernel(sums, total, parts, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of all parts (parts, SIZE), always in one order."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        inside = (part < parts)[:, None] & (element < SIZE)[None, :]
        found += tl.load(sums + part[:, None] * SIZE + element[None, :], mask=inside, other=0.0)
    tl.store(total + element, tl.sum(found, 0).to(total.dtype.element_ty), mask=element < SIZE)
