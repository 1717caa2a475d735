"""Noise as strong as RotationOut, but without pairs: what is left of a rotation if only its variance counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import strength

__all__ = ["Isotropic"]


class Isotropic(nn.Module):
    """x + t·|x|·u, with t ~ N(0, λ) and a random direction u perpendicular to x, for every row.

    Mean and covariance are those of a rotation (Lemma 1), but no features are paired.

    Args:
        p: drop probability of the equally strong Dropout.
        maps: the features are on axis 1, and x is about the batch mean, as with `RotationOut2d`; else on the last.

    >>> noise, x = Isotropic(0.5), torch.randn(3, 8)
    >>> bool((((noise(x) - x) * x).sum(-1).abs() < 1e-4).all()), noise.eval()(x) is x
    (True, True)
    """

    def __init__(self, p: float, *, maps: bool = False) -> None:
        super().__init__()
        self.sigma, self.maps = strength.convert(p, "dropout", "gaussian_tan"), maps

    def forward(self, x: Tensor) -> Tensor:
        """The same features with noise, in training."""
        if not self.training:
            return x
        if not self.maps:
            return x + self._noise(x)
        rows = x.movedim(1, -1)
        return x + self._noise(rows - rows.mean((0, 1, 2))).movedim(-1, 1)

    def _noise(self, x: Tensor) -> Tensor:
        drawn, square = torch.randn_like(x), x.square().sum(-1, keepdim=True)
        drawn = drawn - x * (drawn * x).sum(-1, keepdim=True) / square.clamp_min(1e-12)
        direction: Tensor = drawn / drawn.norm(dim=-1, keepdim=True)
        return self.sigma * torch.randn_like(square) * square.sqrt() * direction
