"""Section 3.2: train-mode over test-mode variance by theory, against Monte Carlo and closed forms for the sphere."""

import math

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.analysis import (
    MomentAccumulator,
    NoiseLaw,
    expected_shift,
    limit_ratio,
    relu_moments,
    sample_shift,
    variance_ratio,
)
from rotationout.analysis.moments import Moments


def relu_features(width: int) -> Moments:
    """ReLU of Gaussians whose correlations are those of as many random vectors: about ±1/√D."""
    half = torch.randn(width, width, dtype=torch.float64)
    latent = half @ half.T
    return relu_moments(latent / (latent.diag()[:, None] * latent.diag()).sqrt())


NOISES: list[tuple[str, dict[str, object]]] = [
    ("dropout", {}),
    ("gaussian", {}),
    ("uout", {}),
    ("centred-dropout", {}),
    ("rotation", {}),
    ("rotation", {"center": "batch"}),
]


@pytest.mark.parametrize("placement", ["a", "b"])
@pytest.mark.parametrize(("kind", "options"), NOISES)
def test_ratios_by_monte_carlo(kind: str, options: dict[str, object], placement: str) -> None:
    """Largest of five z-scores below 5.3, exceeded with probability 1e-6."""
    n, c = 100_000, torch.tensor([1.0, 0.5, 0.0, 2.0])
    half = torch.randn(4, 4)
    weight, sigma = torch.randn(5, 4), half @ half.T
    x = c + torch.randn(n, 4) @ half.T
    layer = ro.noise(kind, 0.4, **options)
    train = layer(x @ weight.T) if placement == "a" else layer(x) @ weight.T
    seen = MomentAccumulator(covariance=False)
    seen.update(train)
    test = ((weight @ sigma) * weight).sum(1).double()
    predicted = variance_ratio(layer, weight, c, sigma, placement=placement)
    assert ((seen.variance / test - predicted) / (seen.variance_error / test)).abs().max() < 5.3
    assert (predicted >= 1).all()


def test_centred_dropout_a_is_constant() -> None:
    """Whatever the weights, exactly 1 / keep: the shift that multiplying by the keep rate repairs."""
    features = relu_features(16)
    ratio = variance_ratio(
        ro.noise("centred-dropout", 0.3), torch.randn(50, 16), features.mean, features.covariance, placement="a"
    )
    torch.testing.assert_close(ratio, torch.full((50,), 1 / 0.7, dtype=torch.float64))


@pytest.mark.parametrize("placement", ["a", "b"])
def test_proposition_1_uout_shifts_as_dropout_at_equal_lam(placement: str) -> None:
    features, weight = relu_features(16), torch.randn(8, 16)
    moments = (features.mean, features.covariance)
    dropout, uout = (
        variance_ratio(ro.noise(k, 0.3), weight, *moments, placement=placement) for k in ("dropout", "uout")
    )
    assert torch.equal(dropout, uout)
    weaker = variance_ratio(ro.noise("uout", 0.1), weight, *moments, placement=placement)
    assert (weaker < uout).all()


@pytest.mark.parametrize("placement", ["a", "b"])
@pytest.mark.parametrize("kind", ["dropout", "centred-dropout", "rotation"])
def test_the_expected_shift_has_one_over_d(kind: str, placement: str) -> None:
    half = torch.randn(12, 12, dtype=torch.float64)
    features = relu_moments(half @ half.T)  # of different variances
    c, sigma = features.mean, features.covariance
    weight = torch.randn(4000, 6, 12, dtype=torch.float64)
    weight = weight / weight.norm(dim=-1, keepdim=True)
    layer = ro.noise(kind, 0.5)
    ratio = variance_ratio(layer, weight, c, sigma, placement=placement)
    shift = ((ratio - 1) * ((weight @ sigma) * weight).sum(-1)).mean(1)
    expected = expected_shift(layer, c, sigma)
    squares = sigma.diag().sum() + (0 if kind == "centred-dropout" else c @ c)
    assert expected == pytest.approx((squares / 12).item())
    z = (shift.mean() - expected) / (shift.std() / math.sqrt(len(shift)))
    assert abs(z) < 4.9


def test_the_variance_of_r_on_the_sphere() -> None:
    """With Σ = vI, r_a = 1 + λ + λ·(w·c)² / v and (w·c)² / |c|² ~ Beta(1/2, (D − 1)/2), while r_b is fixed."""
    width, lam = 32, 1.0
    features = relu_moments(torch.eye(width))
    v, c2 = features.variance[0].item(), features.mean[0].item() ** 2
    sample = sample_shift(nn.Dropout(0.5), features.mean, features.covariance, placement="a", layers=2000)
    mean = 1 + lam + lam * c2 / v
    variance = (lam * c2 / v) ** 2 * 2 * (width - 1) / (width + 2)
    count = sample.ratio.numel()
    assert abs(sample.mean - mean) < 4.9 * math.sqrt(variance / count)
    assert sample.variance == pytest.approx(variance, rel=0.06)  # kurtosis about 15: a standard error of 1 %
    fixed = sample_shift(nn.Dropout(0.5), features.mean, features.covariance, placement="b")
    assert fixed.variance < 1e-20
    assert fixed.mean == pytest.approx(mean)


