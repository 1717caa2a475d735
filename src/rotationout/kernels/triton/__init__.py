"""The operator and its draws on a GPU, in Triton. Import this only where triton is installed."""

from .apply import feature_sum, rotate, rotate_centred
from .draw import sample

__all__ = ["feature_sum", "rotate", "rotate_centred", "sample"]
