"""Noises as functions. Here inputs are checked, gated and centred; a function has a layer of the same name in `nn`."""

from .elementwise import centred_dropout, gaussian_dropout, uout
from .rotation import rotate, rotation_out
from .sequences import locked_dropout
from .structured import cutout, shake_shake

__all__ = [
    "centred_dropout",
    "cutout",
    "gaussian_dropout",
    "locked_dropout",
    "rotate",
    "rotation_out",
    "shake_shake",
    "uout",
]
