"""Weights and errors for every p from one decomposition.

The eigenvectors of a normal matrix gain·ZᵀZ + ridge·I do not depend on the strength of the noise (`_solve.Penalty`).
Once they are known, another p costs n·D operations, errors on rows left out included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.linalg import eigh

from . import _solve
from ._sample import Array, Sample, square

__all__ = ["Spectrum", "fold_errors"]


class Spectrum:
    """A sample in the eigenbasis of its normal matrices: ZᵀZ = V·diag(values)·Vᵀ for features Z divided by `scale`.

    Of V there are min(n, D) columns at most: rows have no part in the others, and weights neither.

    Args:
        sample: the data.
        noise: `_solve.rotation` or `_solve.dropout`.
    """

    def __init__(self, sample: Sample, noise: _solve.Noise) -> None:
        self.sample, self._noise = sample, noise
        n, features = sample.shape
        if features <= n:
            gram, cross = sample.moments()
            self.energy = sample.energy(gram)
            self.scale = noise(self.energy, 1.0).scale
            gram /= self.scale
            gram /= self.scale[:, None]
            self.values, self.vectors = _eigh(gram)
            self.cross = self.vectors.T @ (cross / self.scale[:, None])
            return
        z, t = sample.rows()
        self.energy = sample.energy()
        self.scale = noise(self.energy, 1.0).scale
        z /= self.scale
        values, left = _eigh(square(z))
        kept = values > values[-1] * n * np.finfo(z.dtype).eps  # of the others the row space knows nothing
        self.values, left = values[kept], left[:, kept]
        self.vectors = (z.T @ left) / np.sqrt(self.values)
        self.cross = np.sqrt(self.values)[:, None] * (left.T @ t)

    def penalty(self, lam: float) -> _solve.Penalty:
        """The normal matrix at λ = ``lam`` > 0."""
        return self._noise(self.energy, lam)

    def weights(self, lam: float) -> Array:
        """What `_solve.solve` returns, (D, k)."""
        return np.asarray(self.vectors @ self._coordinates(lam) / self.scale[:, None])

    def predict(self, x: Array, lams: Sequence[float]) -> Array:
        """Predictions for rows of features at every λ, (λ, rows, k)."""
        along = ((x - self.sample.x_mean) / self.scale) @ self.vectors
        return np.stack([along @ self._coordinates(lam) + self.sample.y_mean for lam in lams])

    def _coordinates(self, lam: float) -> Array:
        penalty = self.penalty(lam)
        denominator = (penalty.gain * self.values + penalty.ridge)[:, None]
        # All features constant: nothing to divide, and nothing by which to divide it.
        return np.asarray(np.divide(self.cross, denominator, out=np.zeros_like(self.cross), where=denominator > 0))

    def leave_one_out(self, lams: Sequence[float], *, adapt: bool) -> Array:
        """The mean squared error, weighted, of predicting every row from all others, for every λ.

        Without row i the means move, and ZᵀZ loses h·uuᵀ with u the row about the old mean and h = s·S/(S − s), S = Σ s
        (h = s without an intercept). So does the noise, whose strength goes with the energy of the data. What is left
        is, in the eigenbasis, a diagonal less a multiple of uuᵀ, inverted by Sherman and Morrison's formula.

        Args:
            lams: the strengths, all positive.
            adapt: also take row i out of the ridge, which is exact if `scale` does not depend on the data. If not, the
                noise keeps the strength that it has with all rows.
        """
        sample = self.sample
        squares = np.zeros(len(lams))
        penalties = [self.penalty(lam) for lam in lams]
        whole, eps = penalties[0].energy, float(np.finfo(sample.x.dtype).eps)
        for part, z, t in sample.blocks(columns=len(self.values)):
            weight = np.ones(len(z)) if sample.weight is None else sample.weight[part]
            seen = weight > 0  # the others count for nothing, and have no direction once multiplied by it
            weight = weight[seen, None].astype(np.float64)
            rows, targets = z[seen] / np.sqrt(weight), t[seen] / np.sqrt(weight)
            stretch = sample.total / (sample.total - weight) if sample.centred else np.ones_like(weight)
            out = weight * stretch
            along = (rows / self.scale) @ self.vectors
            share = 1 - out * (rows**2).sum(1, keepdims=True) / whole if adapt and whole else np.ones_like(out)
            varies = share > 1e3 * eps  # if nothing does without the row, the weights are zero
            for index, penalty in enumerate(penalties):
                diagonal = penalty.gain * self.values + penalty.ridge * share
                inverse = np.divide(along, diagonal, out=np.zeros_like(along), where=diagonal != 0)
                leverage = out * (along * inverse).sum(1, keepdims=True)
                left = 1 - penalty.gain * leverage
                left[left == 0] = eps  # a noise lost in rounding
                fitted = np.where(varies, (inverse @ self.cross - leverage * targets) / left, 0)
                errors = stretch * (targets - fitted)
                squares[index] += float((weight * errors**2).sum())
        return np.asarray(squares / (sample.total * sample.y.shape[1]))


def fold_errors(
    sample: Sample, noise: _solve.Noise, lams: Sequence[float], folds: Iterable[tuple[Array, Array]]
) -> Array:
    """The mean squared error, weighted, on the test rows of all folds, for every λ: one decomposition for each fold."""
    squares, total = np.zeros(len(lams)), 0.0
    for train, test in folds:
        spectrum = Spectrum(sample.take(train), noise)
        weight = np.ones(len(sample.x[test])) if sample.weight is None else sample.weight[test]
        errors = spectrum.predict(sample.x[test], lams) - sample.y[test]
        squares += np.einsum("n,lnk->l", weight, errors**2)
        total += float(weight.sum())
    return np.asarray(squares / (total * sample.y.shape[1]))


def _eigh(lower: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a positive semi-definite matrix from its lower triangle, which is overwritten."""
    values, vectors = eigh(lower, lower=True, overwrite_a=True, check_finite=False, driver="evd")
    return np.maximum(values, 0), vectors
