"""Isotropic noise, a rotation in any direction, as a layer; `functional.isotropic` does the work."""

from __future__ import annotations

from ..functional.isotropic import turn_anywhere
from .base import _AxisNoise

__all__ = ["IsotropicNoise"]


class IsotropicNoise(_AxisNoise):
    """Turns every feature vector by a random angle in a random direction; see `rotationout.functional.isotropic_noise`.

    RotationOut without pairs: as strong, with the same mean and covariance, but slower. Every position of a map has a
    direction of its own. The identity in eval mode and at p = 0.

    Args:
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        center: the point to turn about: None, the origin; ``"batch"``, the mean of every feature over all other axes,
            with gradients through it; or ``"running"``, an exponential mean of past batches, saved with the model. Do
            not use a running mean with activation checkpointing: the second forward pass would see it already updated.
        dim: the feature axis: 1 for maps (N, C, H, W), −1 for vectors and tokens.
        num_features: the size of the feature axis, for ``center="running"``.
        momentum: the weight of a new batch in the running mean.
        sync: take means over all data-parallel processes.

    >>> IsotropicNoise(0.2, center="batch", dim=1)
    IsotropicNoise(p=0.2, center=batch, dim=1)
    """

    _strength = "gaussian_tan"
    _noise = staticmethod(turn_anywhere)
    _mixes = True
