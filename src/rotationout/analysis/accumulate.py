"""Means, covariances and their standard errors of rows that come in batches: one pass, in memory that does not grow."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["MomentAccumulator"]


class MomentAccumulator:
    """The mean and covariance of rows that come in batches, with their standard errors, in fp64 and one pass.

    Sums of products are kept about the mean, and moved to the new mean whenever a batch is added (Chan, Golub and
    LeVeque 1979; for higher powers Pébay 2008), so that no digits cancel however far the mean is from zero.

    Args:
        covariance: keep the (D, D) covariance; otherwise the variances alone, D numbers.
        errors: keep fourth moments too, for the standard errors; three times the memory.

    >>> seen = MomentAccumulator()
    >>> for batch in torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0], [6.0, 7.0]]).split(3):
    ...     seen.update(batch)
    >>> seen.count, seen.mean, seen.covariance
    (4, tensor([3., 4.], dtype=torch.float64), tensor([[4.6667, 4.0000],
            [4.0000, 6.0000]], dtype=torch.float64))
    """

    def __init__(self, *, covariance: bool = True, errors: bool = True) -> None:
        self.count = 0
        self._full = covariance
        self._errors = errors
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._sums: tuple[Tensor, ...] = ()  # Σ dᵢdⱼ, and for errors Σ dᵢ²dⱼ and Σ dᵢ²dⱼ²; i = j without covariance

    def update(self, rows: Tensor) -> None:
        """Add a batch of rows, (n, D)."""
        if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.is_complex():
            got = f"{rows.dtype} of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            raise TypeError(f"rows must be a real tensor (n, D), got {got}")
        if len(rows) == 0:
            return
        part = MomentAccumulator(covariance=self._full, errors=self._errors)
        values = rows.detach().double()
        part.count, part._mean = len(rows), values.mean(0)
        off = values - part._mean
        part._sums = (part._dot(off, off),)
        if self._errors:
            part._sums += (part._dot(off**2, off), part._dot(off**2, off**2))
        self.merge(part)

    def merge(self, other: MomentAccumulator) -> None:
        """Add the rows that another one has seen, e.g. in another process."""
        if (self._full, self._errors) != (other._full, other._errors):
            raise ValueError("accumulators must be built with the same covariance and errors to be merged")
        if other.count == 0:
            return
        if self.count == 0:
            self.count, self._mean, self._sums = other.count, other._mean, other._sums
            return
        if self._mean.shape != other._mean.shape:
            raise ValueError(f"rows have {other._mean.numel()} features, but there were {self._mean.numel()} before")
        theirs = other._to(self._mean.device)
        count = self.count + theirs.count
        mean = self._mean + (theirs._mean - self._mean) * (theirs.count / count)
        pairs = zip(self._about(mean), theirs._about(mean), strict=True)
        self.count, self._mean, self._sums = count, mean, tuple(ours + added for ours, added in pairs)

    @property
    def mean(self) -> Tensor:
        """The mean, (D,)."""
        self._check(1)
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """The covariance (D, D), with n − 1 in the denominator."""
        if not self._full:
            raise ValueError("only variances were kept; build it with covariance=True")
        self._check(2)
        return self._sums[0] / (self.count - 1)

    @property
    def variance(self) -> Tensor:
        """The variances, (D,), with n − 1 in the denominator."""
        self._check(2)
        return self._diagonal(self._sums[0]) / (self.count - 1)

    @property
    def mean_error(self) -> Tensor:
        """The standard error of the mean, (D,)."""
        return (self.variance / self.count).sqrt()

    @property
    def covariance_error(self) -> Tensor:
        """The standard error of the covariance, (D, D), for many rows: √(Var[dᵢdⱼ] / n)."""
        if not self._full:
            raise ValueError("only variances were kept; build it with covariance=True")
        return self._second_error()

    @property
    def variance_error(self) -> Tensor:
        """The standard error of the variances, (D,), for many rows."""
        return self._diagonal(self._second_error())

    def _second_error(self) -> Tensor:
        if not self._errors:
            raise ValueError("no fourth moments were kept; build it with errors=True")
        self._check(2)
        second, _, fourth = (total / self.count for total in self._sums)
        return ((fourth - second**2).clamp(min=0) / self.count).sqrt()

    def _about(self, point: Tensor) -> tuple[Tensor, ...]:
        """The sums with d = x − point instead of x − mean."""
        a = self._mean - point
        i, j = (a[:, None], a[None, :]) if self._full else (a, a)
        second = self._sums[0]
        moved = second + self.count * i * j
        if not self._errors:
            return (moved,)
        _, third, fourth = self._sums
        own = self._diagonal(second)
        own_i, own_j, third_ji = (own[:, None], own[None, :], third.mT) if self._full else (own, own, third)
        return (
            moved,
            third + 2 * i * second + j * own_i + self.count * i**2 * j,
            fourth
            + 2 * (j * third + i * third_ji)
            + j**2 * own_i
            + i**2 * own_j
            + 4 * i * j * second
            + self.count * i**2 * j**2,
        )

    def _dot(self, left: Tensor, right: Tensor) -> Tensor:
        return left.mT @ right if self._full else (left * right).sum(0)

    def _diagonal(self, second: Tensor) -> Tensor:
        return second.diagonal() if self._full else second

    def _to(self, device: torch.device) -> MomentAccumulator:
        if self._mean.device == device:
            return self
        moved = MomentAccumulator(covariance=self._full, errors=self._errors)
        moved.count, moved._mean = self.count, self._mean.to(device)
        moved._sums = tuple(total.to(device) for total in self._sums)
        return moved

    def _check(self, least: int) -> None:
        if self.count < least:
            raise ValueError(f"needs at least {least} rows, got {self.count}")
