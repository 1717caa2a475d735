"""Which implementation runs: the one place where that is decided."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from ..strength import check_choice
from . import cpu, reference

__all__ = ["BACKENDS", "implementation"]

BACKENDS = ("reference", "cpu")


def implementation(x: Tensor, backend: str | None) -> ModuleType:
    """The fastest implementation for ``x``, or the one asked for if it can run.

    While torch.compile traces, the reference is: Inductor fuses it.
    """
    if backend is None:
        eager_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
        return cpu if eager_cpu else reference
    check_choice("backend", backend, BACKENDS)
    if backend == "cpu" and x.device.type != "cpu":
        raise ValueError(f"backend='cpu' runs on CPU tensors, got one on {x.device}; leave backend=None to choose")
    return cpu if backend == "cpu" else reference
