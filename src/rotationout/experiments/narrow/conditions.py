"""Decides where the narrow kernels are used: by the types and options of the modules and by their inputs.

Modules with hooks run in torch, so that their hooks are called, and so does everything under torch.compile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ...kernels.dispatch import HAS_TRITON

if TYPE_CHECKING:
    from .convolving import TrainingNorm

__all__ = [
    "can_apply_norm",
    "can_convolve",
    "can_normalise",
    "is_identity",
    "is_ready",
    "precision_of",
    "stride_of",
    "training_norm_for",
]

MULTIPLE, MOST = 16, 64
"""The kernels need numbers of channels that are multiples of the first, and at most the second."""
COLOURS = 3
"""A convolution can also read images with so many channels, but there is no kernel for their gradient."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 2**31
"""The kernels index elements with 32 bits: there must be fewer than this."""
STRIDES = True
"""Whether convolutions with a stride of 2 use the kernels."""
SUMMED = True
"""Whether a convolution also computes the statistics of the BatchNorm after it."""
SETTLED = True
"""Whether a convolution also applies the BatchNorm after it, with the sum and the ReLU, if that is in eval mode.

These three are switches for tests and benchmarks.
"""


def can_convolve(convolution: nn.Module, x: Tensor) -> bool:
    """Whether a kernel can do this convolution of x."""
    if not isinstance(convolution, nn.Conv2d) or not _available(convolution, nn.Conv2d, x):
        return False
    if not (_narrow(x.size(1)) or (x.size(1) == COLOURS and not x.requires_grad)):
        return False
    shape = convolution.kernel_size, convolution.padding, convolution.dilation
    plain = convolution.groups == 1 and convolution.bias is None and convolution.padding_mode == "zeros"
    if shape != ((3, 3), (1, 1), (1, 1)) or not plain or not _narrow(convolution.out_channels):
        return False
    if not (convolution.stride == (1, 1) or (STRIDES and convolution.stride == (2, 2) and _halved(x))):
        return False
    weight = convolution.weight
    rounded = torch.float32 if _casts(x) else x.dtype  # only under autocast is an fp32 weight rounded
    return weight.dtype == rounded and _dense(weight) and convolution.in_channels == x.size(1)


def training_norm_for(
    norm: nn.Module | None, convolution: nn.Module, x: Tensor, residual: Tensor | None
) -> TrainingNorm | None:
    """The norm after a convolution, if the convolution can compute its statistics, else None."""
    if not SUMMED or not isinstance(norm, nn.BatchNorm2d) or not _available(norm, nn.BatchNorm2d, x):
        return None
    if not _norm_fits(norm, _output_shape(convolution, x), precision_of(x), residual):
        return None
    from .convolving import TrainingNorm

    layer: Any = norm  # with all that it may lack
    kept = layer.running_mean, layer.running_var, layer.num_batches_tracked
    return TrainingNorm(*kept, _counter(norm), layer.eps, layer.momentum)


def _counter(norm: nn.BatchNorm2d) -> Tensor:
    """The counter of finished programs of this layer, zero between launches. No other layer shares it.

    A counter made while a CUDA graph is captured is not kept for later calls: it becomes zero only when the graph is
    replayed, and never if the capture fails.
    """
    mean: Any = norm.running_mean
    counter = _counters.get(norm)
    if counter is None or counter.device != mean.device:
        counter = torch.zeros((), dtype=torch.int32, device=mean.device)
        if not _captured(mean):
            _counters[norm] = counter
    return counter


_counters: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def can_normalise(norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels can do this norm of x, with this residual."""
    if not isinstance(norm, nn.BatchNorm2d) or not _available(norm, nn.BatchNorm2d, x):
        return False
    return _norm_fits(norm, tuple(x.shape), x.dtype, residual)


def _norm_fits(norm: nn.BatchNorm2d, shape: tuple[int, ...], dtype: torch.dtype, residual: Tensor | None) -> bool:
    """Whether the kernels can do this norm of such maps: it uses batch statistics and keeps moving averages of them."""
    if not norm.training or not _narrow(norm.num_features) or norm.num_features != shape[1]:
        return False
    if not norm.track_running_stats or norm.running_mean is None or norm.momentum is None or not norm.affine:
        return False
    if norm.weight.dtype != torch.float32 or norm.running_mean.dtype != torch.float32:
        return False
    alike = residual is None or (residual.shape == shape and residual.dtype == dtype)
    return alike and math.prod(shape) > shape[1]  # for a single value torch raises its error


def can_apply_norm(convolution: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernel of this convolution can apply this norm: it is in eval mode, and gradients are off."""
    if not SETTLED or torch.is_grad_enabled() or type(norm) is not nn.BatchNorm2d or norm.training or _has_hooks(norm):
        return False
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return False
    kept = norm.running_mean, norm.running_var, norm.weight, norm.bias
    if any(tensor.dtype != torch.float32 for tensor in kept) or norm.num_features != convolution.out_channels:
        return False
    return residual is None or (residual.shape == _output_shape(convolution, x) and residual.dtype == precision_of(x))


def _available(module: nn.Module, kind: type[nn.Module], x: Tensor) -> bool:
    """Whether the kernels can take such maps here, and the module is exactly of this class and has no hooks."""
    if torch.compiler.is_compiling() or type(module) is not kind or _has_hooks(module):
        return False
    return _on_gpu(x) and x.ndim == 4 and x.dtype in PRECISIONS and _counted(x)


def _has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, which the kernels would not call."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or _has_any_global_hook()


def stride_of(convolution: nn.Module) -> int:
    """The stride of a convolution that a kernel can do, the same in both directions."""
    stride: Any = convolution.stride
    return int(stride[0])


def _output_shape(convolution: nn.Module, x: Tensor) -> tuple[int, ...]:
    """The shape of the output of a convolution that keeps sizes or halves them."""
    stride, channels = stride_of(convolution), convolution.out_channels
    return x.size(0), int(channels), x.size(2) // stride, x.size(3) // stride  # type: ignore[arg-type]


def _halved(x: Tensor) -> bool:
    """Whether the kernels can do a stride of 2 on x: its sides are even, and it is no image."""
    return x.size(1) != COLOURS and x.size(2) % 2 == x.size(3) % 2 == 0


def _on_gpu(x: Tensor) -> bool:
    return HAS_TRITON and x.is_cuda


def _captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _narrow(channels: int) -> bool:
    return channels % MULTIPLE == 0 and 0 < channels <= MOST


def _counted(x: Tensor) -> bool:
    """Whether x is not empty, and 32 bits can index as many positions of the most channels."""
    return 0 < x.numel() // x.size(1) * MOST < LARGEST


def _casts(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def precision_of(x: Tensor) -> torch.dtype:
    """The precision in which a convolution of x computes: that of autocast if it is on."""
    return torch.get_autocast_dtype(x.device.type) if _casts(x) else x.dtype


def is_ready(x: Tensor) -> bool:
    """Whether the kernel of a convolution can read x without a copy."""
    return x.dtype == precision_of(x) and x.is_contiguous(memory_format=torch.channels_last)


def _dense(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


def is_identity(module: nn.Module) -> bool:
    """Whether a module is the identity, and has no hooks.

    >>> is_identity(nn.Identity()), is_identity(nn.ReLU())
    (True, False)
    """
    return type(module) is nn.Identity and not _has_hooks(module)
