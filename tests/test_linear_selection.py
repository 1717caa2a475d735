"""Linear models that choose p: their errors are those of refits, with one row left out or in folds."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from tests.test_linear import data, lam_of
from threadpoolctl import threadpool_limits

from rotationout.linear import DropoutRegressor, DropoutRegressorCV, RotationOutRegressor, RotationOutRegressorCV


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Matrices are small here: threads would wait for each other longer than they work."""
    with threadpool_limits(1):
        yield


def refit_errors(regressor: Any, ps: list[float], X: Any, y: Any, s: Any, folds: Any, **options: Any) -> Any:
    """What a cross-validation by hand gives: a fit for every p and every fold."""
    found = []
    for p in ps:
        squares = 0.0
        for train, test in folds:
            model = regressor(p, **options).fit(X[train], y[train], s[train])
            squares += (s[test, None] * (model.predict(X[test]) - y[test]) ** 2).sum()
        found.append(squares / (s.sum() * y.shape[1]))
    return np.array(found)


PS = [1e-4, 0.01, 0.1, 0.3, 0.6, 0.9, 0.97]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("n", "features"), [(40, 7), (12, 31), (25, 2)])
def test_leaving_one_out_is_what_refits_give(n: int, features: int, intercept: bool) -> None:
    X, y, s = data(n, features)
    everyone = np.arange(n)
    folds = [(np.delete(everyone, i), everyone[i : i + 1]) for i in everyone]
    ours = RotationOutRegressorCV(PS, fit_intercept=intercept).fit(X, y, s)
    expected = refit_errors(RotationOutRegressor, PS, X, y, s, folds, fit_intercept=intercept)
    np.testing.assert_allclose(ours.errors_, expected, rtol=1e-9)
    assert ours.p_ == PS[int(expected.argmin())]
    refit = RotationOutRegressor(ours.p_, fit_intercept=intercept).fit(X, y, s)
    np.testing.assert_allclose(ours.coef_, refit.coef_, atol=1e-11)
    np.testing.assert_allclose(ours.intercept_, refit.intercept_, atol=1e-10)


@pytest.mark.parametrize(("n", "features"), [(40, 7), (12, 31)])
@pytest.mark.parametrize(
    ("cv", "regressor"), [(RotationOutRegressorCV, RotationOutRegressor), (DropoutRegressorCV, DropoutRegressor)]
)
def test_folds_are_what_refits_give(cv: Any, regressor: Any, n: int, features: int) -> None:
    X, y, s = data(n, features)
    splitter = KFold(4, shuffle=True, random_state=0)
    expected = refit_errors(regressor, PS, X, y, s, list(splitter.split(X)))
    ours = cv(PS, cv=splitter).fit(X, y, s)
    np.testing.assert_allclose(ours.errors_, expected, rtol=1e-9)
    assert ours.p_ == PS[int(expected.argmin())]


def test_leaving_one_out_of_dropout_keeps_its_noise() -> None:
    """Ridge on features scaled once, which is what a fixed noise amounts to; with more rows, the same as refits."""
    X, y, _ = data(30, 6)
    Z = (X - X.mean(0)) / np.sqrt(((X - X.mean(0)) ** 2).sum(0))
    ours = DropoutRegressorCV(PS).fit(X, y)
    for p, error in zip(PS, ours.errors_, strict=True):
        predicted = cross_val_predict(Ridge(alpha=lam_of(p)), Z, y, cv=KFold(30))
        assert error == pytest.approx(((predicted - y) ** 2).mean(), rel=1e-9)
    many, targets, _ = data(150, 6)
    folds = [(np.delete(np.arange(150), i), np.arange(i, i + 1)) for i in range(150)]
    expected = refit_errors(DropoutRegressor, PS, many, targets, np.ones(150), folds)
    ours = DropoutRegressorCV(PS).fit(many, targets)
    np.testing.assert_allclose(ours.errors_, expected, rtol=0.03)
    assert ours.p_ == PS[int(expected.argmin())]


@pytest.mark.parametrize("ps", [0.5, np.array([[0.5]])])
def test_a_single_candidate_is_one_in_any_shape(ps: Any) -> None:
    assert RotationOutRegressorCV(ps).fit(*data(20, 4)[:2]).p_ == 0.5


def test_degenerate_data_are_no_trouble_to_leaving_one_out() -> None:
    X = np.ones((5, 3))
    assert not RotationOutRegressorCV().fit(X, np.arange(5.0)).coef_.any()
    X[0] = 2  # without row 0 nothing varies
    assert np.isfinite(RotationOutRegressorCV([1e-14, 0.5]).fit(X, np.arange(5.0)).errors_).all()
