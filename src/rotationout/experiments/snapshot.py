"""A copy of a run's state in host memory: what a checkpoint is written from while the run goes on."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["snapshot"]

PIECE_BYTES = 2**25
"""Tensors are gathered up to this size before they leave the device, which needs as much free memory for it."""


def snapshot(state: Any) -> Any:
    """A copy of ``state`` with all tensors on the CPU, in memory of their own and with the same strides.

    Copying hundreds of small tensors from a GPU one by one takes longer than their bytes do, and the GPU waits
    meanwhile. So they are gathered there first, and leave it in a few large pieces.

    Args:
        state: tensors and plain values in dicts, lists and tuples.

    >>> weight = torch.zeros(2)
    >>> kept = snapshot({"step": 3, "weights": [weight]})
    >>> weight += 1
    >>> kept
    {'step': 3, 'weights': [tensor([0., 0.])]}
    """
    tensors: list[Tensor] = []
    _mapped(state, tensors.append)
    kept: list[Tensor | None] = [None if tensor.is_cuda else tensor.detach().clone() for tensor in tensors]
    copies = iter(_gathered([tensor for tensor in tensors if tensor.is_cuda]))
    complete = iter([next(copies) if tensor is None else tensor for tensor in kept])
    return _mapped(state, lambda _: next(complete))


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """``value`` with every tensor changed, in a fixed order."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)  # a state_dict has attributes too
        changed.update({key: _mapped(item, change) for key, item in value.items()})
        return changed
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(item, change) for item in value])
    return value


def _gathered(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU, parts of a few large tensors."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        alike.setdefault((tensor.device, tensor.dtype), []).append(place)
    copies: dict[int, Tensor] = {}
    for places in alike.values():
        for some in _pieces(places, [tensors[place].nbytes for place in places]):
            copies.update(zip(some, _in_one_piece([tensors[place].detach() for place in some]), strict=True))
    return [copies[place] for place in range(len(tensors))]


def _pieces(places: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """``places`` in runs of at most `PIECE_BYTES`, or of one that is larger.

    >>> _pieces([0, 1, 2, 3], [2**24, 2**24, 1, 2**26])
    [[0, 1], [2], [3]]
    """
    pieces: list[list[int]] = []
    filled = PIECE_BYTES
    for place, size in zip(places, sizes, strict=True):
        if filled + size > PIECE_BYTES:
            pieces.append([])
            filled = 0
        pieces[-1].append(place)
        filled += size
    return pieces


def _in_one_piece(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU of tensors of one type, parts of one tensor; each by itself if the device is full."""
    dense = [tensor if _is_dense(tensor) else tensor.contiguous() for tensor in tensors]
    flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in dense]
    try:
        together = flat[0].to("cpu", copy=True) if len(flat) == 1 else torch.cat(flat).cpu()
    except torch.cuda.OutOfMemoryError:
        return [tensor.to("cpu", copy=True) for tensor in tensors]
    starts = [0, *itertools.accumulate(tensor.numel() for tensor in flat)][:-1]
    return [together.as_strided(one.shape, one.stride(), start) for one, start in zip(dense, starts, strict=True)]


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has no gaps and no repeats in memory, in whatever order its axes are there.

    >>> x = torch.zeros(2, 3, 4, 4)
    >>> _is_dense(x.to(memory_format=torch.channels_last)), _is_dense(x[:, :2]), _is_dense(x[:1].expand(5, 3, 4, 4))
    (True, False, False)
    """
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()
