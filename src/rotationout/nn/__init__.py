"""Layers, for use like those of ``torch.nn``."""

from .elementwise import CentredDropout, GaussianDropout, Uout
from .rotation import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d
from .structured import Cutout, ShakeShake

__all__ = [
    "CentredDropout",
    "Cutout",
    "GaussianDropout",
    "RotationOut",
    "RotationOut1d",
    "RotationOut2d",
    "RotationOut3d",
    "ShakeShake",
    "Uout",
]
