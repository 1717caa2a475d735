"""Linear regression under noise with the noise integrated out: `RotationOutRegressor` and `DropoutRegressor`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .. import strength
from . import _solve
from ._sample import Array, Sample, near_one

__all__ = ["DropoutRegressor", "MarginalRegressor", "RotationOutRegressor"]


class MarginalRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all regressors share: checking data, and predicting."""

    _noise: ClassVar[str]
    _fewest_features: ClassVar[int] = 1
    fit_intercept: bool
    coef_: Array
    intercept_: Any

    def predict(self, X: Any) -> Array:
        """Predictions without noise, (n,) or (n, k) like the targets."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return np.asarray(X @ self.coef_.T + self.intercept_)

    def _sample(self, X: Any, y: Any, sample_weight: Any) -> tuple[Sample, bool]:
        """The checked data, and whether there is a single target, given as a vector."""
        X, y = validate_data(
            self,
            X,
            y,
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
            ensure_min_features=self._fewest_features,
        )
        y = np.asarray(y, dtype=X.dtype)
        if sample_weight is not None:
            if not np.asarray(sample_weight).any():
                raise ValueError("sample_weight must have a positive entry, got zeros only")
            sample_weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        X, unit = near_one(X)
        targets, of_targets = near_one(y.reshape(len(y), -1))
        sample = Sample(X, targets, sample_weight, centred=self.fit_intercept)
        sample.units = unit, of_targets
        return sample, y.ndim == 1

    def _keep(self, weights: Array, sample: Sample, *, single: bool) -> None:
        """Store weights (D, k) as scikit-learn does: a vector and a number for a single target."""
        unit, of_targets = sample.units
        intercept = sample.y_mean - sample.x_mean @ weights if self.fit_intercept else np.zeros(weights.shape[1])
        weights, intercept = weights * (of_targets / unit), intercept * of_targets
        self.coef_ = weights[:, 0] if single else np.ascontiguousarray(weights.T)
        self.intercept_ = float(intercept[0]) if single else intercept


class _FixedStrengthRegressor(MarginalRegressor):
    """A regressor with a given p."""

    def __init__(self, p: float = 0.5, *, fit_intercept: bool = True, solver: str = "auto", tol: float = 1e-10) -> None:
        self.p = p
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Find the weights that minimise the expected loss.

        Args:
            X: features, (n, D); n < D is allowed. Neither copied nor changed where n ≥ D, unless their squares might
                overflow or vanish.
            y: targets, (n,) or (n, k).
            sample_weight: how often each row counts, (n,); once if not given.
        """
        lam = strength.to_lam("dropout", self.p)
        solver = strength.check_choice("solver", self.solver, _solve.SOLVERS)
        tol = strength.check_number("tol", self.tol)
        if not 0.0 < tol < 1.0:
            raise ValueError(f"tol, a relative residual, must be between 0 and 1, got {tol!r}")
        sample, single = self._sample(X, y, sample_weight)
        self._keep(_solve.solve(sample, _solve.NOISES[self._noise], lam, solver, tol), sample, single=single)
        return self


class RotationOutRegressor(_FixedStrengthRegressor):
    """Least squares under RotationOut, min E Σ s·(y − b − w·x̃)², in closed form (labels eq8 and eq9).

    A ridge regression whose penalty λ·wᵀ(tr(ZᵀZ)·I − ZᵀZ)w / (D − 1) grows with the scale and the number of the data:
    w = (D − 1)/(D − 1 − λ) · Ridge(α = λ·tr(ZᵀZ)/(D − 1 − λ)) for λ = p / (1 − p) < D − 1.

    Args:
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p). 0 is least squares.
        fit_intercept: fit b, to which no noise is applied. x is then rotated about the mean of the training set, as in
            section 2.3, so that a shift of x changes nothing but b; otherwise about the origin, as eq8 is printed.
        solver: ``"cholesky"``, exact, with a matrix of the smaller side of X; ``"cg"``, conjugate gradients, which need
            no D × D matrix; or ``"auto"``: ``"cg"`` if both sides of X are larger than 4000, else ``"cholesky"``.
        tol: the relative residual at which conjugate gradients stop.

    Attributes:
        coef_: w, (D,), or (k, D) for targets (n, k).
        intercept_: b, a number or (k,).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + 4.0
    >>> RotationOutRegressor(p=0.1).fit(X, y).coef_.round(2)
    array([ 0.91, -1.78,  0.42])
    """

    _noise = "rotation"
    _fewest_features = 2


class DropoutRegressor(_FixedStrengthRegressor):
    """Least squares under Dropout, min E Σ s·(y − b − w·x̃)², in closed form: the counterpart of `RotationOutRegressor`.

    The penalty λ·wᵀdiag(ZᵀZ)w is a ridge of α = λ = p / (1 − p) on features scaled to Σ s·z² = 1. The arguments and
    attributes are those of `RotationOutRegressor`; with an intercept, Dropout acts on the zero-centred features, as in
    section 3.2. A feature that does not vary has weight 0.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + 4.0
    >>> DropoutRegressor(p=0.1).fit(X, y).coef_.round(2)
    array([ 0.9 , -1.79,  0.44])
    """

    _noise = "dropout"
