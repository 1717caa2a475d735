"""Weights and errors for every p from one decomposition.

The eigenvectors of a normal matrix gain·ZᵀZ + ridge·I do not depend on the strength of the noise (`_solve.Penalty`).
Once they are known, each further p costs n·D operations, including the errors on rows left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.linalg import eigh

from . import _solve
from ._sample import Array, Sample, square

__all__ = ["Spectrum", "fold_errors"]


class Spectrum:
    """A sample in the eigenbasis V of its normal matrices: ZᵀZ = V·diag(values)·Vᵀ for features Z divided by `scale`.

    With fewer rows than features, V has only the directions that the rows span: weights have no component in others.

    Args:
        sample: the data.
        noise: `_solve.rotation` or `_solve.dropout`.
    """

    def __init__(self, sample: Sample, noise: _solve.Noise) -> None:
        self.sample, self._noise = sample, noise
        n, features = sample.shape
        if features <= n:
            gram, cross = sample.moments()
            self.energy = sample.without_rounding(np.diag(gram))
            self.scale = noise(self.energy, 1.0).scale
            gram /= self.scale
            gram /= self.scale[:, None]
            self.values, self._vectors = _eigh(gram)
            self.cross = self._vectors.T @ (cross / self.scale[:, None])
            self._rows = None
            return
        z, t = sample.rows()
        self.energy = sample.without_rounding(np.einsum("ij,ij->j", z, z))
        self.scale = noise(self.energy, 1.0).scale
        z /= self.scale
        values, left = _eigh(square(z))
        spanned = values > values[-1] * n * np.finfo(z.dtype).eps
        self.values, left = values[spanned], left[:, spanned]
        self.cross = np.sqrt(self.values)[:, None] * (left.T @ t)
        # V = Zᵀ·left/√values is large, and never needed as it is.
        self._rows, self._left = z, left

    def penalty(self, lam: float) -> _solve.Penalty:
        """The normal matrix at λ = ``lam`` > 0."""
        return self._noise(self.energy, lam)

    def weights(self, lams: Sequence[float]) -> Array:
        """What `_solve.solve` returns, for every λ, (λ, D, k)."""
        found = []
        for penalty in map(self.penalty, lams):
            diagonal = (penalty.gain * self.values + penalty.ridge)[:, None]
            # If all features are constant, there is nothing to divide and nothing to divide by.
            found.append(np.divide(self.cross, diagonal, out=np.zeros_like(self.cross), where=diagonal > 0))
        coordinates = np.concatenate(found, axis=1)
        if self._rows is None:
            weights = self._vectors @ coordinates
        else:
            weights = self._rows.T @ ((self._left / np.sqrt(self.values)) @ coordinates)
        weights /= self.scale[:, None]
        return np.asarray(weights.reshape(len(weights), len(lams), -1).swapaxes(0, 1))

    def predict(self, x: Array, lams: Sequence[float]) -> Array:
        """Predictions for rows of features at every λ, (λ, rows, k)."""
        return np.asarray((x - self.sample.x_mean) @ self.weights(lams) + self.sample.y_mean)

    def _coordinates(self, part: slice, z: Array) -> Array:
        """Vᵀz of rows of the sample."""
        if self._rows is None:
            return np.asarray((z / self.scale) @ self._vectors)
        return np.asarray(self._left[part] * np.sqrt(self.values))

    def leave_one_out(self, lams: Sequence[float], *, adapt: bool) -> Array:
        """The mean squared error, weighted, of predicting every row from all others, for every λ.

        Without row i the means move, and ZᵀZ loses h·uuᵀ with u the row about the old mean and h = s·S/(S − s), S = Σ s
        (h = s without an intercept). The noise changes too, as its strength is proportional to the energy of the data.
        In the eigenbasis the result is a diagonal minus a multiple of uuᵀ, inverted by Sherman and Morrison's formula.

        Args:
            lams: the strengths, all positive.
            adapt: also remove row i from the ridge, which is exact if `scale` does not depend on the data. Otherwise
                the noise keeps the strength that it has with all rows.
        """
        sample = self.sample
        squares = np.zeros(len(lams))
        penalties = [self.penalty(lam) for lam in lams]
        whole, eps = penalties[0].energy, float(np.finfo(sample.x.dtype).eps)
        for part, z, t in sample.blocks(elements=2**20):  # to stay in cache
            weight = np.ones(len(z)) if sample.weight is None else sample.weight[part]
            seen = weight > 0  # the others count for nothing, and have no direction once multiplied by it
            weight = weight[seen, None].astype(np.float64)
            root = np.sqrt(weight)
            targets, lengths = t[seen] / root, (z[seen] ** 2).sum(1, keepdims=True) / weight
            along = self._coordinates(part, z)[seen] / root
            stretch = sample.total / (sample.total - weight) if sample.centred else np.ones_like(weight)
            out = weight * stretch
            share = 1 - out * lengths / whole if adapt and whole else np.ones_like(out)
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
    weights = np.ones(len(sample.x)) if sample.weight is None else sample.weight
    for train, test in folds:
        if not weights[train].any():
            raise ValueError("cv has a training fold without rows of positive sample_weight; choose other folds")
        spectrum = Spectrum(sample.take(train), noise)
        weight = weights[test]
        errors = spectrum.predict(sample.x[test], lams) - sample.y[test]
        squares += np.einsum("n,lnk->l", weight, errors**2)
        total += float(weight.sum())
    if total == 0:
        raise ValueError("cv has no test rows of positive sample_weight; choose other folds")
    return np.asarray(squares / (total * sample.y.shape[1]))


def _eigh(lower: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a positive semi-definite matrix from its lower triangle, which is overwritten."""
    values, vectors = eigh(lower, lower=True, overwrite_a=True, check_finite=False, driver="evd")
    return np.maximum(values, 0), vectors
