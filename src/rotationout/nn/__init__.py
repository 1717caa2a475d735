"""Layers, for use like those of ``torch.nn``."""

from .rotation import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d

__all__ = ["RotationOut", "RotationOut1d", "RotationOut2d", "RotationOut3d"]
