"""The choice of the implementation.

Two modules run the reference without asking: `rotationout.kernels.autograd` where every step must be torch's own, and
`rotationout.kernels.triton` for what its programs do not take.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..strength import check_choice
from . import cpu, opaque, reference, small

__all__ = ["BACKENDS", "implementation", "is_recorded", "sampler"]

BACKENDS = ("reference", "small", "cpu", "triton")
HAS_TRITON = importlib.util.find_spec("triton") is not None


def implementation(x: Tensor, backend: str | None) -> ModuleType:
    """The fastest implementation for ``x``, or the one asked for if it can run.

    Under torch.compile it is `opaque`, the GPU kernels as operators of torch, or where these cannot run the reference.
    """
    compiling = torch.compiler.is_compiling()
    if backend is not None:
        check_choice("backend", backend, BACKENDS, also="None")
        reason = _obstacle(backend, x)
        if reason:
            raise ValueError(f"backend={backend!r} {reason}; leave backend=None to choose what can run")
    else:
        names = ("triton", "reference") if compiling else ("triton", "small", "cpu", "reference")
        backend = next(name for name in names if not _obstacle(name, x))
    if backend == "triton":
        return opaque if compiling else _triton()
    return {"small": small, "cpu": cpu, "reference": reference}[backend]


def sampler(device: torch.device | None, features: int, structured: bool) -> ModuleType | None:
    """The module that makes a whole draw in one kernel; None where it cannot, as inside vmap or for fake tensors."""
    if device is None or device.type != "cuda" or not HAS_TRITON:
        return None
    if torch.compiler.is_compiling():
        return opaque if structured or features <= opaque.SORT_LIMIT else None
    transformed = is_recorded() or torch._C._functorch.peek_interpreter_stack() is not None
    return None if transformed or _get_current_dispatch_mode() is not None else _triton()


def is_recorded() -> bool:
    """Whether torch.jit.trace records this: only what torch itself computes is recorded."""
    return torch._C._get_tracing_state() is not None


def _obstacle(backend: str, x: Tensor) -> str:
    """Why an implementation cannot run on ``x``; empty if it can."""
    if backend != "reference" and is_recorded():
        return "is unknown to torch.jit.trace"
    if backend in ("small", "cpu"):
        if _get_current_dispatch_mode() is not None:  # FakeTensorMode would leave its tensors in their tables
            return "runs outside of dispatch modes"
        if x.device.type != "cpu":
            return f"runs on CPU tensors, got one on {x.device}"
        if x.numel() == 0:
            return "needs at least one element"
    if backend == "small" and x.numel() > small.MOST:
        return f"is for {small.MOST} elements at most, got {x.numel()}"
    if backend == "triton":
        if not HAS_TRITON:
            return "needs triton, which is not installed"
        if x.device.type != "cuda":
            return f"runs on CUDA tensors, got one on {x.device}"
        if x.dtype == torch.float64:
            return "computes in fp32, got a tensor of torch.float64"
    if backend != "reference" and type(x) not in (Tensor, torch.nn.Parameter):  # e.g. a fake tensor without memory
        return f"runs on plain tensors, got {type(x).__name__}"
    return ""


def _triton() -> ModuleType:
    from . import triton

    return triton
