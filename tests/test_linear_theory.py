"""The classifier under noise, condition numbers and margins, each against a computation of another kind."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import rotationout as ro
from rotationout.linear import (
    NoisyLogisticRegression,
    _classification,
    boundary_angle,
    condition_numbers,
    flip_probability,
    margin_angle,
    rotation_condition_bound,
)
from rotationout.report.gallery import write
from rotationout.report.gallery.linear import FIGURES


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Matrices are small here: threads would wait for each other longer than they work."""
    with threadpool_limits(1):
        yield


def blobs(n: int, features: int, classes: int) -> tuple[Any, Any]:
    """Classes that overlap, so that there is a best boundary without noise too."""
    rng = np.random.default_rng(features)
    y = rng.integers(0, classes, n)
    return rng.standard_normal((classes, features))[y] + rng.standard_normal((n, features)) + 2, y


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_it_is_logistic_regression(intercept: bool, classes: int) -> None:
    X, y = blobs(200, 4, classes)
    ours = NoisyLogisticRegression(p=0.0, fit_intercept=intercept, tol=1e-8).fit(X, y)
    theirs = LogisticRegression(C=np.inf, fit_intercept=intercept, tol=1e-8, max_iter=1000).fit(X, y)
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.predict_log_proba(X), np.log(ours.predict_proba(X)))
    assert np.isfinite(ours.predict_log_proba(1e6 * X)).all()
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-4)


def expected_loss(X: Any, y: Any, p: float, noise: str) -> Any:
    """E Σ −log softmax / n of Dropout or RotationOut in D = 3 or 2, by enumeration and quadrature, of W and b."""
    features, mean = X.shape[1], X.mean(0)
    if noise == "dropout":
        masks = np.array(list(itertools.product([0, 1], repeat=features)))
        matrices, weights = [np.diag(m / (1 - p)) for m in masks], np.prod(np.where(masks, 1 - p, p), axis=1)
    else:  # a Gaussian tangent, the only pairing in two dimensions
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        tan, weights = nodes * math.sqrt(p / (1 - p)), weights / weights.sum()
        matrices = [np.array([[1, t], [-t, 1]]) for t in tan]

    def loss(parameters: Any) -> float:
        weight, bias = parameters[:features], parameters[features]
        signs = np.where(y == 1, 1, -1)
        return sum(
            float(w * np.logaddexp(0, -signs * ((mean + (X - mean) @ m.T) @ weight + bias)).mean())
            for m, w in zip(matrices, weights, strict=True)
        )

    return loss


@pytest.mark.parametrize(("noise", "features"), [("dropout", 3), ("rotation", 2)])
def test_it_finds_the_least_expected_loss(noise: str, features: int) -> None:
    X, y = blobs(80, features, 2)
    loss = expected_loss(X, y, 0.4, noise)
    best = minimize(loss, np.zeros(features + 1), method="BFGS", options={"gtol": 1e-7}).fun

    def excess(noise: str, p: float) -> float:
        model = NoisyLogisticRegression(noise, p, n_copies=2000, random_state=0).fit(X, y)
        return loss(np.append(model.coef_[0], model.intercept_)) - best

    assert 0 <= excess(noise, 0.4) < 5e-5
    assert excess(noise, 0.3) > 1e-3
    assert excess("gaussian", 0.4) > 1e-4


