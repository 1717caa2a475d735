"""RotationOut (Hu and Póczos, 2019): turn the features of a network by a random angle in a random direction."""

from . import functional, nn, placing, registry, strength
from .nn import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d, RotationOutSequence
from .placing import (
    Schedule,
    insert,
    insert_blocks,
    insert_in_stages,
    predict_samples,
    remove,
    sampling,
    swap,
)
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
    "Schedule",
    "functional",
    "insert",
    "insert_blocks",
    "insert_in_stages",
    "nn",
    "noise",
    "placing",
    "predict_samples",
    "registry",
    "remove",
    "sample_rotation",
    "sampling",
    "strength",
    "swap",
]

__version__ = "0.1.0"
