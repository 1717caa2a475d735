"""Sampled noise against closed-form moments.

Each comparison raises a false alarm with probability at most 1e-6 over seeds (and none for the fixed seed): a χ²
statistic must stay below its 1 − 1e-6 quantile, a z-score below 4.9.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rotationout as ro
from rotationout import strength
from rotationout.functional import rotate, rotation_out

Z_LIMIT = 4.9


def chi2_limit(degrees: int) -> float:
    """The 1 − 1e-6 quantile of χ², by Wilson and Hilferty's cube."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.7534 * math.sqrt(spread)) ** 3


def chi2_of_mean(samples: Tensor, expected: Tensor) -> tuple[float, int]:
    """n (m̄ − m)ᵀ C⁻¹ (m̄ − m) on the directions in which samples vary; in the others they must not differ at all."""
    samples, expected = samples.double(), expected.double()
    off = samples.mean(0) - expected
    values, vectors = torch.linalg.eigh(torch.cov(samples.T))
    along = vectors.T @ off
    varies = values > 1e-9 * values.max()
    assert along[~varies].abs().max().item() < 1e-4 if (~varies).any() else True
    return (samples.size(0) * along[varies] ** 2 / values[varies]).sum().item(), int(varies.sum())


def lemma_1(x: Tensor, lam: float) -> Tensor:
    """Var[x̃ | x] = λ / (D − 1) · (xᵀx I − x xᵀ)."""
    return lam / (x.numel() - 1) * (x @ x * torch.eye(x.numel()) - torch.outer(x, x))


def products(noise: Tensor) -> Tensor:
    """The upper triangle of ε εᵀ, a row for every sample."""
    rows, columns = torch.triu_indices(noise.size(1), noise.size(1))
    return noise[:, rows] * noise[:, columns]


def assert_lemma_1(noise: Tensor, x: Tensor, lam: float) -> None:
    statistic, degrees = chi2_of_mean(noise, torch.zeros_like(x))
    assert statistic < chi2_limit(degrees), "E[x̃ − x] is not 0"
    expected = lemma_1(x, lam)[tuple(torch.triu_indices(x.numel(), x.numel()))]
    statistic, degrees = chi2_of_mean(products(noise), expected)
    assert statistic < chi2_limit(degrees), "the covariance is not that of Lemma 1"


def vector_noise(x: Tensor, draw: ro.Draw, p: float, samples: int) -> Tensor:
    rows = x.expand(samples, -1)
    return rotation_out(rows, p, draw=draw) - rows


@pytest.mark.parametrize("side", ["symmetric", "one"])
@pytest.mark.parametrize("law", strength.LAWS)
@pytest.mark.parametrize("pairing", ["permutation", "structured"])
def test_lemma_1_for_every_law(pairing: str, law: str, side: str) -> None:
    x = torch.randn(6) + 0.5
    noise = vector_noise(x, ro.Draw(pairing=pairing, law=law, side=side), 0.3, 200_000)
    assert_lemma_1(noise, x, 0.3 / 0.7)


@pytest.mark.parametrize("features", [2, 3, 4, 5, 7, 8, 12])
@pytest.mark.parametrize("pairing", ["permutation", "structured"])
def test_lemma_1_for_small_sizes_odd_ones_too(pairing: str, features: int) -> None:
    x = torch.randn(features)
    assert_lemma_1(vector_noise(x, ro.Draw(pairing=pairing), 0.5, 200_000), x, 1.0)


def test_independent_signs_inside_a_pair_are_caught() -> None:
    """The mutation that a test of variances alone would pass: u and v disturbed with unrelated signs."""
    x = torch.randn(6)
    rotation = ro.sample_rotation((200_000, 6), 0.5)
    sign = torch.randint(2, rotation.partner.shape) * 2 - 1
    noise = rotation.tan.unsqueeze(-1) * sign * x.expand(200_000, -1).gather(1, rotation.partner)
    with pytest.raises(AssertionError, match="covariance is not that of Lemma 1"):
        assert_lemma_1(noise, x, 1.0)


def test_a_pairing_that_prefers_neighbours_is_caught() -> None:
    x = torch.randn(6)
    rotation = ro.sample_rotation((200_000, 6), 0.5)
    near = ro.Rotation.from_permutation([0, 2, 4, 1, 3, 5], 0.5)
    index = rotation.index.clone()
    index[:4000] = near.index
    noise = rotate(x.expand(200_000, -1), ro.Rotation(rotation.tan, index, 6)) - x
    with pytest.raises(AssertionError, match=r"covariance|E\["):
        assert_lemma_1(noise, x, 1.0)


@pytest.mark.parametrize("pairing", ["permutation", "structured"])
@pytest.mark.parametrize("features", [64, 96, 640])
def test_large_sizes_along_projections(pairing: str, features: int) -> None:
    samples = 20_000
    x = torch.randn(features)
    noise = vector_noise(x, ro.Draw(pairing=pairing), 0.5, samples)
    assert (noise @ x).abs().max() < 1e-4 * (x @ x) * 10, "the noise is orthogonal to x (even D)"
    directions = [torch.randn(features), x + torch.randn(features), torch.eye(features)[3], torch.ones(features)]
    for w in directions:
        squares = (noise @ w).double() ** 2
        expected = (w @ lemma_1(x, 1.0) @ w).item()
        z = (squares.mean() - expected) / (squares.std() / math.sqrt(samples))
        assert abs(z.item()) < Z_LIMIT


