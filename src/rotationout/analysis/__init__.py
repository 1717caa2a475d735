"""The paper's noise analysis (section 3) as tools: what a noise does to the moments of features, and what follows."""

from .accumulate import MomentAccumulator
from .estimate import MomentEstimate, estimate_moments
from .law import NoiseLaw, noise_law
from .moments import Moments, conditional_moments, relu_moments, total_moments

__all__ = [
    "MomentAccumulator",
    "MomentEstimate",
    "Moments",
    "NoiseLaw",
    "conditional_moments",
    "estimate_moments",
    "noise_law",
    "relu_moments",
    "total_moments",
]
