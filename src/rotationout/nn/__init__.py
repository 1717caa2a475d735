"""Layers, for use like those of ``torch.nn``."""

from .elementwise import CentredDropout, GaussianDropout, Uout
from .recurrent import NoisyGRU, NoisyLSTM
from .rotation import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d
from .sequences import LockedDropout, RotationOutSequence
from .structured import Cutout, ShakeShake
from .weight_drop import WeightDrop

__all__ = [
    "CentredDropout",
    "Cutout",
    "GaussianDropout",
    "LockedDropout",
    "NoisyGRU",
    "NoisyLSTM",
    "RotationOut",
    "RotationOut1d",
    "RotationOut2d",
    "RotationOut3d",
    "RotationOutSequence",
    "ShakeShake",
    "Uout",
    "WeightDrop",
]