def test_the_observation_and_proposition_3() -> None:
    """As D grows Dropout-b gathers, but not at 1; Dropout-a does not gather, though the paper prints o(1/D)."""
    spread: dict[str, list[float]] = {"a": [], "b": []}
    for width in (64, 256, 1024):
        features = relu_features(width)
        c, sigma = features.mean, features.covariance
        limit = limit_ratio(nn.Dropout(0.5), c, sigma)
        assert limit == pytest.approx(1 + 1 + 1 / (math.pi - 1), rel=1e-6)  # c² / v = 1 / (π − 1)
        found = {}
        for placement in "ab":
            found[placement] = sample_shift(nn.Dropout(0.5), c, sigma, placement=placement, layers=40)
            spread[placement].append(found[placement].variance)
        assert found["b"].mean == pytest.approx(limit, rel=0.05)
        assert (found["b"].maximum < found["a"].maximum).all()
    assert all(0.3 < variance < 0.6 for variance in spread["a"])
    assert spread["b"][0] > 3 * spread["b"][1] > 9 * spread["b"][2]
    assert abs(found["b"].mean - limit) < 0.01  # gathered, far from 1


def test_a_generator_of_its_own_repeats_the_weights() -> None:
    c, sigma = torch.ones(4), torch.eye(4)
    one, other = (
        sample_shift(nn.Dropout(), c, sigma, placement="a", layers=1, generator=torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert one.ratio.shape == (1, 64)
    assert torch.equal(one.ratio, other.ratio)


def test_rotation_gathers_too() -> None:
    features = relu_features(256)
    moments = (features.mean, features.covariance)
    ours, theirs = (
        sample_shift(layer, *moments, generator=torch.Generator().manual_seed(4))
        for layer in (ro.RotationOut(0.5), nn.Dropout(0.5))
    )
    assert limit_ratio(ro.RotationOut(0.5), *moments) == pytest.approx(limit_ratio(nn.Dropout(0.5), *moments))
    assert ours.mean == pytest.approx(theirs.mean, rel=0.01)
    one = sample_shift(ro.RotationOut(0.5, center="batch"), *moments, placement="a", outputs=1000, layers=3)
    assert one.mean == pytest.approx(2.0, rel=0.02)


def test_a_mean_over_few_rows_and_one_that_is_off() -> None:
    features, weight = relu_features(6), torch.randn(4, 6, dtype=torch.float64)
    c, sigma = features.mean, features.covariance
    few = variance_ratio(ro.noise("centred-dropout", 0.5), weight, c, sigma, placement="a", rows=4)
    torch.testing.assert_close(few, torch.full((4,), 1.75, dtype=torch.float64))
    before = variance_ratio(ro.noise("centred-dropout", 0.5), weight, c, sigma, placement="b", rows=4)
    clean = torch.einsum("ni,ij,nj->n", weight, sigma, weight)
    torch.testing.assert_close(before, 1 + 0.75 * (weight**2 @ sigma.diagonal()) / clean)
    exact = NoiseLaw("itself", 1.0, weight @ c)
    torch.testing.assert_close(
        variance_ratio(exact, weight, c, sigma, placement="a"), torch.full((4,), 2.0, dtype=torch.float64)
    )
    origin = variance_ratio(NoiseLaw("itself", 1.0, torch.zeros(4)), weight, c, sigma, placement="a")
    torch.testing.assert_close(origin, variance_ratio(nn.Dropout(0.5), weight, c, sigma, placement="a"))
    several = variance_ratio(exact, weight.expand(3, 4, 6), c, sigma, placement="a")
    torch.testing.assert_close(several, torch.full((3, 4), 2.0, dtype=torch.float64))
    whole = 2 * torch.eye(4, dtype=torch.int64)
    assert limit_ratio(ro.noise("centred-dropout", 0.5), torch.ones(4), whole, rows=4) == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, s: variance_ratio(nn.Dropout(), torch.ones(2, 3), c, s), r"weight must have shape \(…, n, 4\)"),
        (lambda c, s: variance_ratio(nn.Dropout(), torch.ones(2, 4), c, s, placement="c"), "placement must be one of"),
        (lambda c, s: sample_shift(nn.Dropout(), c, s, outputs=0), "outputs must be an integer, at least 1, got 0"),
        (lambda c, s: sample_shift(ro.RotationOut(), c, s, outputs=1, placement="a"), "at least 2 features"),
        (lambda c, s: expected_shift(nn.Dropout(), c[:3], s), "mean must have shape"),
        (
            lambda c, s: variance_ratio(NoiseLaw("itself", 1.0, torch.zeros(1)), torch.ones(2, 4), c, s, placement="a"),
            "about a mean of 1 features, but weight has 2 outputs",
        ),
        (
            lambda c, s: variance_ratio(nn.Dropout(), torch.ones(2, 4), c, s.expand(4, 4, 4)),
            r"covariance \(D, D\) here",
        ),
        (lambda c, s: expected_shift(nn.Dropout(), c.expand(4, 4), s), r"here, got \(4, 4\) and \(4, 4\)"),
        (lambda c, s: limit_ratio(nn.Dropout(), c, s.expand(4, 4, 4)), r"here, got \(4,\) and \(4, 4, 4\)"),
    ],
)
def test_bad_input_says_what_would_be_right(call: object, message: str) -> None:
    assert callable(call)
    c: Tensor = torch.ones(4)
    with pytest.raises(ValueError, match=message):
        call(c, torch.eye(4))
