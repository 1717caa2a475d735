"""How fast noises are beside ``nn.Dropout`` on this machine: `compare`. ``rotationout bench`` prints it."""

from .noises import authors_formula, gaussian_dropout, noises
from .timing import bytes_kept, compare, record, time_side_by_side

__all__ = [
    "authors_formula",
    "bytes_kept",
    "compare",
    "gaussian_dropout",
    "noises",
    "record",
    "time_side_by_side",
]
