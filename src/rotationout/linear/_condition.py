"""How well-posed least squares under noise is: the condition numbers of its normal matrices (label eqro)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh
from sklearn.utils import check_array

from .. import strength
from ._sample import Array, Sample, near_one

__all__ = ["ConditionNumbers", "condition_numbers", "rotation_condition_bound"]


@dataclass(frozen=True)
class ConditionNumbers:
    """Condition numbers of normal matrices; infinite for a matrix that is singular up to rounding.

    Attributes:
        none: of ZᵀZ, without noise.
        dropout: of ZᵀZ + λ·diag(ZᵀZ). At least the ratio of the largest variance of a feature to the smallest, so it
            has no bound.
        dropout_scaled: the same after scaling features to unit variance; at most (D + λ)/λ.
        rotation: of ZᵀZ + λ·(tr(ZᵀZ)·I − ZᵀZ)/(D − 1).
        rotation_bound: the upper bound of ``rotation``, (D − 1)/λ.

    >>> condition_numbers([[1.0, 0.0], [0.0, 2.0]], p=0.5, fit_intercept=False)
    ConditionNumbers(none=4.0, dropout=4.0, dropout_scaled=1.0, rotation=1.0, rotation_bound=1.0)
    """

    none: float
    dropout: float
    dropout_scaled: float
    rotation: float
    rotation_bound: float


def condition_numbers(X: Any, p: float = 0.5, *, fit_intercept: bool = True) -> ConditionNumbers:
    """The condition numbers of least squares on features ``X`` without noise, under Dropout and under RotationOut.

    The paper compares the matrices as they are. In practice Dropout regression is solved just as safely: its matrix is
    ill-conditioned because features differ in scale, and `DropoutRegressor` divides by that scale.

    Args:
        X: features, (n, D).
        p: drop probability of Dropout; RotationOut is equally strong. Positive.
        fit_intercept: subtract the mean of the features.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 4)) * [1, 1, 1, 1e-4]
    >>> found = condition_numbers(X, p=0.5)
    >>> found.dropout > 1e7, found.rotation < found.rotation_bound, found.rotation_bound
    (True, True, 3.0)
    """
    lam = strength.to_lam("dropout", p)
    X, _ = near_one(check_array(X, dtype=np.float64, ensure_min_features=2))
    sample = Sample(X, np.zeros((len(X), 1)), None, centred=fit_intercept)
    gram = sample.moments()[0]
    gram = np.tril(gram) + np.tril(gram, -1).T
    features, energy = len(gram), sample.without_rounding(np.diag(gram))
    bound = rotation_condition_bound(features, p)
    scale = np.sqrt(np.where(energy > 0, energy, 1))
    correlation = gram / scale / scale[:, None]
    return ConditionNumbers(
        none=_condition(gram),
        dropout=_condition(gram + lam * np.diag(energy)),
        dropout_scaled=_condition(correlation + lam * np.diag((energy > 0).astype(float))),
        rotation=_condition(gram + lam / (features - 1) * (energy.sum() * np.eye(features) - gram)),
        rotation_bound=bound,
    )


def rotation_condition_bound(features: int, p: float) -> float:
    """The largest condition number that least squares under RotationOut can have: (D − 1)/λ for λ ≤ D − 1.

    An eigenvalue g of ZᵀZ becomes (1 − κ)·g + κ·tr(ZᵀZ), κ = λ/(D − 1), between κ·tr(ZᵀZ) and tr(ZᵀZ); the bound is
    reached if all the variance lies in one direction. The paper prints D − 1, its value at λ = 1. For λ > D − 1
    the bound is κ.

    >>> rotation_condition_bound(65, 0.5)
    64.0
    """
    share = strength.to_lam("dropout", p) / (strength.check_integer("features", features, 2) - 1)
    return max(1 / share, share) if share > 0 else math.inf


def _condition(matrix: Array) -> float:
    values = eigvalsh(matrix)
    smallest, largest = float(values[0]), float(values[-1])
    return largest / smallest if smallest > len(matrix) * np.finfo(float).eps * largest else math.inf
