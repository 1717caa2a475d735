"""Packed sequences (`torch.nn.utils.rnn.PackedSequence`): checks, and the time step and sequence of every row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["check_packed", "places", "with_rows"]


def check_packed(packed: PackedSequence) -> None:
    """Raise a ValueError unless ``packed`` holds feature vectors and its fields agree with each other."""
    data, sizes, order, _ = packed
    if not isinstance(data, Tensor) or data.ndim != 2:
        found = f"shape {tuple(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
        raise ValueError(
            f"the data of a packed sequence must be feature vectors of shape (rows, C), got {found}; "
            "pack a tensor (T, N, C), or (N, T, C) with batch_first=True"
        )
    if sizes.ndim != 1 or sizes.numel() == 0 or sizes.dtype != torch.int64:
        raise ValueError(
            f"batch_sizes of a packed sequence must be a vector of int64, a number for each time step, got {sizes!r}"
        )
    if int(sizes[-1]) < 1 or bool((sizes[1:] > sizes[:-1]).any()) or int(sizes.sum()) != data.size(0):
        raise ValueError(
            f"batch_sizes of a packed sequence must be positive, never grow, and sum to the {data.size(0)} rows of its "
            f"data, got {sizes.tolist()}; build it with pack_padded_sequence or pack_sequence"
        )
    if order is not None and (order.shape != (int(sizes[0]),) or order.device != data.device):
        raise ValueError(
            f"sorted_indices of a packed sequence must number its {int(sizes[0])} sequences, on {data.device}, "
            f"got shape {tuple(order.shape)} on {order.device}"
        )


def with_rows(packed: PackedSequence, rows: Tensor) -> PackedSequence:
    """The same sequences with other features."""
    return PackedSequence(rows, *packed[1:])  # not _replace: torch.compile would lose its fields at a graph break


def places(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The time step and the sequence of every row, each (rows,); sequences are numbered as before packing."""
    rows, device = packed.data.size(0), packed.data.device
    sizes = packed.batch_sizes.to(device)
    time = torch.arange(sizes.numel(), device=device).repeat_interleave(sizes, output_size=rows)
    slot = torch.arange(rows, device=device) - (sizes.cumsum(0) - sizes)[time]
    return time, slot if packed.sorted_indices is None else packed.sorted_indices[slot]
