"""How well-posed least squares under noise is: condition numbers of the normal matrices (label eqro)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh
from sklearn.utils import check_array

from .. import strength
from ._sample import Array, Sample

__all__ = ["ConditionNumbers", "condition_numbers", "rotation_condition_bound"]


@dataclass(frozen=True)
class ConditionNumbers:
    """Condition numbers of normal matrices, infinite where one is singular to rounding.

    Attributes:
        none: of ZᵀZ, without noise.
        dropout: of ZᵀZ + λ·diag(ZᵀZ). At least the largest feature's variance over the smallest, so without bound.
        dropout_scaled: the same once features are scaled to unit variance; at most (D + λ)/λ.
        rotation: of ZᵀZ + λ·(tr(ZᵀZ)·I − ZᵀZ)/(D − 1).
        rotation_bound: what the latter can be at most, (D − 1)/λ.
    """

    none: float
    dropout: float
    dropout_scaled: float
    rotation: float
    rotation_bound: float


def condition_numbers(X: Any, p: float = 0.5, *, fit_intercept: bool = True) -> ConditionNumbers:
    """The condition numbers of least squares on features ``X`` without noise, under Dropout and under RotationOut.

    The paper compares the matrices as they are. A Dropout regression is solved just as safely: what makes its matrix
    ill-conditioned is the scale of the features, and `DropoutRegressor` divides by it.

    Args:
        X: features, (n, D).
        p: drop probability of the Dropout, and of that which RotationOut is matched to; positive.
        fit_intercept: take features about their mean.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 4)) * [1, 1, 1, 1e-4]
    >>> found = condition_numbers(X, p=0.5)
    >>> found.dropout > 1e7, found.rotation < found.rotation_bound, found.rotation_bound
    (True, True, 3.0)
    """
    lam = strength.to_lam("dropout", p)
    X = check_array(X, dtype=np.float64, ensure_min_features=2)
    sample = Sample(X, np.zeros((len(X), 1)), None, centred=fit_intercept)
    gram = sample.moments()[0]
    gram = np.tril(gram) + np.tril(gram, -1).T
    features, energy = len(gram), sample.energy(gram)
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
    reached if all the variance lies in one direction. The paper prints D − 1, its value at λ = 1. For λ > D − 1 it is
    κ.

    >>> rotation_condition_bound(65, 0.5)
    64.0
    """
    if isinstance(features, bool) or not isinstance(features, int | np.integer) or features < 2:
        raise ValueError(f"features must be an integer, at least 2 to have a pair, got {features!r}")
    share = strength.to_lam("dropout", p) / (int(features) - 1)
    return max(1 / share, share) if share > 0 else math.inf


def _condition(matrix: Array) -> float:
    values = eigvalsh(matrix)
    smallest, largest = float(values[0]), float(values[-1])
    return largest / smallest if smallest > len(matrix) * np.finfo(float).eps * largest else math.inf
