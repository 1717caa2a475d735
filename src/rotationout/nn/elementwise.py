"""Gaussian dropout, Uout and centred Dropout (sections 2.1, 3.2) as layers; `functional.elementwise` does the work."""

from __future__ import annotations

from functools import partial

from ..functional.elementwise import multiply
from .arguments import NEVER_IN_PLACE, checked
from .base import _AxisNoise

__all__ = ["CentredDropout", "GaussianDropout", "Uout"]


class GaussianDropout(_AxisNoise):
    """Multiplies every element by 1 + σ·N(0, 1), σ² = λ = p / (1 − p); see `rotationout.functional.gaussian_dropout`.

    The identity in eval mode and at p = 0.

    Args:
        p: drop probability of the equally strong Dropout.
        center: the point about which features are multiplied: None, the origin; ``"batch"``, the mean of every feature
            over all other axes, with gradients through it; or ``"running"``, an exponential mean of past batches, saved
            with the model. Do not use a running mean with activation checkpointing: the second forward pass would see
            it already updated.
        dim: the feature axis: 1 for maps (N, C, H, W), −1 for vectors and tokens. Without a centre it does not matter.
        num_features: the size of the feature axis, for ``center="running"``.
        momentum: the weight of a new batch in the running mean.
        sync: take means over all data-parallel processes.

    >>> GaussianDropout(0.2, center="batch", dim=1)
    GaussianDropout(p=0.2, center=batch, dim=1)
    """

    _strength = "gaussian"
    _noise = staticmethod(partial(multiply, "gaussian"))


class Uout(_AxisNoise):
    """Multiplies every element by 1 + Unif(−β, β), β² / 3 = λ = p / (1 − p); see `rotationout.functional.uout`.

    The identity in eval mode and at p = 0. The arguments are those of `GaussianDropout`.

    >>> Uout(0.25)  # β = 1
    Uout(p=0.25)
    """

    _strength = "uout"
    _noise = staticmethod(partial(multiply, "uout"))


class CentredDropout(_AxisNoise):
    """Dropout of the zero-centred features, x̃ = m + Dropout(x − m); see `rotationout.functional.centred_dropout`.

    Directly before BatchNorm it is the paper's centred Dropout-a, before a weight layer its centred Dropout-b (section
    3.2). The variance of the noise is λ·(x − m)² with λ = p / (1 − p). The identity in eval mode and at p = 0; about
    the origin it is `torch.nn.Dropout`. The arguments are those of `GaussianDropout`.

    >>> CentredDropout(0.5, dim=1)
    CentredDropout(p=0.5, center=batch, dim=1)
    """

    _strength = "dropout"
    _noise = staticmethod(partial(multiply, "dropout"))

    @checked(NEVER_IN_PLACE)
    def __init__(
        self,
        p: float = 0.5,
        *,
        center: str = "batch",
        dim: int = -1,
        num_features: int | None = None,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        if center is None:
            raise ValueError("center must be 'batch' or 'running'; about the origin this is torch.nn.Dropout")
        super().__init__(p, center=center, dim=dim, num_features=num_features, momentum=momentum, sync=sync)
