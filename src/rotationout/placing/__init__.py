"""Noise in models that are there already: place it, put it in Dropout's stead, schedule it, sample with it."""

from ._insert import insert, remove
from ._presets import insert_blocks, insert_in_stages
from ._report import Change, Left, Report
from ._sampling import Samples, predict_samples, sampling
from ._schedule import Schedule
from ._swap import swap

__all__ = [
    "Change",
    "Left",
    "Report",
    "Samples",
    "Schedule",
    "insert",
    "insert_blocks",
    "insert_in_stages",
    "predict_samples",
    "remove",
    "sampling",
    "swap",
]
