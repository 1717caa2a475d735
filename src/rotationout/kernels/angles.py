"""From uniform random numbers to tan θ: for draws with torch, and for those of a GPU kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..strength import ANGLE_LIMIT

__all__ = ["tan_of_uniform"]


def tan_of_uniform(uniform: Tensor, law: str, scale: float | Tensor) -> Tensor:
    """Map numbers uniform in (−1, 1) or (0, 1) to tan θ, for every law but ``gaussian_tan``."""
    if law == "uniform_tan":
        return uniform * scale
    if law == "uniform_angle":
        return (uniform * scale).tan()
    sigma = scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=uniform.dtype, device=uniform.device)
    inside = torch.erf(ANGLE_LIMIT / (math.sqrt(2) * sigma))
    quantile = (uniform * inside).clamp(-1 + 2**-24, 1 - 2**-24)  # erfinv is infinite at ±1
    return (math.sqrt(2) * sigma * torch.erfinv(quantile)).tan()
