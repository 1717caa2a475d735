"""Noises that multiply every element by a random number of its own: x̃ = m + μ·(x − m) with E μ = 1 and Var μ = λ.

m is the origin or the mean of every feature. About the mean, the variance of the noise does not depend on that mean.
These are the "centred" Dropout-a and Dropout-b of section 3.2 (label 118), for every noise here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import strength
from ..rotation import random_source
from .centred import disturb_about

__all__ = ["centred_dropout", "gaussian_dropout", "multiply", "uout"]


def gaussian_dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    dim: int = -1,
    center: str | Tensor | None = None,
    mask: Tensor | None = None,
    sync: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Multiply every element by 1 + σ·N(0, 1) (Wang and Manning 2013; Srivastava et al. 2014, section 10).

    σ² = λ = p / (1 − p), the variance of Dropout's multiplier. The identity if ``training`` is false or ``p`` is 0.

    Args:
        x: features, fp16, bf16, fp32 or fp64.
        p: drop probability of the equally strong Dropout.
        training: apply the noise.
        dim: the feature axis: 1 for maps (N, C, H, W), −1 for vectors and tokens. Without a centre it does not matter.
        center: the point about which features are multiplied: None, the origin; ``"batch"``, the mean of every feature
            over all other axes, with gradients through it; or a tensor, a mean of shape (D,). A batch mean couples the
            examples of a batch.
        mask: True where there are features and False at padding, broadcast to the shape of ``x`` without ``dim``.
            Padding is passed through and takes no part in a batch mean.
        sync: take the batch mean over all data-parallel processes.
        generator: where the random numbers come from; torch's default generator if not given.

    >>> noisy = gaussian_dropout(torch.ones(10_000), 0.2, generator=torch.Generator().manual_seed(0))
    >>> bool((noisy.var() - 0.25).abs() < 0.02)  # λ = 0.2 / 0.8
    True
    """
    scale, active = _scale("gaussian", p, training)
    return multiply("gaussian", x, scale, active, dim=dim, center=center, mask=mask, sync=sync, generator=generator)


def uout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    dim: int = -1,
    center: str | Tensor | None = None,
    mask: Tensor | None = None,
    sync: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Multiply every element by 1 + Unif(−β, β) (Li et al. 2019, "Uout"; section 3.2), β² / 3 = λ = p / (1 − p).

    Up to p = 0.25, β is at most 1 and no feature changes its sign. The arguments are those of `gaussian_dropout`.

    >>> noisy = uout(torch.ones(10_000), 0.25)
    >>> bool((noisy >= 0).all() and (noisy <= 2).all())
    True
    """
    scale, active = _scale("uout", p, training)
    return multiply("uout", x, scale, active, dim=dim, center=center, mask=mask, sync=sync, generator=generator)


def centred_dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    dim: int = -1,
    center: str | Tensor = "batch",
    mask: Tensor | None = None,
    sync: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Replace elements by the mean of their feature, with probability ``p``, and stretch the others from it.

    x̃ = m + (x − m)·Bernoulli(1 − p) / (1 − p), Dropout of the zero-centred features (section 3.2). The arguments are
    those of `gaussian_dropout`; about the origin this is `torch.nn.functional.dropout`.

    >>> x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])  # means 2 and 20
    >>> dropped = centred_dropout(x, 0.5)
    >>> sorted({0.0, 2.0, 4.0} | set(dropped[:, 0].tolist()))  # m, or twice as far from it
    [0.0, 2.0, 4.0]
    """
    if center is None:
        raise ValueError("center must be 'batch' or a mean; about the origin this is torch.nn.functional.dropout")
    scale, active = _scale("dropout", p, training)
    return multiply("dropout", x, scale, active, dim=dim, center=center, mask=mask, sync=sync, generator=generator)


def _scale(kind: str, p: float, training: bool) -> tuple[float, bool]:
    rate = strength.check_rate(p)
    return strength.convert(rate, "dropout", kind), training and rate > 0.0


def multiply(
    kind: str,
    x: Tensor,
    scale: float | Tensor,
    active: bool,
    *,
    dim: int,
    center: str | Tensor | None,
    mask: Tensor | None,
    sync: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """The noises above, with the parameter of ``kind`` instead of p: a number, or a tensor a schedule may change."""

    # For backward, autograd keeps only the multiplier: for Dropout a byte for each element.
    def multiplied(x: Tensor, mean: Tensor | None, axis: int) -> Tensor:
        centred = x if mean is None else x - mean
        sample = torch.randn_like if kind == "gaussian" else torch.rand_like
        drawn = sample(x, dtype=torch.float32, **random_source(generator, x.device))
        if kind == "dropout":
            kept = torch.where(drawn >= scale, centred, 0.0) / (1 - scale)
            return kept if mean is None else mean + kept
        unit = drawn if kind == "gaussian" else 2 * drawn - 1
        return torch.addcmul(x, (unit * scale).to(x.dtype), centred)

    return disturb_about(x, multiplied, active, dim=dim, center=center, mask=mask, sync=sync)
