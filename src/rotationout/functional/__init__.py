"""Noises as functions, which check their inputs, return early when off, and centre; each noise has a layer in `nn`."""

from .elementwise import centred_dropout, gaussian_dropout, uout
from .isotropic import isotropic_noise
from .rotation import rotate, rotation_out
from .sequences import locked_dropout
from .structured import cutout, shake_shake

__all__ = [
    "centred_dropout",
    "cutout",
    "gaussian_dropout",
    "isotropic_noise",
    "locked_dropout",
    "rotate",
    "rotation_out",
    "shake_shake",
    "uout",
]
