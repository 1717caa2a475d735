"""The order in which the axes of a tensor lie in memory: every implementation walks it and leaves its result in it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["in_memory_order"]


def in_memory_order(x: Tensor) -> tuple[Tensor, list[int]]:
    """The axes of x from the outermost in memory to the innermost, without gaps, and which ones they are."""
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda axis: (-strides[axis], axis))
    return x.permute(order).contiguous(), order
