"""The moments of the output of any module by Monte Carlo, with standard errors, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import strength
from ..placing._running import arguments
from ._passes import check_model, untouched
from .accumulate import MomentAccumulator
from .moments import Moments

__all__ = ["MomentEstimate", "estimate_moments"]

_CHUNK = 64
"""How many outputs are added at once: enough for an efficient matrix product."""


@dataclass(frozen=True, eq=False)
class MomentEstimate:
    """What `estimate_moments` found.

    Attributes:
        samples: how many outputs were drawn.
        mean: their mean, of the shape of an output.
        variance: their variance, likewise.
        mean_error: the standard error of the mean.
        variance_error: that of the variance.
        covariance: between all elements of an output, (n, n), in the order of ``output.flatten()``; None if it was
            not asked for.
        covariance_error: its standard error.

    >>> found = estimate_moments(nn.Dropout(0.5), torch.ones(2, 3), 1000, vectorized=100)
    >>> found.mean.shape, found.covariance.shape, bool(((found.mean - 1) / found.mean_error).abs().max() < 5)
    (torch.Size([2, 3]), torch.Size([6, 6]), True)
    """

    samples: int
    mean: Tensor
    variance: Tensor
    mean_error: Tensor
    variance_error: Tensor
    covariance: Tensor | None = None
    covariance_error: Tensor | None = None

    def deviations(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """How many standard errors the mean and the covariance are from predicted ones, e.g. `conditional_moments`.

        Where the error is zero, as nothing varies, the deviation is zero if the prediction holds to 1e-6 of the largest
        value, else infinite.
        """
        if self.covariance is None or self.covariance_error is None:
            raise ValueError("the covariance was not estimated; ask for it with covariance=True")
        return (
            _deviation(self.mean, moments.mean, self.mean_error),
            _deviation(self.covariance, moments.covariance, self.covariance_error),
        )


def estimate_moments(
    module: nn.Module,
    x: Any,
    samples: int = 10_000,
    *,
    vectorized: int = 1,
    covariance: bool = True,
    train: bool | None = True,
    output: Callable[[Any], Tensor] | None = None,
) -> MomentEstimate:
    """The moments of the output of a module for a given input, by Monte Carlo, with standard errors.

    Every call sees the module as it is now: buffers such as running means are put back after each. It runs without
    gradients, is repeatable by ``torch.manual_seed``, and its memory does not grow with ``samples``.

    Args:
        module: any module.
        x: its input: a tensor or packed sequence, a tuple of arguments, or a mapping of keyword arguments.
        samples: how many outputs to draw, at least 2.
        vectorized: how many to draw at once by `torch.vmap`. That is faster for small inputs, if vmap supports the
            module, as it does the noises here, but not BatchNorm in train mode.
        covariance: estimate the covariance of all n elements of an output, n² numbers; otherwise variances alone.
        train: the mode of the module in these calls; None leaves every part in its own, e.g. inside
            `rotationout.sampling`.
        output: picks a tensor from what the module returns.

    >>> import rotationout as ro
    >>> from rotationout.analysis import conditional_moments
    >>> layer, x = ro.RotationOut(0.2), torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> measured = estimate_moments(layer, x, 20_000, vectorized=1000)
    >>> mean, spread = measured.deviations(conditional_moments(layer, x))  # in standard errors
    >>> bool(mean.abs().max() < 5), bool(spread.abs().max() < 5)
    (True, True)
    """
    check_model(module)
    samples = strength.check_integer("samples", samples, 2)
    vectorized = strength.check_integer("vectorized", vectorized, 1)
    args, kwargs = arguments(x)
    seen = MomentAccumulator(covariance=covariance)
    shape = torch.Size()

    def call(_: Tensor | None = None) -> Tensor:
        found = module(*args, **kwargs)
        tensor = found if output is None else output(found)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"the module must return a tensor, got {type(tensor).__name__}; pick one with output")
        if tensor.is_complex():
            raise TypeError("the module must return real numbers, got complex ones; pick a part of them with output")
        return tensor

    with untouched(module, random=False) as set_back:
        if train is not None:
            module.train(train)
        while seen.count < samples:
            rows = []
            left = min(max(vectorized, _CHUNK), samples - seen.count)
            while left > 0:
                count = min(vectorized, left)
                drawn = torch.vmap(call, randomness="different")(torch.empty(count)) if count > 1 else call()[None]
                set_back()
                shape = drawn.shape[1:]
                rows.append(drawn.double().flatten(1) if shape else drawn.double().unsqueeze(1))
                left -= count
            seen.update(torch.cat(rows))
    return MomentEstimate(
        samples,
        mean=seen.mean.view(shape),
        variance=seen.variance.view(shape),
        mean_error=seen.mean_error.view(shape),
        variance_error=seen.variance_error.view(shape),
        covariance=seen.covariance if covariance else None,
        covariance_error=seen.covariance_error if covariance else None,
    )


def _deviation(found: Tensor, expected: Tensor, error: Tensor) -> Tensor:
    expected = expected.to(found).view(found.shape)
    off = found - expected
    exact = off.abs() <= 1e-6 * expected.abs().max()
    return torch.where((error == 0) & exact, 0.0, off / error)
