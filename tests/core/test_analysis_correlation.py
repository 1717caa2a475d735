"""The two terms of label eq15, and the turn that Dropout makes, against Monte Carlo and exact enumeration."""

import itertools
import math

import pytest
import torch
from torch import nn

import rotationout as ro
from rotationout.analysis import cosine_squared, dropout_rotation, pairwise_correlation


def features(count: int) -> torch.Tensor:
    """A covariance without structure."""
    half = torch.randn(count, count, dtype=torch.float64)
    return half @ half.T / count


@pytest.mark.parametrize("kind", ["dropout", "gaussian", "uout"])
def test_independent_noise_has_no_inhibition(kind: str) -> None:
    sigma, c = features(5), torch.randn(5, dtype=torch.float64)
    terms = pairwise_correlation(ro.noise(kind, 0.3), sigma, c)
    assert terms.inhibition.abs().max() == 0
    assert torch.equal(terms.after, terms.by_variance)
    lam = 0.3 / 0.7
    torch.testing.assert_close(terms.added_variance, lam * (sigma.diagonal() + c**2))
    off = ~torch.eye(5, dtype=torch.bool)
    assert (terms.after[off].abs() < terms.before[off].abs()).all()


def test_rotation_inhibits_by_lam_over_d_minus_1() -> None:
    """E[cov(x̃ᵢ, x̃ⱼ | x)] = −λ / (D − 1)·cov(xᵢ, xⱼ), the equation below eq15."""
    sigma, lam = features(6), 0.25
    terms = pairwise_correlation(ro.RotationOut(0.2), sigma)
    off = ~torch.eye(6, dtype=torch.bool)
    torch.testing.assert_close(terms.inhibition[off], (-lam / 5 * sigma)[off])
    shrink = terms.after / terms.by_variance
    torch.testing.assert_close(shrink[off], torch.full((30,), 1 - lam / 5, dtype=torch.float64))
    assert (terms.after[off].abs() < terms.by_variance[off].abs()).all()
    torch.testing.assert_close(terms.after.diagonal(), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["dropout", "rotation"])
def test_the_correlation_is_that_of_samples(kind: str) -> None:
    """Within 5 standard errors of a correlation, (1 − ρ²) / √n for Gaussians and less than 3 / √n for products."""
    n, c = 200_000, torch.tensor([0.5, -1.0, 0.0, 1.0])
    sigma = features(4)
    x = c + torch.randn(n, 4) @ torch.linalg.cholesky(sigma).T.float()
    measured = torch.corrcoef(ro.noise(kind, 0.5)(x).double().T)
    terms = pairwise_correlation(ro.noise(kind, 0.5), sigma, c)
    assert (measured - terms.after).abs().max() < 5 * 3 / math.sqrt(n)
    assert (measured - terms.before).abs().max() > 10 * 3 / math.sqrt(n)


def test_batches_of_covariances() -> None:
    sigma = torch.stack([features(4), features(4)])
    together = pairwise_correlation(ro.RotationOut(0.2), sigma).after
    torch.testing.assert_close(together[1], pairwise_correlation(ro.RotationOut(0.2), sigma[1]).after)


def test_how_far_dropout_turns_by_all_masks() -> None:
    x, p = torch.randn(6, dtype=torch.float64), 0.3
    chances, squares = [], []
    for kept in itertools.product([0.0, 1.0], repeat=6):
        chances.append(math.prod(1 - p if keep else p for keep in kept))
        squares.append(cosine_squared(x, x * torch.tensor(kept, dtype=torch.float64)))
    weight, values = torch.tensor(chances, dtype=torch.float64), torch.stack(squares)
    mean = (weight * values).sum()
    turn = dropout_rotation(x, p)
    torch.testing.assert_close(turn.mean, mean)
    torch.testing.assert_close(turn.mean.item(), 0.7)  # the keep rate, exactly
    torch.testing.assert_close(turn.std, (weight * (values - mean) ** 2).sum().sqrt())


@pytest.mark.parametrize("keep", [0.9, 0.8, 0.5])
def test_how_far_dropout_turns_by_monte_carlo(keep: float) -> None:
    """z-scores below 4.9, exceeded with probability 1e-6."""
    n, x = 20_000, torch.randn(64).abs()
    found = cosine_squared(x.expand(n, -1), nn.Dropout(1 - keep)(x.expand(n, -1)))
    turn = dropout_rotation(x, 1 - keep)
    assert abs((found.mean() - turn.mean) / (turn.std / math.sqrt(n))) < 4.9
    assert abs(found.std() / turn.std - 1) < 4.9 * math.sqrt(0.5 / n) * 1.5  # for a kurtosis up to 5.5
    assert abs(found.mean() - keep) < 0.005  # 0.900, 0.800, 0.500


def test_axes_of_vectors() -> None:
    x = torch.randn(2, 5, 3)
    assert dropout_rotation(x, 0.2, dim=1).std.shape == (2, 3)
    torch.testing.assert_close(dropout_rotation(x, 0.2, dim=1).std[1, 2], dropout_rotation(x[1, :, 2], 0.2).std)
    assert cosine_squared(x, 0 * x, dim=1).abs().max() == 0
    with pytest.raises(ValueError, match="p is a drop probability"):
        dropout_rotation(x, 1.0)
    with pytest.raises(TypeError, match="x must be a Tensor, got list"):
        dropout_rotation([1.0, 2.0], 0.2)
    with pytest.raises(TypeError, match="covariance must be a Tensor, got list"):
        pairwise_correlation(ro.RotationOut(0.2), [[1.0, 0.0], [0.0, 1.0]])
