"""The paper's noise analysis on your own data and network: measured, repaired and checked."""

from ._lint import RULES, Finding, Findings, lint
from .repair import Repair, Repaired, correct_batchnorm_, recalibrate_batchnorm_
from .shift import LayerShift, VarianceShift, variance_shift

__all__ = [
    "RULES",
    "Finding",
    "Findings",
    "LayerShift",
    "Repair",
    "Repaired",
    "VarianceShift",
    "correct_batchnorm_",
    "lint",
    "recalibrate_batchnorm_",
    "variance_shift",
]
