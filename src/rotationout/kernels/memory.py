"""The order of the axes of a tensor in memory: implementations go through x in it, and return their result in it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["in_memory_order"]


def in_memory_order(x: Tensor) -> tuple[Tensor, list[int]]:
    """``x`` with its axes permuted from outermost to innermost in memory, without gaps, and that permutation."""
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda axis: (-strides[axis], axis))
    return x.permute(order).contiguous(), order
