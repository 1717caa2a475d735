"""What is measured: RotationOut in its forms, and what people use today, each as a function of the features."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import strength
from ..nn import RotationOut, RotationOut2d

__all__ = ["DEFAULT", "Noise", "authors_formula", "gaussian_dropout", "noises"]

Noise = Callable[[Tensor], Tensor]
DEFAULT = " (default)"
"""What the name of the default form ends with."""


def gaussian_dropout(p: float) -> Noise:
    """Multiply by 1 + σ ε with σ² = p / (1 − p).

    >>> gaussian_dropout(0.2)(torch.zeros(2))
    tensor([0., 0.])
    """
    sigma = strength.convert(p, "dropout", "gaussian")
    return lambda x: x * (1 + sigma * torch.randn_like(x))


def authors_formula(p: float) -> Noise:
    """The expression of the authors' public code, written anew: one P for the batch, one tan θ per example, batch mean.

    The features are on the second axis, as in theirs.

    >>> authors_formula(0.2)(torch.ones(3, 4))  # no feature differs from its mean
    tensor([[1., 1., 1., 1.],
            [1., 1., 1., 1.],
            [1., 1., 1., 1.]])
    """
    sigma = strength.convert(p, "dropout", "gaussian_tan")

    def noise(x: Tensor) -> Tensor:
        features = x.size(1)
        half = features // 2
        order = torch.randperm(features, device=x.device)
        partner = torch.empty_like(order)
        partner[order[:half]], partner[order[half:]] = order[half:], order[:half]
        sign = torch.ones(features, device=x.device).index_fill_(0, order[half:], -1.0)
        shape = [1, features] + [1] * (x.ndim - 2)
        tan = sigma * torch.randn([x.size(0)] + [1] * (x.ndim - 1), device=x.device)
        mean = x.mean([axis for axis in range(x.ndim) if axis != 1], keepdim=True)
        centred = x - mean
        return x + centred[:, partner] * sign.view(shape) * tan

    return noise


def noises(shape: tuple[int, ...], p: float) -> dict[str, Noise]:
    """Every noise that fits features of this shape: (N, D), tokens (N, T, D) or maps (N, C, H, W).

    >>> list(noises((32, 64), 0.2))[:2]
    ['nn.Dropout', 'Gaussian dropout']
    """
    maps = len(shape) == 4
    layer = RotationOut2d if maps else RotationOut
    found: dict[str, Noise] = {
        "nn.Dropout": nn.Dropout(p),
        "Gaussian dropout": gaussian_dropout(p),
        "RotationOut, P per batch": layer(p, center=None, pairing="permutation", pairing_per="batch"),
        f"RotationOut, un-centred{'' if maps else DEFAULT}": layer(p, center=None),
    }
    if maps or math.prod(shape[:-1]) > 1:  # the mean of one vector is that vector
        found[f"RotationOut, batch-centred{DEFAULT if maps else ''}"] = layer(p, center="batch")
    if not maps:  # where it is recommended
        found["RotationOut, gradient in the plane"] = layer(p, gradient="plane")
    if shape[1] % 2 == 0:  # it pairs all of them
        found["authors' formula"] = authors_formula(p)
    if maps:
        found["nn.Dropout2d"] = nn.Dropout2d(p)
        try:
            from torchvision.ops import drop_block2d
        except ImportError:
            return found
        block = min(7, *shape[2:])
        found["DropBlock"] = lambda x: drop_block2d(x, 0.1, block)
    return found
