"""The paper's noise analysis (section 3) as tools: what a noise does to the moments of features, and what follows.

Closed forms need the moments of features alone; beside each stands a measurement, on data or on a model.
"""

from .accumulate import MomentAccumulator
from .coadaptation import Coadaptation, coadaptation, coadaptation_factor, coadaptation_of
from .correlation import PairwiseCorrelation, Turn, cosine_squared, dropout_rotation, pairwise_correlation
from .estimate import MomentEstimate, estimate_moments
from .law import NoiseLaw, noise_law
from .moments import Moments, conditional_moments, relu_moments, total_moments
from .shift_theory import ShiftSample, expected_shift, limit_ratio, sample_shift, variance_ratio

__all__ = [
    "Coadaptation",
    "MomentAccumulator",
    "MomentEstimate",
    "Moments",
    "NoiseLaw",
    "PairwiseCorrelation",
    "ShiftSample",
    "Turn",
    "coadaptation",
    "coadaptation_factor",
    "coadaptation_of",
    "conditional_moments",
    "cosine_squared",
    "dropout_rotation",
    "estimate_moments",
    "expected_shift",
    "limit_ratio",
    "noise_law",
    "pairwise_correlation",
    "relu_moments",
    "sample_shift",
    "total_moments",
    "variance_ratio",
]
