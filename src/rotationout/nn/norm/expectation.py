"""BatchNorm's training output for one Gaussian value of a small batch: f_Expect, f_Var and f_poly (appendix B).

Let x be one of B independent N(0, 1) values. The other B − 1 (label dif) have a mean μ ~ N(0, 1 / (B − 1)) and,
independently, r² = (B − 1)·σ² ~ χ² with B − 2 degrees of freedom. With u = (x − μ)·√((B − 1) / B) the leave-one-out
identity of appendix B reads

    f_Train = √(B − 1) · u / √(r² + u²).

Writing (r² + u²)^−½ and (r² + u²)^−1 as integrals of exp(−s·(r² + u²)) over s leaves Gaussian and χ² averages that are
known, so that both moments given x are smooth integrals over one variable. Gauss–Legendre quadrature computes them to
about 1e−12, and to 1e−6 where B is small and not whole.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...strength import check_number

__all__ = ["check_batch_size", "f_poly", "gauss_legendre", "gaussian_moments", "poly_coefficients", "turning_point"]

NODES = 96
FIT_LIMIT = 4.5
"""The polynomial is fitted for |x| below this, weighted by the density. The paper does not say where its fit ends. The
largest of some 1e5 Gaussian samples is about here, and of such limits this one comes closest to the printed
coefficients; rarer values would pull at the fit by their seventh powers."""


def check_batch_size(batch_size: object) -> float:
    """A batch size of at least 2 as a float, or an error. It need not be whole: correlated values count in part."""
    size = check_number("batch_size", batch_size)
    if not 2.0 <= size < math.inf:
        raise ValueError(
            f"batch_size must be finite and at least 2, the fewest values that have a variance, got {size!r}"
        )
    return size


@functools.lru_cache(maxsize=8)
def gauss_legendre(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss–Legendre rule on [0, 1], from the eigenvectors of its Jacobi matrix.

    >>> node, weight = gauss_legendre(5)
    >>> round(float((weight * node**8).sum()), 12)  # 1 / 9
    0.111111111111
    """
    with torch.inference_mode(False), _disable_current_modes():  # cached: these must be plain tensors
        k = torch.arange(1, nodes, dtype=torch.float64, device="cpu")
        beside = k / (4 * k**2 - 1).sqrt()
        place, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
        return (place + 1) / 2, vectors[0] ** 2


def gaussian_moments(x: Tensor, batch_size: float) -> tuple[Tensor, Tensor]:
    """f_Expect and f_Var of appendix B for N(0, 1), in fp64: the mean and variance of f_Train given one value x.

    >>> expect, var = gaussian_moments(torch.tensor([0.0, 1.0]), 8)
    >>> expect.tolist(), var.tolist()  # doctest: +ELLIPSIS
    ([0.0, 1.0078...], [0.1919..., 0.1714...])
    """
    size = check_batch_size(batch_size)
    node, weight = (part.to(x.device) for part in gauss_legendre())
    tan = torch.tan(node * (math.pi / 2))
    slope = (math.pi / 2) * weight * (1 + tan**2)  # of tan, times the weights
    s = tan**2 / (2 * size)  # scaled so that the integrands keep their width for every B
    spread = 1 + 2 * s / size  # of u, whose variance is 1 / B
    mean = x.double().unsqueeze(-1) * math.sqrt((size - 1) / size)
    common = torch.exp(-(mean**2) * s / spread - (size - 2) / 2 * torch.log1p(2 * s))
    first = mean * spread**-1.5 * common
    second = spread**-0.5 * (1 / (size * spread) + (mean / spread) ** 2) * common
    expect = math.sqrt(2 * (size - 1) / (math.pi * size)) * (first @ slope)
    square = (size - 1) / size * (second @ (tan * slope))
    return expect, square - expect**2


@functools.lru_cache(maxsize=1024)
def poly_coefficients(batch_size: float, limit: float = FIT_LIMIT) -> tuple[float, float, float, float]:
    """a₁, a₃, a₅ and a₇ of f_poly (appendix B): the odd polynomial closest to f_Expect under the Gaussian density.

    At B = 8 the paper prints 1.0919, −8.8903e−2, 6.5157e−3 and −1.9404e−4, from Monte Carlo.

    Args:
        batch_size: B.
        limit: the largest |x| that counts.

    >>> [float(f"{a:.5g}") for a in poly_coefficients(8)]
    [1.0918, -0.08863, 0.0064339, -0.00018806]
    """
    with _disable_current_modes():  # FakeTensorMode's tensors have no values
        node, weight = gauss_legendre()
        x = node * limit
        root = (weight * torch.exp(-(x**2) / 2)).sqrt()
        powers = torch.stack([x, x**3, x**5, x**7], dim=1)
        expect, _ = gaussian_moments(x, batch_size)
        solution = torch.linalg.lstsq(powers * root.unsqueeze(1), (expect * root).unsqueeze(1)).solution
        a1, a3, a5, a7 = solution.flatten().tolist()
    return a1, a3, a5, a7


def turning_point(coefficients: tuple[float, float, float, float]) -> float:
    """The smallest x > 0 where a₁x + a₃x³ + a₅x⁵ + a₇x⁷ stops growing, or infinity.

    >>> round(turning_point((1.0919, -8.8903e-2, 6.5157e-3, -1.9404e-4)), 2)  # the paper's
    3.76
    """
    a1, a3, a5, a7 = coefficients
    # The slope is a cubic in x²; its roots are the inverses of the eigenvalues of this matrix, which always exists.
    rows = [[-3 * a3 / a1, -5 * a5 / a1, -7 * a7 / a1], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    with _disable_current_modes():
        inverses = torch.linalg.eigvals(torch.tensor(rows, dtype=torch.float64, device="cpu")).tolist()
    largest = max((z.real for z in inverses if abs(z.imag) <= 1e-9 * abs(z.real)), default=0.0)
    return 1 / math.sqrt(largest) if largest > 0 else math.inf


def f_poly(x: Tensor, batch_size: float) -> Tensor:
    """f_poly of appendix B: approximately the mean training output of BatchNorm for a standardised value x.

    It is held constant beyond the polynomial's turning point (|x| = 3.80 at B = 8), or it would change its sign.

    Args:
        x: (input − mean) / standard deviation, any shape and floating dtype.
        batch_size: how many independent values, at least 2, were normalised together.

    >>> f_poly(torch.tensor([0.5, 3.0, 50.0]), 8)
    tensor([0.5350, 2.0345, 2.2317])
    """
    coefficients = poly_coefficients(check_batch_size(batch_size))
    return evaluate(x, coefficients, turning_point(coefficients))


def evaluate(x: Tensor, coefficients: tuple[float, float, float, float], limit: float) -> Tensor:
    """The polynomial at x, clamped to ±``limit``, by Horner's rule."""
    a1, a3, a5, a7 = coefficients
    x = x.clamp(-limit, limit) if limit < math.inf else x
    square = x * x
    return x * (a1 + square * (a3 + square * (a5 + square * a7)))
