"""Replace a network's BatchNorm layers by other normalisations, for the studies of small batches (appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nn.norm import convert_batchnorm

__all__ = ["LABELS", "average_statistics", "normalized"]

LABELS = {"batch": "BatchNorm", "poly": "PolyBatchNorm", "cross": "CrossNorm", "group": "GroupNorm"}
"""The name of each normalisation in tables, in their order."""
GROUPS = 8
"""Groups of GroupNorm: of 2, 4 and 8 channels each in the three stages of a ResNet for small images."""


def normalized(network: nn.Module, norm: str, batch: int, ghost_batch: int = 0) -> nn.Module:
    """Replace the BatchNorm layers of a network. Parameters stay: with one seed all norms have the same weights.

    Args:
        network: a network with BatchNorm layers; changed in place.
        norm: a key of `LABELS`. `rotationout.nn.norm` says what each does in eval mode; GroupNorm (Wu and He 2018) does
            the same in both modes.
        batch: examples per update.
        ghost_batch: how many of them are normalised together; 0 for all.

    >>> normalized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "cross", 128, 16)[1]  # doctest: +ELLIPSIS
    CrossNorm2d(8, eps=1e-05, ..., ghost_batch=16)
    """
    if norm == "group":
        return _grouped(network)
    if norm == "batch" and not ghost_batch:
        return network
    options: dict[str, Any] = {"ghost_batch": ghost_batch or None}
    if norm == "poly":
        options["batch_size"] = ghost_batch or batch
    return convert_batchnorm(network, "ghost" if norm == "batch" else norm, **options)


@torch.no_grad()
def average_statistics(
    model: nn.Module, batches: Iterable[Tensor], forward: Callable[[nn.Module, Tensor], Tensor] | None = None
) -> None:
    """Replace the running statistics by plain means over batches, run in training mode; all have the same weight.

    >>> layer = nn.BatchNorm1d(1)
    >>> average_statistics(layer, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> layer.running_mean, layer.running_var
    (tensor([4.]), tensor([2.]))
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    for batch in batches:
        model(batch) if forward is None else forward(model, batch)


def _grouped(network: nn.Module) -> nn.Module:
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                layer = nn.GroupNorm(GROUPS, child.num_features, child.eps)
                layer.weight, layer.bias = child.weight, child.bias
                setattr(parent, name, layer)
    return network
