"""A model that is run to learn something of it, and is afterwards as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["preserved"]


@contextmanager
def preserved(model: nn.Module, *, train: bool | None) -> Iterator[Callable[[], None]]:
    """Run a model without gradients; afterwards its modes and buffers, such as running means, are as they were.

    Args:
        model: any module.
        train: the mode to run it in, or None for the one that each part is in.

    Yields:
        A function that puts the buffers back at once.

    >>> norm = nn.BatchNorm1d(2).eval()
    >>> with preserved(norm, train=True):
    ...     _ = norm(torch.ones(4, 2))
    >>> norm.running_mean, norm.training
    (tensor([0., 0.]), False)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    modes = {module: module.training for module in model.modules()}
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = [
        (module, name, buffer, buffer.clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        for module, name, buffer, kept in buffers:
            buffer.copy_(kept)
            module._buffers[name] = buffer  # a module may have put another tensor in its place

    with torch.no_grad():
        try:
            if train is not None:
                model.train(train)
            yield put_back
        finally:
            put_back()
            for module, mode in modes.items():
                module.training = mode
