"""Closed-form moments against Monte Carlo: every noise of the registry, shared draws, means of a few rows, ReLU.

Monte-Carlo comparisons take the largest of at most 1,300 deviations, each in standard errors: 6.5 is exceeded with
probability below 1e-6 over seeds (and never for the fixed seed).
"""

import importlib.util
import math

import pytest
import torch
from tests.core.noise_cases import CASES, TORCHVISION, Case, branches, parameters

import rotationout as ro
from rotationout import strength
from rotationout.analysis import (
    MomentAccumulator,
    conditional_moments,
    estimate_moments,
    noise_law,
    relu_moments,
    total_moments,
)
from rotationout.registry import KINDS

LIMIT = 6.5
WITHOUT = ("dropblock", "weight-drop", "variational-weight-drop")


@pytest.mark.parametrize(("kind", "case"), [p for p in parameters() if p.values[0] not in WITHOUT])
def test_every_noise_of_the_registry_by_monte_carlo(kind: str, case: Case) -> None:
    x = torch.randn(case.shape) + 0.5
    layer = ro.noise(kind, case.p, **case.options())
    case.call(layer, x)  # a running mean has now seen x
    given = (x, x.flip(1)) if case.call is branches else x
    slow = kind in TORCHVISION
    measured = estimate_moments(layer, given, 1000 if slow else 10_000, vectorized=1 if slow else 2000)
    predicted = conditional_moments(layer, given, joint=True)
    if kind == "none":
        assert measured.variance.abs().max() == 0
    for off in measured.deviations(predicted):
        assert off.abs().max() < LIMIT


def test_every_kind_of_the_registry_has_moments_or_says_why_not() -> None:
    reasons = {
        "weight-drop": "no linear function of the weights",
        "cutout": "by where they are",
        "shake-shake": "mixes",
    }
    for kind in KINDS:
        if kind in TORCHVISION and importlib.util.find_spec("torchvision") is None:
            continue
        layer = ro.noise(kind, 0.2, **CASES[kind][0].options())
        if kind in ("cutout", "shake-shake", *WITHOUT):
            reason = reasons.get(kind.removeprefix("variational-"), "rescales by what is left")
            with pytest.raises(TypeError, match=f"{reason}.*estimate_moments"):
                noise_law(layer)
        else:
            assert noise_law(layer).lam == pytest.approx(0.0 if kind == "none" else 0.25)


@pytest.mark.parametrize("side", ["symmetric", "one"])
@pytest.mark.parametrize("law", strength.LAWS)
@pytest.mark.parametrize(("pairing_per", "angle_per"), [("example", "row"), ("batch", "example"), ("row", "batch")])
def test_rotations_that_share_by_monte_carlo(pairing_per: str, angle_per: str, law: str, side: str) -> None:
    layer = ro.RotationOut1d(0.3, pairing_per=pairing_per, angle_per=angle_per, law=law, side=side, center=None)
    x = torch.randn(2, 4, 2)
    measured = estimate_moments(layer, x, 20_000, vectorized=5000)
    for off in measured.deviations(conditional_moments(layer, x, joint=True)):
        assert off.abs().max() < LIMIT


def test_a_wrong_prediction_is_caught() -> None:
    """Positions that turn to one side are correlated: the symmetric prediction is far off, and so is another λ."""
    x = torch.randn(2, 4, 2)
    measured = estimate_moments(ro.RotationOut1d(0.3, center=None), x, 20_000, vectorized=5000)
    for other in (ro.RotationOut1d(0.3, center=None, side="symmetric"), ro.RotationOut1d(0.35, center=None)):
        _, off = measured.deviations(conditional_moments(other, x, joint=True))
        assert off.abs().max() > 2 * LIMIT


@pytest.mark.parametrize("kind", ["centred-dropout", "centred-gaussian", "centred-uout", "rotation", "none"])
def test_total_moments_about_the_mean_of_a_few_rows(kind: str) -> None:
    """A batch mean over n rows keeps (n − 1) / n of the noise."""
    n, batches = 3, 30_000
    half = torch.randn(4, 4) / 2
    c, sigma = torch.tensor([1.0, 0.0, -1.0, 2.0]), half @ half.T + 0.2 * torch.eye(4)
    options = {"center": "batch"} if kind == "rotation" else {}
    layer = ro.noise(kind, 0.4, **options)
    x = c + torch.randn(batches, n, 4) @ torch.linalg.cholesky(sigma).T
    noisy = torch.vmap(layer, randomness="different")(x)
    seen = MomentAccumulator()
    seen.update(noisy[:, 0])  # one row of each batch: independent ones
    total = total_moments(layer, c, sigma, rows=n)
    assert ((seen.mean - total.mean) / seen.mean_error).abs().max() < LIMIT
    assert ((seen.covariance - total.covariance) / seen.covariance_error).abs().max() < LIMIT
    if kind != "none":
        infinite = total_moments(layer, c, sigma)
        assert ((seen.covariance - infinite.covariance) / seen.covariance_error).abs().max() > 2 * LIMIT


def test_relu_moments() -> None:
    half = torch.randn(4, 4, dtype=torch.float64)
    sigma = half @ half.T
    seen = MomentAccumulator()
    seen.update((torch.randn(200_000, 4, dtype=torch.float64) @ torch.linalg.cholesky(sigma).T).relu())
    expected = relu_moments(sigma)
    assert ((seen.mean - expected.mean) / seen.mean_error).abs().max() < LIMIT
    assert ((seen.covariance - expected.covariance) / seen.covariance_error).abs().max() < LIMIT
    one = relu_moments(torch.eye(2))
    torch.testing.assert_close(one.variance, torch.full((2,), 0.5 - 0.5 / math.pi, dtype=torch.float64))
    assert one.covariance[0, 1].abs() < 1e-15
    several = relu_moments(torch.stack([sigma, 4 * sigma]))  # twice as large
    torch.testing.assert_close(several.mean, torch.stack([expected.mean, 2 * expected.mean]))
    torch.testing.assert_close(several.covariance, torch.stack([expected.covariance, 4 * expected.covariance]))
