"""The order of the axes of a tensor in memory: implementations go through x in it, and return their result in it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["in_memory_order", "memory_order"]


def memory_order(x: Tensor) -> list[int]:
    """The axes of ``x`` from outermost to innermost in memory."""
    strides = x.stride()
    return sorted(range(x.ndim), key=lambda axis: (-strides[axis], axis))


def in_memory_order(x: Tensor) -> tuple[Tensor, list[int]]:
    """``x`` with its axes permuted from outermost to innermost in memory, without gaps, and that permutation."""
    order = memory_order(x)
    return x.permute(order).contiguous(), order
