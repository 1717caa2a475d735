"""Regression under noise: closed forms against enumeration, Monte Carlo, Ridge and refits."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import rotationout as ro
from rotationout.functional import centred_dropout, rotation_out
from rotationout.linear import (
    DropoutRegressor,
    DropoutRegressorCV,
    NoisyLogisticRegression,
    RotationOutRegressor,
    RotationOutRegressorCV,
    _sample,
    _solve,
)

REGRESSORS = [RotationOutRegressor, DropoutRegressor]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Matrices are small here: threads would wait for each other longer than they work."""
    with threadpool_limits(1):
        yield


@parametrize_with_checks(
    [
        RotationOutRegressor(),
        RotationOutRegressor(solver="cg", fit_intercept=False),
        DropoutRegressor(),
        RotationOutRegressorCV(),
        DropoutRegressorCV(),
        DropoutRegressorCV(cv=3),
        NoisyLogisticRegression(n_copies=4),
        NoisyLogisticRegression("dropout", n_copies=4),
    ]
)
def test_estimators_are_scikit_learns(estimator: Any, check: Any) -> None:
    check(estimator)


def data(n: int, features: int, *, targets: int = 2, mean: float = 1.0) -> tuple[Any, Any, Any]:
    """Features of unequal scale about a mean, targets, and weights among which there are zeros."""
    rng = np.random.default_rng(n * 1000 + features)
    X = rng.standard_normal((n, features)) * rng.uniform(0.3, 2, features) + mean * rng.standard_normal(features)
    X[:, 0] += 0.8 * X[:, 1]
    y = X @ rng.standard_normal((features, targets)) + rng.standard_normal((n, targets)) + 3
    return X, y, rng.integers(0, 4, n).astype(float)


def lam_of(p: float) -> float:
    return p / (1 - p)


def centre(X: Any, s: Any, intercept: bool) -> Any:
    return s @ X / s.sum() if intercept else np.zeros(X.shape[1])


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("n", "features"), [(200, 7), (20, 31), (12, 12)])
def test_ridge_identity(n: int, features: int, intercept: bool, solver: str) -> None:
    """w_Rot = (D − 1)/(D − 1 − λ) · Ridge(α = λ·tr(ZᵀZ)/(D − 1 − λ)), an oracle that knows nothing of noise."""
    X, y, s = data(n, features)
    for p in (0.01, 0.3, 0.8):
        left = features - 1 - lam_of(p)
        trace = (s[:, None] * (X - centre(X, s, intercept)) ** 2).sum()
        ridge = Ridge(alpha=lam_of(p) * trace / left, fit_intercept=intercept).fit(X, y, s)
        ours = RotationOutRegressor(p, fit_intercept=intercept, solver=solver, tol=1e-14).fit(X, y, s)
        expected = (features - 1) / left * ridge.coef_
        np.testing.assert_allclose(ours.coef_, expected, rtol=0, atol=1e-10 * abs(expected).max())
        mean = centre(y, s, intercept) - centre(X, s, intercept) @ expected.T
        np.testing.assert_allclose(ours.intercept_, mean, atol=1e-9)


def every_rotation(features: int, p: float) -> tuple[Any, Any]:
    """All R of a noise with tan θ = ±√λ, which is Lemma 1's as any other law is, and their equal probabilities."""
    tan = math.sqrt(lam_of(p) * (features / (features - 1) if features % 2 else 1))
    found = [
        ro.Rotation.from_permutation(order, torch.tensor(sign * math.atan(tan), dtype=torch.float64)).matrix().numpy()
        for order in itertools.permutations(range(features))
        for sign in (1, -1)
    ]
    return np.stack(found), np.full(len(found), 1 / len(found))