@pytest.mark.parametrize("pairing", ["permutation", "structured"])
def test_theta_is_the_angle_between_x_and_its_rotation(pairing: str) -> None:
    x = torch.randn(100, 16, dtype=torch.float64)
    rotation = ro.sample_rotation(x.shape, 0.4, draw=ro.Draw(pairing=pairing))
    y = rotate(x, rotation)
    angle = torch.acos(torch.nn.functional.cosine_similarity(x, y))
    torch.testing.assert_close(angle, rotation.theta.abs().double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1) / rotation.theta.double().cos(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("law", "side", "p", "expected"),
    [
        ("gaussian_tan", "symmetric", 0.2, 0.0),
        ("uniform_angle", "symmetric", 0.2, 0.0),
        ("gaussian_tan", "one", 0.2, 2 / math.pi),
        ("uniform_tan", "one", 0.2, 3 / 4),
        ("uniform_angle", "one", 0.1, 0.734),
        ("uniform_angle", "one", 0.5, 0.638),
    ],
)
def test_correlation_between_positions(law: str, side: str, p: float, expected: float) -> None:
    examples = 60_000
    x = torch.randn(8).view(1, 8, 1).expand(examples, 8, 2)
    draw = ro.Draw(pairing_per="example", side=side, law=law)
    noise = rotation_out(x, p, dim=1, draw=draw) - x
    ours, theirs = noise.unbind(-1)
    products_, squares = (ours * theirs).sum(1).double(), (ours**2 + theirs**2).sum(1).double() / 2
    correlation = products_.mean() / squares.mean()
    error = (products_ - correlation * squares).std() / squares.mean() / math.sqrt(examples)
    rounding = 6e-4 if law == "uniform_angle" and side == "one" else 0.0  # those are known to three digits
    assert abs(correlation.item() - expected) < Z_LIMIT * error.item() + rounding


@pytest.mark.parametrize("law", strength.LAWS)
@pytest.mark.parametrize("side", ["symmetric", "one"])
def test_angle_laws(law: str, side: str) -> None:
    for p in (0.1, 0.6):
        tan = ro.sample_rotation((400_000, 2), p, draw=ro.Draw(law=law, side=side)).tan.double()
        squares = tan**2
        z = (squares.mean() - p / (1 - p)) / (squares.std() / math.sqrt(tan.numel()))
        assert abs(z.item()) < Z_LIMIT
        assert (tan.min() >= 0) == (side == "one")
        if law == "gaussian_angle":
            assert tan.abs().max() <= math.tan(strength.ANGLE_LIMIT) + 1e-4


def test_gaussian_angle_stays_finite_when_narrow() -> None:
    draw = ro.Draw(law="gaussian_angle")
    assert ro.sample_rotation((2_000_000, 2), 1e-4, draw=draw).tan.abs().max() < 0.1


@pytest.mark.parametrize(
    ("shape", "block_size", "coverage"),
    [((9,), 3, 0.3), ((6, 5), 2, 0.5), ((7, 7), 7, 0.1), ((3, 4), 5, 0.5), ((4, 3, 5), 2, 0.25), ((5, 5), 1, 0.5)],
)
def test_coverage_is_exact_at_every_position(shape: tuple[int, ...], block_size: int, coverage: float) -> None:
    examples = 40_000
    blocks = ro.rotation.sample_blocks((examples, *shape), len(shape), block_size, coverage, None, None)
    share = blocks.flatten(1).double().mean(0)
    error = math.sqrt(coverage * (1 - coverage) / examples)
    assert ((share - coverage).abs() / error).max() < 5.5  # the largest of at most 60 positions


def test_full_coverage_and_a_lone_block() -> None:
    assert ro.rotation.sample_blocks((2, 5, 5), 2, 3, 1.0, None, None).all()
    for _ in range(200):
        blocks = ro.rotation.sample_blocks((12,), 1, 4, 0.02, None, None)
        if 0 < blocks.sum() <= 4:  # one block, perhaps cut at the border
            where = blocks.nonzero().flatten()
            assert where.max() - where.min() + 1 == len(where)


@pytest.mark.parametrize("centre", [None, "batch"])
def test_a_batch_mean_keeps_its_share_of_the_noise(centre: str | None) -> None:
    """Centring on a mean over n values leaves (n − 1) / n of the noise energy."""
    n, repeats = 4, 40_000
    turn: Callable[[Tensor], Tensor] = torch.vmap(
        lambda rows: rotation_out(rows, 0.5, center=centre), randomness="different"
    )
    x = torch.randn(repeats, n, 6)
    energy = (turn(x) - x).double().pow(2).sum((1, 2))
    expected = 6 * n * ((n - 1) / n if centre else 1.0)
    z = (energy.mean() - expected) / (energy.std() / math.sqrt(repeats))
    assert abs(z.item()) < Z_LIMIT
