"""The margin that RotationOut requires of a linear classifier (label logistic): the angle that the boundary moves by.

Between classes i and j the sign of (wᵢ − wⱼ)·x decides. It is the sign of the angle β between x and the boundary, the
hyperplane of equal logits:

    sin β = (wᵢ − wⱼ)·x / (|wᵢ − wⱼ|·|x|).

Where |wᵢ| = |wⱼ| and x lies in their plane, the angles of the paper are θⱼ − θᵢ = 2β. A rotation adds tan θ · A x, of
length |x|·|tan θ| and perpendicular to x. A share ξ of it points across the boundary, so the decision is the sign of
tan β + ξ·tan θ. For features in general position ξ is a coordinate of a random direction in D − 1 dimensions, so
E ξ² = 1/(D − 1): in two dimensions x must be the whole angle θ away from the boundary, in many dimensions far less.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, roots_legendre

from .. import strength
from ._sample import Array

__all__ = ["boundary_angle", "flip_probability", "margin_angle"]


def boundary_angle(X: Any, coef: Any) -> Array:
    """The angle, in radians, between every row and the boundary w·x = 0; positive on the side that w points to.

    Args:
        X: features, (n, D).
        coef: w, (D,): the weights of one class minus those of another.

    >>> boundary_angle([[1.0, 0.0], [1.0, -1.0]], [1.0, 1.0]) / math.pi
    array([0.25, 0.  ])
    """
    rows, weights = np.asarray(X, dtype=np.float64), np.asarray(coef, dtype=np.float64)
    if rows.ndim != 2 or weights.shape != rows.shape[1:]:
        raise ValueError(f"X must be (n, D) and coef (D,), got shapes {rows.shape} and {weights.shape}")
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(weights)
    if not (lengths > 0).all():
        raise ValueError("X and coef must have no NaN and no rows of zeros, which have no direction")
    return np.asarray(np.arcsin(np.clip(rows @ weights / lengths, -1, 1)))


def flip_probability(angle: Any, p: float, features: int) -> Array:
    """How often RotationOut (Gaussian tan θ) moves a point across a boundary that is ``angle`` away from it.

    P(tan β + ξ·tan θ < 0) for a random orientation of point and boundary, even D; ½ on the boundary.

    Args:
        angle: β in radians, |β| < π/2, any shape; negative on the wrong side.
        p: drop probability of the equally strong Dropout, positive.
        features: D, even.

    >>> round(float(flip_probability(math.radians(10), 0.5, 2)), 3)  # P(tan θ > tan 10°), tan θ ~ N(0, 1)
    0.43
    """
    beta = np.asarray(angle, dtype=np.float64)
    if not (np.abs(beta) < math.pi / 2).all():
        raise ValueError(f"angle must be in radians, between −π/2 and π/2, got {angle!r}")
    sigma, shares, weights = _noise(p, features)
    return np.asarray(ndtr(-np.tan(beta)[..., None] / (sigma * shares)) @ weights)


def margin_angle(p: float, features: int, flips: float = 0.05) -> float:
    """The angle β that a point must be away from a boundary for RotationOut to move it across in only few draws.

    The paper's condition θᵢ < θⱼ turns into θᵢ < θⱼ − Θ with Θ = 2β, which falls as 1/√D.

    Args:
        p: drop probability of the equally strong Dropout, positive.
        features: D, even.
        flips: the share of draws that may move the point across, between 0 and ½.

    >>> [round(math.degrees(margin_angle(0.5, features)), 1) for features in (2, 8, 64, 512)]
    [58.7, 31.9, 11.4, 4.0]
    """
    share = strength.check_number("flips", flips)
    if not 0.0 < share < 0.5:
        raise ValueError(f"flips must be between 0 and ½, got {share!r}")
    _noise(p, features)

    def excess(beta: float) -> float:  # continuous and decreasing, ½ − flips at zero
        return float(flip_probability(beta, p, features)) - share

    return float(brentq(excess, 0.0, math.pi / 2 * (1 - 1e-12)))


def _noise(p: float, features: int) -> tuple[float, Array, Array]:
    """σ of tan θ, and values of |ξ| with their probabilities."""
    sigma = math.sqrt(strength.to_lam("dropout", p))
    if sigma == 0.0:
        raise ValueError("p must be positive: without noise no point crosses a boundary")
    number = strength.check_integer("features", features, 2)
    if number % 2:
        raise ValueError(f"features must be an even integer, got {number}")
    return sigma, *_shares(number)


@functools.lru_cache(maxsize=64)
def _shares(features: int) -> tuple[Array, Array]:
    if features == 2:  # the only direction perpendicular to x
        return np.ones(1), np.ones(1)
    # ξ² of a random direction among D − 1 has the law Beta(½, D/2 − 1). Its quantiles at Gauss and Legendre's nodes
    # give probabilities that are right to 5e-6.
    nodes, weights = roots_legendre(200)
    return np.sqrt(betaincinv(0.5, features / 2 - 1, (nodes + 1) / 2)), weights / 2
