"""Choose the strength of the noise by cross-validation, with one decomposition for all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import check_cv

from .. import strength
from . import _solve
from ._path import Spectrum, fold_errors
from ._regression import MarginalRegressor
from ._sample import Array, Sample

__all__ = ["DropoutRegressorCV", "RotationOutRegressorCV"]

PS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class _SelectedStrengthRegressor(MarginalRegressor):
    """A regressor that chooses its p."""

    _adapt: ClassVar[bool]
    """Whether leaving a row out also weakens the noise, see `Spectrum.leave_one_out`."""

    def __init__(self, ps: Sequence[float] | Array = PS, *, fit_intercept: bool = True, cv: Any = None) -> None:
        self.ps = ps
        self.fit_intercept = fit_intercept
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Choose p, and find the weights that minimise the expected loss.

        Args:
            X: features, (n, D); n < D is allowed.
            y: targets, (n,) or (n, k).
            sample_weight: how often each row counts, (n,), in the fit and in the error; once if not given.
        """
        rates = self._rates()
        lams = [strength.to_lam("dropout", p) for p in rates]
        sample, single = self._sample(X, y, sample_weight)
        noise = _solve.NOISES[self._noise]
        spectrum = Spectrum(sample, noise)
        if self.cv is None:
            _check_enough(sample)
            self.errors_ = spectrum.leave_one_out(lams, adapt=self._adapt)
        else:
            folds = check_cv(self.cv).split(sample.x, sample.y)
            self.errors_ = fold_errors(sample, noise, lams, folds)
        best = int(np.argmin(self.errors_))
        with np.errstate(over="ignore", under="ignore"):  # of targets near the limits of fp64
            self.errors_ = self.errors_ * sample.units[1] * sample.units[1]
        self.p_ = rates[best]
        self._keep(spectrum.weights(lams[best : best + 1])[0], sample, single=single)
        return self

    def _rates(self) -> list[float]:
        rates = [strength.check_rate(p, "ps") for p in np.asarray(self.ps).ravel().tolist()]
        if not rates or min(rates) == 0.0:
            raise ValueError(
                f"ps must have at least one entry, all positive, got {self.ps!r}; for almost no noise use 1e-6"
            )
        return rates


def _check_enough(sample: Sample) -> None:
    counted = len(sample.x) if sample.weight is None else int((sample.weight > 0).sum())
    if counted < 3:
        raise ValueError(
            f"leave-one-out needs at least 3 samples of positive weight, got n_samples = {counted}; "
            "choose p yourself with RotationOutRegressor or DropoutRegressor"
        )


class RotationOutRegressorCV(_SelectedStrengthRegressor):
    """`RotationOutRegressor` that chooses p by cross-validation.

    One eigendecomposition serves all candidates. With ``cv=None`` it also gives the leave-one-out errors: exactly what
    n fits for every p would give, in the time of a few fits.

    Args:
        ps: the candidates, drop probabilities in (0, 1).
        fit_intercept: as in `RotationOutRegressor`.
        cv: None for leave-one-out; or what scikit-learn accepts, a number of folds, a splitter or an iterable of
            splits, which takes one decomposition per fold.

    Attributes:
        p_: the candidate with the smallest error.
        errors_: the mean squared error of each candidate on the rows left out, mean over targets.
        coef_: w, (D,), or (k, D) for targets (n, k).
        intercept_: b, a number or (k,).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((30, 20))
    >>> y = X[:, 0] + rng.standard_normal(30)
    >>> RotationOutRegressorCV(ps=[0.01, 0.1, 0.5, 0.9]).fit(X, y).p_
    0.5
    """

    _noise = "rotation"
    _fewest_features = 2
    _adapt = True


class DropoutRegressorCV(_SelectedStrengthRegressor):
    """`DropoutRegressor` that chooses p by cross-validation, as `RotationOutRegressorCV` does.

    With ``cv=None``, leaving a row out does not change the variance of the noise on each feature, which is that for all
    rows: an error of order 1/n, without which every row would need its own eigenvectors. Folds are exact.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((30, 20))
    >>> y = X[:, 0] + rng.standard_normal(30)
    >>> DropoutRegressorCV(ps=[0.01, 0.1, 0.5, 0.9]).fit(X, y).p_
    0.5
    """

    _noise = "dropout"
    _adapt = False
