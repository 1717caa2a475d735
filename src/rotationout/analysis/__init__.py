"""The paper's noise analysis (section 3) as tools: what a noise does to the moments of features, and what follows.

Closed forms need only the moments of the features; for each there is also a measurement, on data or on a model.
"""

from . import batchnorm
from ._coadaptation import Coadaptation, coadaptation, coadaptation_factor, coadaptation_of
from ._lint import RULES, Finding, Findings, lint
from .accumulate import MomentAccumulator
from .correlation import PairwiseCorrelation, Turn, cosine_squared, dropout_rotation, pairwise_correlation
from .estimate import MomentEstimate, estimate_moments
from .law import NoiseLaw, noise_law
from .moments import Moments, conditional_moments, relu_moments, total_moments
from .repair import Repair, Repaired, correct_batchnorm_, recalibrate_batchnorm_
from .shift import LayerShift, VarianceShift, variance_shift
from .shift_theory import ShiftSample, expected_shift, limit_ratio, sample_shift, variance_ratio

__all__ = [
    "RULES",
    "Coadaptation",
    "Finding",
    "Findings",
    "LayerShift",
    "MomentAccumulator",
    "MomentEstimate",
    "Moments",
    "NoiseLaw",
    "PairwiseCorrelation",
    "Repair",
    "Repaired",
    "ShiftSample",
    "Turn",
    "VarianceShift",
    "batchnorm",
    "coadaptation",
    "coadaptation_factor",
    "coadaptation_of",
    "conditional_moments",
    "correct_batchnorm_",
    "cosine_squared",
    "dropout_rotation",
    "estimate_moments",
    "expected_shift",
    "limit_ratio",
    "lint",
    "noise_law",
    "pairwise_correlation",
    "recalibrate_batchnorm_",
    "relu_moments",
    "sample_shift",
    "total_moments",
    "variance_ratio",
    "variance_shift",
]
