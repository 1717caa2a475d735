"""Distributions of single values for appendix B: by name, one of torch's, or that of data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..strength import check_choice

__all__ = ["DISTRIBUTIONS", "Distribution", "Source", "as_distribution"]


@dataclass(frozen=True)
class Distribution:
    """What the values of a batch are drawn from.

    Args:
        mean: E[x].
        std: √Var[x].
        sample: draws a tensor of the given shape, in fp64.
        gaussian: whether it is Gaussian; moments are then computed without sampling.

    >>> coin = Distribution(0.5, 0.5, lambda shape: torch.randint(2, shape).double())
    >>> coin.sample((3, 2)).shape
    torch.Size([3, 2])
    """

    mean: float
    std: float
    sample: Callable[[tuple[int, ...]], Tensor]
    gaussian: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf):
            raise ValueError(
                "a distribution needs a finite mean and a finite, positive deviation, "
                f"got mean = {self.mean!r} and std = {self.std!r}"
            )


def _power(k: int) -> Distribution:
    """The distribution of y^k, with y uniform on [0, 1]."""
    mean = 1 / (k + 1)
    std = math.sqrt(1 / (2 * k + 1) - mean**2)
    return Distribution(mean, std, lambda shape: torch.rand(shape, dtype=torch.float64) ** k)


def _laplace(shape: tuple[int, ...]) -> Tensor:
    return torch.distributions.Laplace(*torch.tensor([0.0, 1.0], dtype=torch.float64)).sample(shape)


DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Distribution(0.0, 1.0, lambda shape: torch.randn(shape, dtype=torch.float64), gaussian=True),
    "uniform": _power(1),
    "uniform-square": _power(2),
    "uniform-cube": _power(3),
    "laplace": Distribution(0.0, math.sqrt(2), _laplace),
}
"""The five distributions of appendix B. (It calls all of them sub-Gaussian; Laplace's tails are heavier.)"""

Source = str | Distribution | torch.distributions.Distribution | Tensor
"""A name of `DISTRIBUTIONS`, a `Distribution`, one of torch's, or data to draw values from with replacement."""


def as_distribution(source: Source) -> Distribution:
    """Convert a name, one of torch's distributions, or data to a `Distribution`.

    >>> round(as_distribution("uniform").std, 4), as_distribution(torch.tensor([1.0, 3.0])).mean
    (0.2887, 2.0)
    """
    if isinstance(source, Distribution):
        return source
    if isinstance(source, str):
        return DISTRIBUTIONS[check_choice("distribution", source, DISTRIBUTIONS)]
    if isinstance(source, Tensor):
        data = source.detach().double().flatten().cpu()
        if data.numel() < 2:
            raise ValueError(f"distribution as data needs at least 2 values, got {data.numel()}")
        return Distribution(
            float(data.mean()),
            float(data.std(correction=0)),
            lambda shape: data[torch.randint(data.numel(), shape)],
        )
    if not isinstance(source, torch.distributions.Distribution) or source.batch_shape or source.event_shape:
        raise TypeError(
            f"distribution must be one of {', '.join(DISTRIBUTIONS)}, a Distribution, one of torch.distributions for a "
            f"single number, or a tensor of data, got {source!r}"
        )
    try:
        mean, std = float(source.mean), float(source.stddev)
    except NotImplementedError:
        raise TypeError(
            f"torch does not know the mean and the deviation of {type(source).__name__}: give a Distribution, "
            "or a tensor of values"
        ) from None
    return Distribution(
        mean,
        std,
        lambda shape: source.sample(shape).double().cpu(),
        gaussian=isinstance(source, torch.distributions.Normal),
    )
