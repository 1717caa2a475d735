"""The operator and its draws on a GPU, in Triton. Import this only where triton is installed."""

from .apply import feature_sum, rotate, rotate_centred
from .draws import draw, sample

__all__ = ["draw", "feature_sum", "rotate", "rotate_centred", "sample"]
