"""How a noise changes the correlation of two features (label eq15), and how far Dropout turns them (section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import strength
from ..functional.inputs import check_features
from .law import NoiseLaw
from .moments import check_covariance, correlation_of, total_moments

__all__ = ["PairwiseCorrelation", "Turn", "cosine_squared", "dropout_rotation", "pairwise_correlation"]


@dataclass(frozen=True, eq=False)
class PairwiseCorrelation:
    """The correlation of features with noise (label eq15), its two terms apart.

        cor(x̃ᵢ, x̃ⱼ) = (Σᵢⱼ + Cᵢⱼ) / √((Σᵢᵢ + Vᵢ)·(Σⱼⱼ + Vⱼ))

    Every noise adds variance V, which makes correlations smaller. A rotation takes the noise of a feature from the
    others and so adds a covariance C, the paper's inhibition. About the mean its sign is opposite to that of Σᵢⱼ. About
    the origin C is −λ·(Σᵢⱼ + cᵢcⱼ) / (D − 1), which may outweigh Σᵢⱼ: signs are kept here, to show that the correlation
    changes its sign. It may then be larger than without noise.

    Attributes:
        covariance: Σ, (…, D, D).
        added_variance: V = E[Var[x̃ᵢ | x]], (…, D).
        inhibition: C = E[cov(x̃ᵢ, x̃ⱼ | x)], (…, D, D), zero on the diagonal.

    >>> sigma, inhibition = torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([[0.0, -0.1], [-0.1, 0.0]])
    >>> terms = PairwiseCorrelation(sigma, torch.tensor([1.0, 1.0]), inhibition)
    >>> [round(r[0, 1].item(), 3) for r in (terms.before, terms.by_variance, terms.after)]
    [0.5, 0.25, 0.2]
    """

    covariance: Tensor
    added_variance: Tensor
    inhibition: Tensor

    @property
    def before(self) -> Tensor:
        """The correlation without noise."""
        return correlation_of(self.covariance)

    @property
    def by_variance(self) -> Tensor:
        """The correlation with the added variance V alone, without C."""
        return correlation_of(self.covariance + torch.diag_embed(self.added_variance))

    @property
    def after(self) -> Tensor:
        """The correlation with noise: both terms."""
        return correlation_of(self.covariance + torch.diag_embed(self.added_variance) + self.inhibition)


def pairwise_correlation(
    noise: nn.Module | NoiseLaw, covariance: Tensor, mean: Tensor | None = None
) -> PairwiseCorrelation:
    """How a noise changes the correlation between features of covariance Σ and mean c (label eq15).

    Args:
        noise: a noise layer or its law.
        covariance: Σ, (…, D, D).
        mean: c, (…, D); zero if not given.

    >>> import rotationout as ro
    >>> sigma = torch.tensor([[1.0, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]])
    >>> terms = pairwise_correlation(ro.RotationOut(0.2), sigma)
    >>> [round(r[0, 1].item(), 3) for r in (terms.before, terms.by_variance, terms.after)]
    [0.5, 0.4, 0.35]
    """
    c, sigma = check_covariance(covariance, mean)
    added = total_moments(noise, c, sigma).covariance - sigma
    variance = added.diagonal(dim1=-2, dim2=-1)
    return PairwiseCorrelation(sigma, variance, added - torch.diag_embed(variance))


class Turn(NamedTuple):
    """cos²θ of a random turn: its mean and its standard deviation.

    >>> dropout_rotation(torch.ones(4), 0.5)
    Turn(mean=tensor(0.5000, dtype=torch.float64), std=tensor(0.2500, dtype=torch.float64))
    """

    mean: Tensor
    std: Tensor


def dropout_rotation(x: Tensor, p: float, *, dim: int = -1) -> Turn:
    """How far Dropout itself turns a vector: the moments of cos²θ, θ between x and Dropout(x) (section 2.2).

    With a mask b of zeros and ones cos²θ = Σ bᵢxᵢ² / Σ xᵢ². So its mean is exactly the keep rate 1 − p, for every x,
    and its variance p·(1 − p)·Σ xᵢ⁴ / (Σ xᵢ²)²: "cos²θ ≈ keep rate" holds for a single draw if many features contribute
    to the vector. A vector that is dropped altogether counts as a right angle. NaN for x = 0, which has no direction.

    Args:
        x: vectors.
        p: drop probability.
        dim: their axis.

    >>> mean, std = dropout_rotation(torch.ones(100), 0.2)
    >>> round(mean.item(), 6), round(std.item(), 6)
    (0.8, 0.04)
    """
    rate = strength.check_rate(p)
    axis = check_features(x, dim)
    squares = x.detach().double().movedim(axis, -1) ** 2
    total = squares.sum(-1)
    spread = rate * (1 - rate) * (squares**2).sum(-1)
    return Turn((1 - rate) * total / total, spread.sqrt() / total)


def cosine_squared(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """cos²θ of the angle between vectors; zero where y is zero, as for a right angle.

    >>> cosine_squared(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    tensor(0.5000, dtype=torch.float64)
    """
    left, right = x.detach().double(), y.detach().double()
    lengths = left.square().sum(dim) * right.square().sum(dim)
    return (left * right).sum(dim) ** 2 / torch.where(right.square().sum(dim) == 0, 1.0, lengths)
