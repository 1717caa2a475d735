"""Least squares under noise, marginalised: what each noise adds to the normal equations, and how they are solved.

The expected loss is the loss without noise plus wᵀVw, V the summed covariance of the noise (eq8 to eq9, appendix A.2).
With Z the features, about their mean if there is an intercept, and λ = p / (1 − p):

    RotationOut    V = λ·(tr(ZᵀZ)·I − ZᵀZ) / (D − 1)         Dropout    V = λ·diag(ZᵀZ)

Either way, once features are divided by a ``scale``, the normal matrix is ``gain``·ZᵀZ + ``ridge``·I: one eigenbasis
serves every p, and its condition number is at most (gain·tr ZᵀZ + ridge) / ridge, which is (D − 1)/λ for RotationOut
(label eqro, λ ≤ D − 1) and (D + λ)/λ for Dropout. This bound makes normal equations and conjugate gradients safe.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lstsq
from sklearn.exceptions import ConvergenceWarning

from ._sample import Array, Sample, square

__all__ = ["NOISES", "SOLVERS", "Noise", "Penalty", "dropout", "rotation", "solve"]

SOLVERS = ("auto", "cholesky", "cg")

CG_FROM = 4000
"""Beyond this size of the smaller side of X, ``"auto"`` prefers conjugate gradients to a Cholesky factor."""


@dataclass(frozen=True)
class Penalty:
    """The normal matrix of a noise: gain·ZᵀZ + ridge·I for features Z divided by ``scale``, all of energy ``energy``.

    Attributes:
        scale: what every feature is divided by, (D,).
        gain: the factor of ZᵀZ. Negative for RotationOut with λ > D − 1, whose matrix is still positive definite.
        ridge: the factor of I.
        energy: tr(ZᵀZ) after the division.
    """

    scale: Array
    gain: float
    ridge: float
    energy: float

    @property
    def condition(self) -> float:
        """An upper bound on the condition number; infinite without noise."""
        extreme = self.gain * self.energy + self.ridge  # the largest eigenvalue, or the smallest if gain < 0
        low, high = sorted((extreme, self.ridge))
        return high / low if low > 0 else math.inf


Noise = Callable[[Array, float], Penalty]
"""From the energy of every feature, diag(ZᵀZ), and λ to the penalty."""


def rotation(energy: Array, lam: float) -> Penalty:
    """RotationOut (label eq9)."""
    share = lam / (len(energy) - 1)
    total = float(energy.sum(dtype=np.float64))
    return Penalty(np.ones_like(energy), 1 - share, share * total, total)


def dropout(energy: Array, lam: float) -> Penalty:
    """Dropout: a ridge on features of unit energy. A feature that does not vary has weight zero."""
    varies = energy > 0
    return Penalty(np.where(varies, np.sqrt(energy), 1).astype(energy.dtype), 1.0, lam, float(varies.sum()))


NOISES: dict[str, Noise] = {"rotation": rotation, "dropout": dropout}


def solve(sample: Sample, noise: Noise, lam: float, solver: str = "auto", tol: float = 1e-10) -> Array:
    """The weights (D, k) that minimise the expected loss.

    Without noise, or with noise below the rounding of fp64, this is the least-squares solution whose scaled weights
    have the smallest norm, which is the limit as the noise vanishes. Otherwise a Cholesky factor of the smaller side is
    exact, in n·D·min(n, D) operations; conjugate gradients take 4·n·D per step and need neither that factor nor a copy
    of X. The condition number bounds their steps for any data, to about √(D/λ)·½·ln(2/tol).
    """
    n, features = sample.shape
    if solver == "cg" or (solver == "auto" and min(n, features) > CG_FROM):
        penalty = noise(sample.energy(), lam)
        if _is_well_posed(penalty, sample.x.dtype):
            return _solve_by_steps(sample, penalty, tol)
    elif features <= n:
        gram, cross = sample.moments()
        penalty = noise(sample.without_rounding(np.diag(gram)), lam)
        if _is_well_posed(penalty, gram.dtype):
            return _solve_primal(gram, cross, penalty)
    z, t = sample.rows()
    penalty = noise(sample.without_rounding(np.einsum("ij,ij->j", z, z)), lam)
    z /= penalty.scale
    if features > n and _is_well_posed(penalty, z.dtype):
        return _solve_dual(z, t, penalty)
    if lam > 0 and z.dtype == np.float32:  # 24 bits are too few for normal equations here, 53 are not
        return solve(sample.double(), noise, lam, solver, tol).astype(np.float32)
    # Centring leaves a singular value of zero, up to rounding. NumPy's cutoff ignores it; SciPy's may not.
    cutoff = max(z.shape) * float(np.finfo(z.dtype).eps)
    weights: Array = lstsq(z, t, cond=cutoff, overwrite_a=True, overwrite_b=True, check_finite=False)[0]
    return weights / penalty.scale[:, None]


def _is_well_posed(penalty: Penalty, dtype: np.dtype[np.floating]) -> bool:
    return penalty.condition * 100 * float(np.finfo(dtype).eps) < 1


def _solve_primal(gram: Array, cross: Array, penalty: Penalty) -> Array:
    """From ZᵀZ, which is overwritten, and Zᵀt of features not yet divided."""
    scale = penalty.scale
    gram *= penalty.gain / scale
    gram /= scale[:, None]
    _solve_positive(gram, cross := cross / scale[:, None], penalty.ridge)
    return cross / scale[:, None]


def _solve_dual(z: Array, t: Array, penalty: Penalty) -> Array:
    """(g·ZᵀZ + r·I)⁻¹Zᵀt = Zᵀ(g·ZZᵀ + r·I)⁻¹t, Woodbury's identity: n × n where there are fewer rows than features."""
    kernel = square(z)
    kernel *= penalty.gain
    _solve_positive(kernel, t, penalty.ridge)
    return np.asarray((z.T @ t) / penalty.scale[:, None])


