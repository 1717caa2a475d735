"""RotationOut (Hu and Póczos, 2019): turn the features of a network by a random angle in a random direction."""

from . import functional, nn, registry, strength
from .nn import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d, RotationOutSequence
from .registry import noise
from .rotation import Draw, Rotation, sample_rotation

__all__ = [
    "Draw",
    "Rotation",
    "RotationOut",
    "RotationOut1d",
    "RotationOut2d",
    "RotationOut3d",
    "RotationOutSequence",
    "functional",
    "nn",
    "noise",
    "registry",
    "sample_rotation",
    "strength",
]

__version__ = "0.1.0"
