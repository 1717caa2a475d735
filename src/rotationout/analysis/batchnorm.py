"""BatchNorm of small batches (appendix B): how training and test mode differ, for any batch size and distribution.

One of B independent values x₁, …, x_B is fixed at x, the others are random. In training BatchNorm (ε = 0) maps x to

    f_Train(x, B) = (x − μ_B) / σ_B = √((B − 1) / B) · (x − μ) / √(σ² + (x − μ)² / B),

with μ and σ² the mean and (biased) variance of the *others* (label dif): the leave-one-out identity, `leave_one_out`.
f_Expect and f_Var are the mean and the variance of f_Train over the others; the prefactor of f_Var is (B − 1) / B,
where the paper prints its root. In test mode BatchNorm maps x to f_Test(x, B) = (x − E[x]) / √Var[x], the same for
every B: the printed E[σ_B] should be √E[σ_B²], which the running variance estimates.

For Gaussian values the moments are computed by quadrature, for real B too (`rotationout.nn.norm.expectation` has the
integrals). For others they are Monte-Carlo estimates with their standard errors, drawn from torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import strength
from ..nn.norm.expectation import (
    check_batch_size,
    f_poly,
    gauss_legendre,
    gaussian_moments,
    poly_coefficients,
    turning_point,
)
from .distributions import DISTRIBUTIONS, Distribution, Source, as_distribution

__all__ = [
    "DISTRIBUTIONS",
    "Distribution",
    "Estimate",
    "Moments",
    "cross_norm_factor",
    "effective_batch_size",
    "equivalent_drop_rate",
    "f_expect",
    "f_poly",
    "f_test",
    "f_train",
    "f_var",
    "leave_one_out",
    "moments",
    "poly_coefficients",
    "turning_point",
]

SAMPLES = 100_000
CHUNK = 2**22  # numbers held at a time


class Estimate(NamedTuple):
    """A value and its standard error, zero where it was not sampled.

    >>> f_expect(torch.tensor([0.0]), 8).error
    tensor([0.], dtype=torch.float64)
    """

    value: Tensor
    error: Tensor


class Moments(NamedTuple):
    """Mean and variance of f_Train given x.

    >>> expect, var = moments(torch.tensor([0.0]), 8)
    >>> abs(expect.value.item()) < 1e-12, 0 < var.value.item() < 1
    (True, True)
    """

    expect: Estimate
    var: Estimate


def f_train(batch: Tensor) -> Tensor:
    """BatchNorm's output in training, ε = 0, for batches along the last axis; 0 for a batch of equal values.

    >>> f_train(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247])
    """
    check_batch_size(batch.size(-1))
    about = batch - batch.mean(-1, keepdim=True)
    return _ratio(about, about.square().mean(-1, keepdim=True))


def leave_one_out(x: Tensor, mean: Tensor, var: Tensor, batch_size: float) -> Tensor:
    """f_Train of x from the mean and the (biased) variance of the other values of its batch.

    >>> others = torch.tensor([1.0, 3.0])
    >>> leave_one_out(torch.tensor(2.0), others.mean(), others.var(correction=0), 3)
    tensor(0.)
    """
    size = check_batch_size(batch_size)
    about = x - mean
    return math.sqrt((size - 1) / size) * _ratio(about, var + about**2 / size)


def f_test(x: Tensor, distribution: Source = "gaussian") -> Tensor:
    """BatchNorm's output in test mode, (x − E[x]) / √Var[x], the same for every batch size.

    >>> f_test(torch.tensor([0.5, 1.0]), "uniform")
    tensor([0.0000, 1.7321])
    """
    law = as_distribution(distribution)
    return (x - law.mean) / law.std


def f_expect(x: Tensor, batch_size: float, distribution: Source = "gaussian", *, samples: int = SAMPLES) -> Estimate:
    """The mean of BatchNorm's output in training, given one value; see `moments`.

    >>> f_expect(torch.tensor([1.0, 3.0]), 8).value  # test mode: 1 and 3
    tensor([1.0079, 2.0246], dtype=torch.float64)
    """
    return moments(x, batch_size, distribution, samples=samples).expect


def f_var(x: Tensor, batch_size: float, distribution: Source = "gaussian", *, samples: int = SAMPLES) -> Estimate:
    """The variance of BatchNorm's output in training, given one value: its noise; see `moments`.

    >>> f_var(torch.tensor([1.0, 3.0]), 8).value
    tensor([0.1715, 0.0653], dtype=torch.float64)
    """
    return moments(x, batch_size, distribution, samples=samples).var


def moments(x: Tensor, batch_size: float, distribution: Source = "gaussian", *, samples: int = SAMPLES) -> Moments:
    """f_Expect and f_Var of appendix B.

    Args:
        x: the fixed values, of any shape, on the scale of the distribution. All see the same batches, so that errors at
            different x are correlated.
        batch_size: B, at least 2; a whole number unless the distribution is Gaussian.
        distribution: that of the other values: a name of `DISTRIBUTIONS`; a `Distribution`; one of torch's; or a tensor
            of data, from which they are drawn with replacement.
        samples: how many batches are drawn.

    >>> value, error = moments(torch.tensor([1.0]), 8, "uniform", samples=1000).expect
    >>> value.shape, bool(error > 0)
    (torch.Size([1]), True)
    """
    law = as_distribution(distribution)
    if law.gaussian:
        expect, var = gaussian_moments(f_test(x.double(), law), batch_size)
        return Moments(Estimate(expect, torch.zeros_like(expect)), Estimate(var, torch.zeros_like(var)))
    samples = strength.check_integer("samples", samples, 2)
    size, points = _whole(batch_size), x.double().flatten().cpu()
    sums = torch.zeros(4, points.numel(), dtype=torch.float64)
    for others in _batches(law, size - 1, samples, points.numel()):
        out = leave_one_out(points, others.mean(1, keepdim=True), others.var(1, correction=0, keepdim=True), size)
        square = out * out
        sums += torch.stack([part.sum(0) for part in (out, square, square * out, square * square)])
    m1, m2, m3, m4 = sums / samples
    spread = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    var = spread * (samples / (samples - 1))
    errors = [(square.clamp_min(0) / samples).sqrt() for square in (var, fourth - spread**2)]
    value, error, var, var_error = (t.view(x.shape).to(x.device) for t in (m1, errors[0], var, errors[1]))
    return Moments(Estimate(value, error), Estimate(var, var_error))


def equivalent_drop_rate(
    batch_size: float, distribution: Source = "gaussian", *, samples: int = 10 * SAMPLES
) -> Estimate:
    """The drop rate p of the (centred) Dropout with the same share of noise in the variance: p = E[f_Var].

    Var[f_Train] = 1 is the sum of noise, E[f_Var], and signal, Var[f_Expect]. Dropout turns a variance v into
    v / (1 − p), of which a share p is noise. For other than Gaussian values two batches are drawn that share one value:
    its outputs differ by noise alone, so half their mean square difference is E[f_Var].

    >>> [round(float(equivalent_drop_rate(size).value), 3) for size in (4, 8, 16)]
    [0.338, 0.173, 0.089]
    """
    law = as_distribution(distribution)
    if law.gaussian:
        node, weight = gauss_legendre()
        x = 20 * node - 10
        _, var = gaussian_moments(x, batch_size)
        value = 20 / math.sqrt(2 * math.pi) * (weight * torch.exp(-(x**2) / 2) * var).sum()
        return Estimate(value, torch.zeros_like(value))
    samples = strength.check_integer("samples", samples, 2)
    size = _whole(batch_size)
    noise, total = [], []
    for batch in _batches(law, 2 * size - 1, samples, 1):
        x, first, second = batch.split([1, size - 1, size - 1], dim=1)
        one, two = (
            leave_one_out(x, part.mean(1, keepdim=True), part.var(1, correction=0, keepdim=True), size)
            for part in (first, second)
        )
        noise.append((one - two).square().flatten() / 2)
        total.append((one**2 + two**2).flatten() / 2)
    parts, whole = torch.cat(noise), torch.cat(total)  # `whole` has mean 1, or less where values repeat
    share = parts.mean() / whole.mean()
    return Estimate(share, (parts - share * whole).std() / whole.mean() / math.sqrt(samples))


def cross_norm_factor(batch_size: float) -> float:
    """E[1/σ]·√Var[x] for the deviation σ of the B − 1 others, Gaussian: how much steeper CrossNorm is than 1 / √Var[x].

    With ν = B − 2 degrees of freedom it is √(ν/2)·Γ((ν − 1)/2) / Γ(ν/2).

    >>> round(cross_norm_factor(8), 4)
    1.1512
    """
    size = check_batch_size(batch_size)
    if size <= 3:
        raise ValueError(f"E[1/σ] is infinite for batch_size = {batch_size!r}: it must be more than 3")
    half = (size - 2) / 2
    return math.sqrt(half) * math.exp(math.lgamma(half - 0.5) - math.lgamma(half))


def effective_batch_size(x: Tensor, batch_size: float) -> Tensor:
    """How many independent values would give a mean as precise as that of ``batch_size`` maps, for every channel.

    It is B·Var[x] / Var[mean of a map], between B and B·H·W where positions correlate positively. Give it to
    `rotationout.nn.PolyBatchNorm2d` as ``batch_size``.

    Args:
        x: features (N, C, …) of many examples.
        batch_size: B, the number of examples that are normalised together.

    >>> effective_batch_size(torch.randn(1000, 2, 1, 1).expand(-1, -1, 4, 4), 8)
    tensor([8., 8.], dtype=torch.float64)
    """
    size = check_batch_size(batch_size)
    if x.ndim < 2 or x.size(0) < 2:
        raise ValueError(f"x must be (N, C, …) with at least 2 examples, got {tuple(x.shape)}")
    values = x.double().flatten(2) if x.ndim > 2 else x.double().unsqueeze(-1)
    between = values.mean(2).var(0)
    within = values.var(2, correction=0).mean(0)  # E[Var] + Var[E]: the total variance of a position
    return size * (within + between) / between


def _ratio(above: Tensor, square: Tensor) -> Tensor:
    return torch.where(square > 0, above / square.sqrt(), 0.0)


def _whole(batch_size: float) -> int:
    size = check_batch_size(batch_size)
    if size != int(size):
        raise ValueError(f"batch_size must be a whole number where batches are drawn, got {size!r}")
    return int(size)


def _batches(law: Distribution, values: int, samples: int, points: int) -> Iterator[Tensor]:
    """``samples`` rows of ``values`` in chunks, for a computation that holds ``points`` numbers for a row."""
    rows = max(1, CHUNK // max(values, points))
    for start in range(0, samples, rows):
        yield law.sample((min(rows, samples - start), values))
