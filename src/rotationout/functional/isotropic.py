"""Isotropic noise: a vector is turned by a random angle in a uniformly random direction, without pairing features.

RotationOut (label eq6) turns all pairs of features by one angle: what it adds is perpendicular to x and tan θ·|x| long,
and one of finitely many directions, by the pairing. Here the direction is any that is perpendicular to x. Mean and
covariance are the same (Lemma 1), so a comparison of the two shows what pairing features does beyond that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import strength
from ..rotation import random_source
from . import inputs
from .centred import disturb_about

__all__ = ["isotropic_noise", "turn_anywhere"]


def isotropic_noise(
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
    """Add tan θ·|x|·u to every feature vector, with a random direction u perpendicular to it and |u| = 1.

    tan θ is Gaussian with variance λ = p / (1 − p), so this is as strong as RotationOut: E|x̃ − x|² = λ·|x|². The
    identity if ``training`` is false or ``p`` is 0. It draws as many numbers as there are features, where RotationOut
    draws an angle and a pairing, and takes longer.

    Args:
        x: features, fp16, bf16, fp32 or fp64.
        p: drop probability of the equally strong Dropout.
        training: apply the noise.
        dim: the feature axis: 1 for maps (N, C, H, W), −1 for vectors and tokens.
        center: the point to turn about: None, the origin; ``"batch"``, the mean of every feature over all other axes,
            with gradients through it; or a tensor, a mean of shape (D,). A batch mean couples the examples of a batch.
        mask: True where there are features and False at padding, broadcast to the shape of ``x`` without ``dim``.
            Padding is passed through and takes no part in a batch mean.
        sync: take the batch mean over all data-parallel processes.
        generator: where the random numbers come from; torch's default generator if not given.

    >>> x = torch.tensor([[3.0, 4.0, 0.0]])
    >>> added = isotropic_noise(x, 0.2) - x
    >>> bool((added * x).sum().abs() < 1e-5)  # it is perpendicular to x
    True
    """
    rate = strength.check_rate(p)
    sigma = strength.convert(rate, "dropout", "gaussian_tan")
    active = training and rate > 0.0
    return turn_anywhere(x, sigma, active, dim=dim, center=center, mask=mask, sync=sync, generator=generator)


def turn_anywhere(
    x: Tensor,
    sigma: float | Tensor,
    active: bool,
    *,
    dim: int,
    center: str | Tensor | None,
    mask: Tensor | None,
    sync: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """`isotropic_noise` with the deviation of tan θ instead of p: a number, or a tensor that a schedule may change."""
    inputs.check_pairs(x, dim)

    def turned(x: Tensor, mean: Tensor | None, axis: int) -> Tensor:
        z = (x if mean is None else x - mean).to(torch.promote_types(x.dtype, torch.float32))
        source = random_source(generator, x.device)
        drawn = torch.randn_like(z, dtype=torch.float32, **source)
        tan = sigma * torch.randn_like(z.narrow(axis, 0, 1), dtype=torch.float32, **source)
        largest = z.detach().abs().amax(axis, keepdim=True)
        scale = torch.where(largest > 0, largest, 1.0)
        scaled = z / scale  # whose squares neither overflow nor vanish
        square = scaled.square().sum(axis, keepdim=True)
        some = torch.where(square > 0, square, 1.0)  # a vector of zeros stays, with a finite gradient
        across = drawn - scaled * ((drawn * scaled).sum(axis, keepdim=True) / some)
        length = torch.where(square > 0, some.sqrt(), 0.0) * scale
        added: Tensor = tan * length / torch.linalg.vector_norm(across, dim=axis, keepdim=True) * across
        return x + added

    return disturb_about(x, turned, active, dim=dim, center=center, mask=mask, sync=sync)