def _solve_positive(matrix: Array, right: Array, ridge: float) -> None:
    """``right`` becomes (matrix + ridge·I)⁻¹ right, by a Cholesky factor that overwrites the lower triangle."""
    matrix.flat[:: len(matrix) + 1] += ridge
    factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    right[:] = cho_solve(factor, right, check_finite=False)


def _solve_by_steps(sample: Sample, penalty: Penalty, tol: float) -> Array:
    """Conjugate gradients (Hestenes and Stiefel 1952), all targets at once, until |residual| ≤ tol·|Zᵀt|.

    X is neither copied nor centred: Z v = √s·(X v − m·v).
    """
    x, mean, scale = sample.x, sample.x_mean, penalty.scale[:, None]
    weight = None if sample.weight is None else sample.weight.astype(x.dtype, copy=False)[:, None]

    def transposed(rows: Array) -> Array:
        rows = rows if weight is None else weight * rows
        return np.asarray((x.T @ rows - np.outer(mean, rows.sum(0))) / scale)

    def normal(v: Array) -> Array:
        u = v / scale
        return penalty.gain * transposed(x @ u - mean @ u) + penalty.ridge * v

    residual = transposed(sample.y - sample.y_mean)
    size = np.abs(residual).max(0)  # so that squares neither overflow nor vanish
    size[size == 0] = 1
    residual /= size
    solution, direction = np.zeros_like(residual), residual.copy()
    square_norm = (residual**2).sum(0)
    enough = square_norm * max(tol, 10 * float(np.finfo(x.dtype).eps)) ** 2
    # Chebyshev's bound on the error, for the residual another √condition, and half as much again for rounding.
    root = math.sqrt(penalty.condition)
    steps = 10 + math.ceil(0.75 * root * math.log(2 * root / tol))
    for _ in range(steps):
        going = square_norm > enough
        if not going.any():
            return np.asarray(solution * size / scale)
        image = normal(direction)
        step = _quotient(square_norm, (direction * image).sum(0), going)
        solution += step * direction
        residual -= step * image
        previous, square_norm = square_norm, (residual**2).sum(0)
        direction = residual + _quotient(square_norm, previous, going) * direction
    warnings.warn(
        f"conjugate gradients stopped after {steps} steps with a relative residual above tol = {tol:g}; "
        "use solver='cholesky' or a larger tol",
        ConvergenceWarning,
        stacklevel=3,
    )
    return np.asarray(solution * size / scale)


def _quotient(numerator: Array, denominator: Array, where: Array) -> Array:
    """The quotient for the targets that still need a step, zero for the others."""
    return np.asarray(np.divide(numerator, denominator, out=np.zeros_like(numerator), where=where))
