"""The operator and its draws on a GPU, in Triton. Import this only where triton is installed."""

from .apply import feature_sum, follow_mean, mean_parts, rotate, rotate_centred
from .draws import draw, sample
from .plane import turn_back

__all__ = ["draw", "feature_sum", "follow_mean", "mean_parts", "rotate", "rotate_centred", "sample", "turn_back"]
