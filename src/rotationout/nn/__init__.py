"""Layers, used like those of ``torch.nn``: noises, recurrent networks with noise, and BatchNorm for small batches."""

from .elementwise import CentredDropout, GaussianDropout, Uout
from .isotropic import IsotropicNoise
from .norm import (
    CrossNorm1d,
    CrossNorm2d,
    CrossNorm3d,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    GhostBatchNorm3d,
    PolyBatchNorm1d,
    PolyBatchNorm2d,
    PolyBatchNorm3d,
    convert_batchnorm,
    to_batchnorm,
)
from .recurrent import NoisyGRU, NoisyLSTM
from .rotation import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d
from .sequences import LockedDropout, RotationOutSequence
from .structured import Cutout, ShakeShake
from .weight_drop import WeightDrop

__all__ = [
    "CentredDropout",
    "CrossNorm1d",
    "CrossNorm2d",
    "CrossNorm3d",
    "Cutout",
    "GaussianDropout",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "IsotropicNoise",
    "LockedDropout",
    "NoisyGRU",
    "NoisyLSTM",
    "PolyBatchNorm1d",
    "PolyBatchNorm2d",
    "PolyBatchNorm3d",
    "RotationOut",
    "RotationOut1d",
    "RotationOut2d",
    "RotationOut3d",
    "RotationOutSequence",
    "ShakeShake",
    "Uout",
    "WeightDrop",
    "convert_batchnorm",
    "to_batchnorm",
]
