"""RotationOut (Hu and Póczos, 2019): turn the features of a network by a random angle in a random direction.

Names are imported when they are first used: torch takes seconds, and a command line that only prints its help, or
completes a word, does not need it.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import analysis, functional, nn, placing, registry, strength
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
    "analysis",
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

_MODULES = ("analysis", "functional", "nn", "placing", "registry", "strength")
_EXTRAS = ("linear",)
"""Modules that need more than torch, and so are no part of ``from rotationout import *``."""
_NAMES = {
    "nn": ("RotationOut", "RotationOut1d", "RotationOut2d", "RotationOut3d", "RotationOutSequence"),
    "placing": (
        "Schedule",
        "insert",
        "insert_blocks",
        "insert_in_stages",
        "predict_samples",
        "remove",
        "sampling",
        "swap",
    ),
    "registry": ("noise",),
    "rotation": ("Draw", "Rotation", "sample_rotation"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562); from then on it is an attribute as any other."""
    if name in (*_MODULES, *_EXTRAS):
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    """The public names, the parts of the package that are imported, and what every module has."""
    there = {name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType)}
    return sorted(there | {*__all__})