def test_copies_are_enough_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rows than weights: what is learned under some draws holds under others."""
    X, y = blobs(20, 10, 3)
    fresh = ro.functional.rotation_out(torch.from_numpy(X).repeat(500, 1), 0.5, center=torch.from_numpy(X.mean(0)))

    def loss(n_copies: int | str) -> float:
        model = NoisyLogisticRegression(p=0.5, n_copies=n_copies, random_state=0).fit(X, y)
        return float(-model.predict_log_proba(fresh.numpy())[np.arange(len(fresh)), np.tile(y, 500)].mean())

    best = loss(2000)
    assert loss("auto") < 1.1 * best
    assert loss(2) > 2 * best
    auto, given = (NoisyLogisticRegression(p=0.5, n_copies=n, random_state=0).fit(X, y) for n in ("auto", 150))
    np.testing.assert_array_equal(auto.coef_, given.coef_)  # 100 rows for each of 10 × 3 weights
    monkeypatch.setattr(_classification, "MOST", 1)
    auto, given = (NoisyLogisticRegression(p=0.5, n_copies=n, random_state=0).fit(X, y) for n in ("auto", 1))
    np.testing.assert_array_equal(auto.coef_, given.coef_)


@pytest.mark.parametrize("noise", _classification.NOISES)
def test_the_seed_decides(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(60, 5, 3)
    state = torch.random.get_rng_state()
    first = NoisyLogisticRegression(noise, 0.3, random_state=1).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"
    torch.manual_seed(7)
    np.testing.assert_array_equal(NoisyLogisticRegression(noise, 0.3, random_state=1).fit(X, y).coef_, first.coef_)
    assert not np.allclose(NoisyLogisticRegression(noise, 0.3, random_state=2).fit(X, y).coef_, first.coef_)
    monkeypatch.setattr(_classification, "HELD", 0)  # drawn again at every step
    np.testing.assert_array_equal(NoisyLogisticRegression(noise, 0.3, random_state=1).fit(X, y).coef_, first.coef_)
    monkeypatch.setattr(_classification, "TOGETHER", 1)  # one copy at a time
    first = NoisyLogisticRegression(noise, 0.3, random_state=1).fit(X, y)
    monkeypatch.undo()
    monkeypatch.setattr(_classification, "TOGETHER", X.size + 1)
    np.testing.assert_array_equal(NoisyLogisticRegression(noise, 0.3, random_state=1).fit(X, y).coef_, first.coef_)


def test_shift_and_scale_of_the_features_do_not_matter() -> None:
    X, y = blobs(60, 4, 3)
    first = NoisyLogisticRegression(p=0.3, random_state=0, tol=1e-7).fit(X, y)
    other = NoisyLogisticRegression(p=0.3, random_state=0, tol=1e-7).fit(1e3 * X + 50, y)
    np.testing.assert_allclose(other.predict_proba(1e3 * X + 50), first.predict_proba(X), atol=1e-5)
    single = NoisyLogisticRegression(p=0.3, random_state=0).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(single.predict_proba(X), first.predict_proba(X), atol=5e-3)
    for scale, dtype in [(1e30, np.float32), (1e-30, np.float32), (1e200, np.float64), (1e-200, np.float64)]:
        scaled = (scale * X).astype(dtype)  # their squares overflow or vanish
        model = NoisyLogisticRegression(p=0.3, random_state=0).fit(scaled, y)
        np.testing.assert_allclose(model.predict_proba(scaled), first.predict_proba(X), atol=5e-3)


def test_labels_of_any_kind() -> None:
    X, y = blobs(60, 4, 2)
    names = np.array(["no", "yes"])[y]
    model = NoisyLogisticRegression(p=0.1, random_state=0).fit(X, names)
    assert set(model.predict(X)) == {"no", "yes"}
    assert model.score(X, names) > 0.7


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            NoisyLogisticRegression("noise"),
            "noise must be one of 'rotation', 'dropout', 'gaussian', 'uout', got 'noise'",
        ),
        (NoisyLogisticRegression(p=1.0), "p is a drop probability"),
        (NoisyLogisticRegression(n_copies=0), "n_copies must be an integer, at least 1, or 'auto', got 0"),
    ],
)
def test_wrong_arguments(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.fit(np.eye(4), [0, 1, 0, 1])


def test_wrong_data_and_too_few_steps() -> None:
    with pytest.raises(ValueError, match="at least 2 classes, got one class"):
        NoisyLogisticRegression().fit(np.eye(4), np.ones(4))
    with pytest.raises(ValueError, match=r"1 feature\(s\)"):
        NoisyLogisticRegression().fit(np.ones((4, 1)), [0, 1, 0, 1])
    assert NoisyLogisticRegression("dropout").fit(np.arange(4.0)[:, None], [0, 0, 1, 1]).coef_ > 0, "one will do"
    X, y = blobs(60, 4, 3)
    with pytest.warns(ConvergenceWarning, match="L-BFGS stopped after 2 steps .* raise tol or max_iter = 2"):
        NoisyLogisticRegression(max_iter=2).fit(X, y)


@pytest.mark.parametrize("intercept", [True, False])
def test_condition_numbers_are_those_of_the_matrices(intercept: bool) -> None:
    X, _ = blobs(60, 6, 2)
    X = X * np.geomspace(1, 1e-3, 6)
    Z = X - X.mean(0) if intercept else X
    gram, lam = Z.T @ Z, 0.25
    found = condition_numbers(X, 0.2, fit_intercept=intercept)
    far = condition_numbers(X * 1e170, 0.2, fit_intercept=intercept)
    assert dataclasses.astuple(far) == pytest.approx(dataclasses.astuple(found))
    scaled = Z / np.linalg.norm(Z, axis=0)
    for ours, matrix in {
        found.none: gram,
        found.dropout: gram + lam * np.diag(np.diag(gram)),
        found.dropout_scaled: scaled.T @ scaled + lam * np.eye(6),
        found.rotation: gram + lam * (np.trace(gram) * np.eye(6) - gram) / 5,
    }.items():
        assert ours == pytest.approx(np.linalg.cond(matrix), rel=1e-6)
    assert found.rotation_bound == pytest.approx(5 / lam)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_bound_holds_and_is_reached(p: float) -> None:
    lam, rng = p / (1 - p), np.random.default_rng(0)
    for features in (3, 8, 33):
        X = rng.standard_normal((100, features)) @ rng.standard_normal((features, features))
        found = condition_numbers(X, p)
        assert 1 < found.rotation < found.rotation_bound == rotation_condition_bound(features, p)
        line = np.outer(rng.standard_normal(50), rng.standard_normal(features))
        assert condition_numbers(line, p).rotation == pytest.approx(max((features - 1) / lam, lam / (features - 1)))
        assert found.dropout_scaled <= (features + lam) / lam


def test_dropout_has_no_bound_as_a_feature_fades() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8))
    fading = [condition_numbers(X * np.append(np.ones(7), scale), 0.5) for scale in (1, 1e-2, 1e-4, 1e-6)]
    assert [round(math.log10(c.dropout / fading[0].dropout)) for c in fading] == [0, 4, 8, 12]
    assert all(c.rotation <= 7 for c in fading)
    assert all(c.dropout_scaled == pytest.approx(fading[0].dropout_scaled, rel=1e-6) for c in fading)
    constant = condition_numbers(np.column_stack([X, np.ones(200)]), 0.5)
    assert constant.none == constant.dropout == constant.dropout_scaled == math.inf
    assert constant.rotation <= 8
    assert rotation_condition_bound(8, 0.0) == math.inf


def test_flips_in_the_plane_are_turns_beyond_the_angle() -> None:
    """D = 2: a point crosses if it is turned further than it stands off, in one of two directions."""
    angles = np.radians([-20, 0, 5, 40])
    np.testing.assert_allclose(flip_probability(angles, 0.2, 2), norm.cdf(-np.tan(angles) / 0.5), atol=1e-12)


@pytest.mark.parametrize("features", [4, 10, 64, 1000])
def test_flip_probability_by_another_integral(features: int) -> None:
    """Over the density of ξ, ∝ (1 − ξ²)^(D/2 − 2), instead of its quantiles."""
    for degrees in (1, 4, 15):
        slope = math.tan(math.radians(degrees))

        def integrand(xi: float, slope: float = slope) -> float:
            return (1 - xi**2) ** (features / 2 - 2) * norm.cdf(-slope / xi)

        reach = min(1.0, 12 / math.sqrt(features))
        mass = quad(lambda xi: (1 - xi**2) ** (features / 2 - 2), 0, reach, epsabs=1e-12)[0]
        expected = quad(integrand, 1e-12, reach, epsabs=1e-12)[0] / mass
        assert float(flip_probability(math.radians(degrees), 0.5, features)) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("features", [2, 6, 16])
@pytest.mark.parametrize("pairing", ["permutation", "structured"])
def test_flips_are_those_of_the_operator(features: int, pairing: str) -> None:
    """Points at 12° from random boundaries. False alarms: 1e-6 each (z < 4.9)."""
    samples, beta, p = 50_000, math.radians(12), 0.3
    x, other = torch.randn(2, samples, features, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    other = other - (other * x).sum(1, keepdim=True) * x
    w = math.sin(beta) * x + math.cos(beta) * other / other.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(boundary_angle(x[:5], w[0])[0], beta)
    noisy = ro.functional.rotation_out(x, p, draw=ro.Draw(pairing=pairing))
    flipped = ((noisy * w).sum(1) < 0).double().mean().item()
    expected = float(flip_probability(beta, p, features))
    assert abs(flipped - expected) < 4.9 * math.sqrt(expected * (1 - expected) / samples) + 5e-6


def test_margin_angle_is_the_inverse_and_shrinks_with_width() -> None:
    for features in (2, 8, 256):
        beta = margin_angle(0.4, features, 0.1)
        assert float(flip_probability(beta, 0.4, features)) == pytest.approx(0.1, abs=1e-9)
    ratio = math.tan(margin_angle(0.5, 4000)) / math.tan(margin_angle(0.5, 1000))
    assert ratio == pytest.approx(0.5, rel=0.01)
    assert margin_angle(0.8, 16) > margin_angle(0.2, 16)


def test_angles_on_both_sides_of_the_boundary() -> None:
    rows = np.random.default_rng(0).standard_normal((100, 7))
    for row in rows:  # along w and against it, where rounding might leave the domain of arcsin
        np.testing.assert_allclose(boundary_angle([row, -row], row), [math.pi / 2, -math.pi / 2], atol=1e-7)
    np.testing.assert_allclose(boundary_angle([[1.0, 1.0], [1.0, -1.0]], [0.0, 2.0]), [math.pi / 4, -math.pi / 4])


def test_wrong_angles_and_sizes() -> None:
    with pytest.raises(ValueError, match="angle must be in radians"):
        flip_probability(90, 0.5, 4)
    with pytest.raises(ValueError, match="features must be an even integer, got 5"):
        flip_probability(0.1, 0.5, 5)
    with pytest.raises(ValueError, match="p must be positive"):
        margin_angle(0.0, 4)
    with pytest.raises(ValueError, match=r"flips must be between 0 and ½, got 0\.5"):
        margin_angle(0.5, 4, 0.5)
    with pytest.raises(ValueError, match=r"X must be \(n, D\) and coef \(D,\), got shapes"):
        boundary_angle([[1.0, 0.0]], [1.0])
    with pytest.raises(ValueError, match="rows of zeros"):
        boundary_angle([[0.0, 0.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match="must have no NaN"):
        boundary_angle([[math.nan, 1.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"X must be \(n, D\) and coef \(D,\), got shapes \(2,\) and \(\)"):
        boundary_angle([1.0, 0.0], 1.0)
    with pytest.raises(ValueError, match="features must be an integer, at least 2"):
        rotation_condition_bound(1, 0.5)
    with pytest.raises(ValueError, match=r"1 feature\(s\)"):
        condition_numbers([[1.0], [2.0]])


def test_figures(tmp_path: Any) -> None:
    for path in write(FIGURES, tmp_path):
        assert path.stat().st_size > 1000
        assert len(path.with_suffix(".csv").read_text(encoding="utf-8").splitlines()) > 10