def every_mask(features: int, p: float) -> tuple[Any, Any]:
    """All masks of Dropout as matrices, and their probabilities."""
    masks = np.array(list(itertools.product([0, 1], repeat=features)))
    return np.stack([np.diag(mask / (1 - p)) for mask in masks]), np.prod(np.where(masks, 1 - p, p), axis=1)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("features", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("regressor", "every"), [(RotationOutRegressor, every_rotation), (DropoutRegressor, every_mask)]
)
def test_closed_form_is_least_squares_on_every_noisy_copy(
    regressor: Any, every: Any, features: int, intercept: bool
) -> None:
    """eq8 without an expectation: each draw as rows of a data set, weighted by its probability."""
    X, y, s = data(25, features)
    p = 0.35
    matrices, probabilities = every(features, p)
    m = centre(X, s, intercept)
    copies = (m + (X - m) @ np.swapaxes(matrices, 1, 2)).reshape(-1, features)
    weights = np.multiply.outer(probabilities, s).ravel()
    brute = LinearRegression(fit_intercept=intercept).fit(copies, np.tile(y, (len(matrices), 1)), weights)
    ours = regressor(p, fit_intercept=intercept).fit(X, y, s)
    np.testing.assert_allclose(ours.coef_, brute.coef_, atol=1e-10)
    np.testing.assert_allclose(ours.intercept_, brute.intercept_, atol=1e-9)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_gradient_of_the_sampled_loss_is_zero(regressor: Any) -> None:
    """With the layers' own operators. False alarms: 1e-6 for each regressor (χ² of a mean, 6 derivatives)."""
    X, y, _ = data(40, 5, targets=1)
    p, copies = 0.4, 20_000
    model = regressor(p).fit(X, y[:, 0])

    def statistic(w: Any) -> float:
        x = torch.from_numpy(X).repeat(copies, 1)
        mean = torch.from_numpy(X.mean(0))
        noisy = (
            rotation_out(x, p, center=mean) if regressor is RotationOutRegressor else centred_dropout(x, p, center=mean)
        )
        rest = noisy.numpy().reshape(copies, 40, 5)
        errors = y[:, 0] - rest @ w - (y.mean() - X.mean(0) @ w)
        slopes = np.concatenate([np.einsum("cn,cnd->cd", errors, rest), errors.sum(1, keepdims=True)], 1)
        mean_slope = slopes.mean(0)
        return float(copies * mean_slope @ np.linalg.solve(np.cov(slopes.T), mean_slope))

    assert statistic(model.coef_) < 38.3  # the 1 − 1e-6 quantile of χ² with 6 degrees of freedom
    other = (DropoutRegressor if regressor is RotationOutRegressor else RotationOutRegressor)(p).fit(X, y[:, 0])
    assert statistic(other.coef_) > 38.3, "the test could not tell the two apart"


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("p", [0.001, 0.5, 0.95])
@pytest.mark.parametrize(("n", "features"), [(50, 9), (9, 50), (30, 2)])
@pytest.mark.parametrize("regressor", REGRESSORS)
def test_normal_equations(regressor: Any, n: int, features: int, p: float, solver: str) -> None:
    """The printed solutions below eq9; with D = 2 and p = 0.95 also λ > D − 1, where no Ridge is equal."""
    X, y, s = data(n, features)
    z = np.sqrt(s)[:, None] * (X - centre(X, s, True))
    gram = z.T @ z
    penalty = (np.trace(gram) * np.eye(features) - gram) / (features - 1)
    if regressor is DropoutRegressor:
        penalty = np.diag(np.diag(gram))
    expected = np.linalg.solve(gram + lam_of(p) * penalty, z.T @ (np.sqrt(s)[:, None] * (y - centre(y, s, True))))
    ours = regressor(p, solver=solver, tol=1e-14).fit(X, y, s)
    np.testing.assert_allclose(ours.coef_.T, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("model", [*[r() for r in REGRESSORS], RotationOutRegressorCV(cv=4), DropoutRegressorCV(cv=4)])
@pytest.mark.parametrize(("n", "features"), [(30, 4), (8, 20)])
def test_weights_are_repetitions(model: Any, n: int, features: int) -> None:
    X, y, s = data(n, features)
    if hasattr(model, "cv"):  # the same rows in a fold either way
        fold = np.arange(n) % 4
        model.set_params(cv=[(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(4)])
    weighted = model.fit(X, y, s)
    coef, intercept = weighted.coef_.copy(), weighted.intercept_.copy()
    rows = np.repeat(np.arange(n), s.astype(int))
    if hasattr(model, "cv"):
        fold = fold[rows]
        model.set_params(cv=[(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(4)])
    repeated = model.fit(X[rows], y[rows])
    np.testing.assert_allclose(coef, repeated.coef_, atol=1e-12)
    np.testing.assert_allclose(intercept, repeated.intercept_, atol=1e-11)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_without_noise_least_squares_of_smallest_norm(regressor: Any) -> None:
    X, y, _ = data(8, 20)
    Z = X - X.mean(0)
    scale = np.ones(20) if regressor is RotationOutRegressor else np.sqrt((Z**2).sum(0))
    expected = np.linalg.lstsq(Z / scale, y - y.mean(0), rcond=None)[0] / scale[:, None]
    np.testing.assert_allclose(regressor(0.0).fit(X, y).coef_.T, expected, atol=1e-10)
    np.testing.assert_allclose(regressor(1e-9).fit(X, y).coef_.T, expected, rtol=1e-5, atol=1e-6)
    tall, target, _ = data(60, 5)
    np.testing.assert_allclose(regressor(0.0).fit(tall, target).coef_, LinearRegression().fit(tall, target).coef_)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_the_direction_that_centring_removes_has_no_weight(regressor: Any) -> None:
    """Rounding leaves it a singular value of about eps, which must not be divided by."""
    for seed in range(60):
        X = np.random.default_rng(seed).normal(1, 1, size=(6 + seed % 12, 40))
        y = np.arange(len(X), dtype=float)
        weights = regressor(0.0).fit(X, y).coef_
        Z = X - X.mean(0)
        scale = 1 if regressor is RotationOutRegressor else np.sqrt((Z**2).sum(0))
        expected = np.linalg.lstsq(Z / scale, y - y.mean(), rcond=1e-12)[0] / scale
        np.testing.assert_allclose(weights, expected, atol=1e-9)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_a_far_mean_costs_no_digits_and_constant_features_no_sense(regressor: Any) -> None:
    X, y, _ = data(300, 6, mean=0)
    near = regressor(0.2).fit(X, y)
    np.testing.assert_allclose(regressor(0.2).fit(X + 1e6, y).coef_, near.coef_, rtol=1e-8)
    constant = np.column_stack([X, np.full(len(X), 0.1)])
    model = regressor(0.2).fit(constant, y)
    assert abs(model.coef_[:, -1]).max() < 1e-12
    assert not regressor(0.2).fit(np.ones((5, 3)), np.arange(5.0)).coef_.any()


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_layout_and_dtype(regressor: Any) -> None:
    X, y, s = data(40, 6)
    kept = X.copy()
    expected = regressor(0.3).fit(X, y, s)
    np.testing.assert_array_equal(X, kept)
    assert expected.coef_.shape == (2, 6)
    for layout in (np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2], X.tolist()):
        np.testing.assert_allclose(regressor(0.3).fit(layout, y, s).coef_, expected.coef_, atol=1e-12)
    single = regressor(0.3).fit(X.astype(np.float32), y[:, 0], s)
    assert single.coef_.dtype == np.float32
    assert single.coef_.shape == (6,)
    assert isinstance(single.intercept_, float)
    np.testing.assert_allclose(single.coef_, expected.coef_[0], rtol=2e-4, atol=1e-5)


def test_steps_that_do_not_suffice_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = data(300, 60)
    monkeypatch.setattr(_solve.Penalty, "condition", 1.0)  # as if the bound said that a few steps do
    with pytest.warns(ConvergenceWarning, match="conjugate gradients stopped after .* use solver='cholesky'"):
        RotationOutRegressor(1e-4, solver="cg").fit(X, y)


def test_large_problems_take_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = data(60, 40)
    exact = RotationOutRegressor(0.3).fit(X, y).coef_
    monkeypatch.setattr(_solve, "CG_FROM", 30)
    monkeypatch.setattr(_solve, "cho_factor", None)  # not to be called
    np.testing.assert_allclose(RotationOutRegressor(0.3).fit(X, y).coef_, exact, atol=1e-8)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (RotationOutRegressor(1.0), r"p is a drop probability and must be in \[0, 1\), got 1.0"),
        (RotationOutRegressor(solver="qr"), "solver must be one of 'auto', 'cholesky', 'cg', got 'qr'"),
        (RotationOutRegressor(tol=0.0), "tol, a relative residual, must be between 0 and 1, got 0.0"),
        (RotationOutRegressorCV([]), "ps must have at least one entry"),
        (RotationOutRegressorCV([0.0, 0.1]), "all positive"),
        (DropoutRegressorCV([0.1, 1.5]), "ps is a drop probability"),
    ],
)
def test_wrong_arguments(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.fit(np.eye(4), np.arange(4.0))


def test_wrong_data() -> None:
    with pytest.raises(ValueError, match=r"1 feature\(s\)"):
        RotationOutRegressor().fit(np.ones((4, 1)), np.arange(4.0))
    assert DropoutRegressor().fit(np.arange(4.0)[:, None], np.arange(4.0)).coef_ == pytest.approx(0.5)
    with pytest.raises(ValueError, match="positive"):
        RotationOutRegressor().fit(np.eye(3), np.arange(3.0), np.zeros(3))
    with pytest.raises(ValueError, match="Negative values"):
        RotationOutRegressor().fit(np.eye(3), np.arange(3.0), np.array([1.0, 1.0, -1.0]))
    folds = [(np.arange(2), np.arange(2, 4)), (np.arange(2, 4), np.arange(2))]
    with pytest.raises(ValueError, match="cv has a training fold without rows of positive sample_weight"):
        DropoutRegressorCV(cv=folds).fit(np.eye(4), np.arange(4.0), np.array([0.0, 0, 1, 1]))
    for fold, weights in [((np.arange(2), np.arange(2, 4)), [1.0, 1, 0, 0]), ((np.arange(4), np.arange(0)), None)]:
        with pytest.raises(ValueError, match="cv has no test rows of positive sample_weight"):
            DropoutRegressorCV(cv=[fold]).fit(np.eye(4), np.arange(4.0), weights)
    with pytest.raises(ValueError, match="cv has a training fold without rows"):
        RotationOutRegressorCV(cv=[(np.arange(0), np.arange(4))]).fit(np.eye(4), np.arange(4.0))
    with pytest.raises(ValueError, match="at least 3 samples"):
        RotationOutRegressorCV().fit(np.eye(2), np.arange(2.0))
    with pytest.raises(ValueError, match=r"at least 3 samples of positive weight, got n_samples = 2"):
        RotationOutRegressorCV().fit(np.eye(4), np.arange(4.0), [0.0, 0, 1, 1])
    assert np.isfinite(RotationOutRegressorCV().fit(np.eye(3), np.arange(3.0)).errors_).all()


@pytest.mark.parametrize("p", [0.01, 0.1])
@pytest.mark.parametrize("shape", [(60, 3000), (800, 300)])
@pytest.mark.parametrize("make", [RotationOutRegressor, DropoutRegressor])
def test_single_precision_is_regularised_as_double_precision_is(make: Any, shape: tuple[int, int], p: float) -> None:
    """Features nearly of rank 20, and condition numbers that 24 bits do not bear."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape[0], 20)) @ rng.standard_normal((20, shape[1])) + 0.05 * rng.standard_normal(shape)
    y = x[:, 0] + 5 * rng.standard_normal(len(x))
    double = make(p).fit(x, y)
    single = make(p).fit(x.astype(np.float32), y.astype(np.float32))
    assert single.coef_.dtype == np.float32
    error = np.linalg.norm(single.coef_ - double.coef_) / np.linalg.norm(double.coef_)
    assert error < 0.02


@pytest.mark.parametrize("make", [RotationOutRegressor, DropoutRegressor])
def test_a_feature_far_from_zero_is_no_constant(make: Any) -> None:
    rng = np.random.default_rng(0)
    x = np.c_[2000 + 0.5 * rng.standard_normal(20_000), rng.standard_normal((20_000, 2))]
    y = x @ [1.0, 1.0, 1.0]
    single = make(0.5).fit(x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(single.coef_, make(0.5).fit(x, y).coef_, atol=0.01)
    x[:, 0] = 2000 + 0.02 * x[:, 1] + 0.02 * rng.standard_normal(20_000)  # 160 steps of single precision
    single = make(0.5).fit(x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(single.coef_, make(0.5).fit(x, y).coef_, rtol=0.05)
    for far in (2000.0, -2000.0):
        x[:, 0] = far
        assert make(0.5).fit(x.astype(np.float32), y.astype(np.float32)).coef_[0] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(("dtype", "large"), [("float32", 1e12), ("float32", 1e30), ("float64", 1e160)])
@pytest.mark.parametrize(
    "model",
    [regressor(0.3, solver=solver) for regressor in REGRESSORS for solver in ("cholesky", "cg")]
    + [RotationOutRegressorCV([0.1, 0.3]), DropoutRegressorCV([0.1, 0.3], cv=3)],
)
def test_numbers_whose_squares_overflow_or_vanish(model: Any, dtype: str, large: float) -> None:
    """The weights follow the units of X and y, and p does not depend on them."""
    X, y, _ = data(40, 4)
    first = model.fit(X, y)
    weights, intercept, errors = first.coef_, first.intercept_, getattr(first, "errors_", 0)
    close = {"rtol": 1e-3, "atol": 1e-3 * abs(weights).max()}
    for scale in (large, 1 / large):
        fitted = model.fit((scale * X).astype(dtype), y.astype(dtype))
        np.testing.assert_allclose(fitted.coef_.astype(np.float64) * scale, weights, **close)
        np.testing.assert_allclose(fitted.intercept_, intercept, **close)
        fitted = model.fit(X.astype(dtype), (scale * y).astype(dtype))
        np.testing.assert_allclose(fitted.coef_.astype(np.float64) / scale, weights, **close)
        np.testing.assert_allclose(np.float64(fitted.intercept_) / scale, intercept, **close)
        if dtype == "float32":  # in fp64 the errors themselves overflow
            np.testing.assert_allclose(getattr(fitted, "errors_", 0) / scale**2, errors, rtol=1e-3)


@pytest.mark.parametrize("regressor", REGRESSORS)
def test_steps_for_targets_of_very_different_sizes(regressor: Any) -> None:
    X, y, _ = data(30, 5)
    sizes = np.array([1e-30, 1e9])
    assert not regressor(0.2, solver="cg").fit(X, np.c_[y[:, 0], np.ones(30)]).coef_[1].any()
    exact = regressor(0.2).fit(X, y).coef_
    steps = regressor(0.2, solver="cg").fit(X.astype(np.float32), (y * sizes).astype(np.float32)).coef_
    np.testing.assert_allclose(steps / sizes[:, None], exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_rows_add_up(weighted: bool) -> None:
    X, y, s = data(2500, 3)
    sample = _sample.Sample(X, y, s if weighted else None, centred=True)
    whole_z, whole_t = sample.rows()
    parts = [(part, z.copy(), t) for part, z, t in sample.blocks(elements=3 * 1100)]
    assert [part for part, _, _ in parts] == [slice(0, 1100), slice(1100, 2200), slice(2200, 2500)]
    np.testing.assert_array_equal(np.concatenate([z for _, z, _ in parts]), whole_z)
    np.testing.assert_array_equal(np.concatenate([t for _, _, t in parts]), whole_t)
    assert len(next(sample.blocks(elements=1))[1]) == 1024  # at least
    gram = np.zeros((3, 3), order="F")
    for _, z, _ in parts:
        _sample.square(z.T, into=gram)
    np.testing.assert_allclose(np.tril(gram), np.tril(whole_z.T @ whole_z))
