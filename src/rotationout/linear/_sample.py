"""A weighted sample about its mean, read in blocks of rows so that it need not be copied whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

__all__ = ["Array", "Sample", "near_one", "square"]

Array = NDArray[Any]


class Sample:
    """Rows z = √s·(x − m) and t = √s·(y − μ), with weights s and, if centred, their weighted means m and μ.

    Args:
        x: features, (n, D), of a floating dtype.
        y: targets, (n, k), of the same dtype.
        weight: s, (n,), or None for ones.
        centred: subtract the means of x and y, which fits an intercept.

    Attributes:
        total: Σ s.
        x_mean: m, zeros if not centred.
        y_mean: μ, likewise.
        units: what the numbers in x and in y were divided by, see `near_one`.
    """

    units = 1.0, 1.0

    def __init__(self, x: Array, y: Array, weight: Array | None, *, centred: bool) -> None:
        self.x, self.y, self.weight, self.centred = x, y, weight, centred
        counts = np.ones(len(x), dtype=x.dtype) if weight is None else weight.astype(x.dtype, copy=False)
        self.total = float(counts.sum(dtype=np.float64))
        self.root = None if weight is None else np.sqrt(counts)[:, None]
        self.x_mean = _mean(x, counts, self.total) if centred else np.zeros(x.shape[1], x.dtype)
        self.y_mean = _mean(y, counts, self.total) if centred else np.zeros(y.shape[1], y.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""
        return self.x.shape[0], self.x.shape[1]

    def double(self) -> Sample:
        """The same in fp64, copied."""
        return Sample(self.x.astype(np.float64), self.y.astype(np.float64), self.weight, centred=self.centred)

    def take(self, rows: Array) -> Sample:
        """Some of the rows, with their own mean."""
        weight = None if self.weight is None else self.weight[rows]
        return Sample(self.x[rows], self.y[rows], weight, centred=self.centred)

    def blocks(self, elements: int = 2**23) -> Iterator[tuple[slice, Array, Array]]:
        """Slices of rows with their z and t. The memory of z is reused for the next block.

        Args:
            elements: the size of a block, usually 64 MB, so that the BLAS is called seldom.
        """
        n, features = self.shape
        # A product with a block should be worth reading a D × D matrix for.
        rows = min(n, max(1024, elements // features))
        memory = np.empty((rows, features), dtype=self.x.dtype)
        for start in range(0, n, rows):
            part = slice(start, min(start + rows, n))
            z = np.subtract(self.x[part], self.x_mean, out=memory[: part.stop - start])
            t = self.y[part] - self.y_mean
            if self.root is not None:
                z *= self.root[part]
                t *= self.root[part]
            yield part, z, t

    def moments(self) -> tuple[Array, Array]:
        """ZᵀZ, of which only the lower triangle is filled, and Zᵀt."""
        features = self.shape[1]
        gram = np.zeros((features, features), dtype=self.x.dtype, order="F")
        cross = np.zeros((features, self.y.shape[1]), dtype=self.x.dtype)
        for _, z, t in self.blocks():
            square(z.T, into=gram)
            cross += z.T @ t
        return gram, cross

    def energy(self) -> Array:
        """Σ z² of every feature, the diagonal of ZᵀZ."""
        energy = np.zeros(self.shape[1], dtype=self.x.dtype)
        for _, z, _ in self.blocks():
            energy += np.einsum("ij,ij->j", z, z)
        return self.without_rounding(energy)

    def without_rounding(self, energy: Array) -> Array:
        """Zero for constant features, whose energy is only rounding error: of their mean, and of its sum in fp64."""
        exact = np.finfo(np.float64).eps * np.sqrt(len(self.x))
        rounding = 8 * max(exact, np.finfo(self.x.dtype).eps) * self.x_mean
        return np.where(energy > self.total * rounding**2, energy, 0)

    def rows(self) -> tuple[Array, Array]:
        """All of z and t, copied."""
        z, t = np.empty_like(self.x, order="C"), np.empty_like(self.y, order="C")
        for part, block, targets in self.blocks():
            z[part], t[part] = block, targets
        return z, t


def near_one(numbers: Array) -> tuple[Array, float]:
    """Divide numbers whose squares might overflow or vanish by a power of two, which loses nothing; return it too.

    >>> numbers, unit = near_one(np.array([3.0, 0.75]) * 2.0**600)
    >>> numbers, math.log2(unit)
    (array([1.5  , 0.375]), 601.0)
    """
    largest = float(max(numbers.max(), -numbers.min()))
    limit = 1e10 if numbers.dtype == np.float32 else 1e100
    if largest == 0 or 1 / limit <= largest <= limit:
        return numbers, 1.0
    exponent = math.frexp(largest)[1] - 1
    return np.ldexp(numbers, -exponent), math.ldexp(1.0, exponent)


def _mean(x: Array, counts: Array, total: float) -> Array:
    """The weighted mean of rows, summed in fp64 and rounded once."""
    if x.dtype == np.float64:  # a product with a matrix, which the BLAS spreads over threads; numpy's mean it does not
        return np.asarray(counts @ x / total)
    found = np.zeros(x.shape[1])
    for start in range(0, len(x), 1024):
        part = slice(start, start + 1024)
        found += counts[part].astype(np.float64) @ x[part].astype(np.float64)
    return np.asarray(found / total, dtype=x.dtype)


def square(a: Array, *, into: Array | None = None) -> Array:
    """The lower triangle of a·aᵀ, half the work of a product; added in place to ``into`` (Fortran order) if given.

    ``a`` is read without a copy if it is in Fortran order or the transpose of such a matrix.
    """
    (syrk,) = get_blas_funcs(("syrk",), (a,))
    turned = not a.flags.f_contiguous
    c = np.zeros((len(a), len(a)), dtype=a.dtype, order="F") if into is None else into
    result: Array = syrk(1.0, a.T if turned else a, beta=1.0, c=c, trans=int(turned), lower=1, overwrite_c=1)
    return result
