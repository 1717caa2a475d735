"""Where kernels for few channels are used: by what a convolution and a norm are, what they are given, and who looks on.

Where anybody watches a module with hooks, and where torch.compile looks on, there are none.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ...kernels.dispatch import HAS_TRITON

__all__ = ["convolves", "is_ready", "normalises", "passes", "precision_of", "settles", "stride_of", "sums_for"]

MULTIPLE, MOST = 16, 64
"""Numbers of channels that there are kernels for: multiples of the one, up to the other."""
COLOURS = 3
"""Those of images, which a convolution can also read; but there is no kernel for their gradient."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 2**31
"""Elements that 32 bits can count."""
STRIDES = True
"""Whether there are kernels for a stride of 2."""
SUMMED = True
"""Whether convolutions take sums for the BatchNorm behind them."""
LAST = True
"""Whether they finish them too, by the last of their programs."""
SETTLED = True
"""Whether they also do that BatchNorm, and what follows it, where it goes by the statistics that it kept."""


def convolves(convolution: nn.Module, x: Tensor) -> bool:
    """Whether there is a kernel for this."""
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
    rounded = torch.float32 if _casts(x) else x.dtype  # autocast rounds fp32, and without it nobody does
    return weight.dtype == rounded and _dense(weight) and convolution.in_channels == x.size(1)


def sums_for(norm: nn.Module | None, convolution: nn.Module, x: Tensor, residual: Tensor | None) -> Any:
    """What a convolution's sums are about: the running mean of a norm that needs them, or all that finishes them."""
    if not SUMMED or not isinstance(norm, nn.BatchNorm2d) or not norm.training or norm.running_mean is None:
        return None
    if norm.num_features != convolution.out_channels or norm.running_mean.dtype != torch.float32:
        return None
    layer: Any = norm  # with all that it may lack
    shape = _shape_behind(convolution, x)
    if not (LAST and _available(norm, nn.BatchNorm2d, x) and _takes(norm, shape, precision_of(x), residual)):
        return layer.running_mean
    from .convolving import Behind

    kept = layer.running_mean, layer.running_var, layer.num_batches_tracked
    return Behind(*kept, _counter(norm), layer.eps, layer.momentum)


def _counter(norm: nn.BatchNorm2d) -> Tensor:
    """A zero of this layer's own: nobody else counts with it while its statistics are taken.

    One that is made while a CUDA graph is captured is that graph's alone: it is no zero before the graph is replayed,
    and never if the capture fails.
    """
    mean: Any = norm.running_mean
    counter = _counters.get(norm)
    if counter is None or counter.device != mean.device:
        counter = torch.zeros((), dtype=torch.int32, device=mean.device)
        if not _captured(mean):
            _counters[norm] = counter
    return counter


_counters: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def normalises(norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether there are kernels for this."""
    if not isinstance(norm, nn.BatchNorm2d) or not _available(norm, nn.BatchNorm2d, x):
        return False
    return _takes(norm, tuple(x.shape), x.dtype, residual)


def _takes(norm: nn.BatchNorm2d, shape: tuple[int, ...], dtype: torch.dtype, residual: Tensor | None) -> bool:
    """Whether kernels do this of such maps: the layer takes a batch's statistics, and a moving average of them."""
    if not norm.training or not _narrow(norm.num_features) or norm.num_features != shape[1]:
        return False
    kept = norm.track_running_stats and norm.running_mean is not None and norm.momentum is not None
    if not kept or not norm.affine or norm.weight.dtype != torch.float32:
        return False
    alike = residual is None or (residual.shape == shape and residual.dtype == dtype)
    return alike and math.prod(shape) > shape[1]  # of a single value torch says what is wrong


def settles(convolution: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernel of this convolution can do this norm: it goes by what it kept, and nobody differentiates."""
    if not SETTLED or torch.is_grad_enabled() or type(norm) is not nn.BatchNorm2d or norm.training or _watched(norm):
        return False
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return False
    kept = norm.running_mean, norm.running_var, norm.weight, norm.bias
    if any(tensor.dtype != torch.float32 for tensor in kept) or norm.num_features != convolution.out_channels:
        return False
    return residual is None or (residual.shape == _shape_behind(convolution, x) and residual.dtype == precision_of(x))


def _available(module: nn.Module, kind: type[nn.Module], x: Tensor) -> bool:
    """Whether there are kernels for such maps here, and nobody watches the module."""
    if torch.compiler.is_compiling() or type(module) is not kind or _watched(module):
        return False
    return _on_gpu(x) and x.ndim == 4 and x.dtype in PRECISIONS and _counted(x)


def _watched(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or _has_any_global_hook()


def stride_of(convolution: nn.Module) -> int:
    """The same down and along, of a convolution that there is a kernel for."""
    stride: Any = convolution.stride
    return int(stride[0])


def _shape_behind(convolution: nn.Module, x: Tensor) -> tuple[int, ...]:
    """That of what a convolution gives, which keeps sizes or halves them."""
    stride, channels = stride_of(convolution), convolution.out_channels
    return x.size(0), int(channels), x.size(2) // stride, x.size(3) // stride  # type: ignore[arg-type]


def _halved(x: Tensor) -> bool:
    """Whether a stride of 2 ends where x does."""
    return x.size(1) != COLOURS and x.size(2) % 2 == x.size(3) % 2 == 0


def _on_gpu(x: Tensor) -> bool:
    return HAS_TRITON and x.is_cuda


def _captured(x: Tensor) -> bool:
    """Whether what is done with x is looked at for a CUDA graph, and not done."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _narrow(channels: int) -> bool:
    return channels % MULTIPLE == 0 and 0 < channels <= MOST


def _counted(x: Tensor) -> bool:
    """Whether there is anything, and 32 bits count it, also with the most channels."""
    return 0 < x.numel() // x.size(1) * MOST < LARGEST


def _casts(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def precision_of(x: Tensor) -> torch.dtype:
    """That of a convolution, by autocast if it is on."""
    return torch.get_autocast_dtype(x.device.type) if _casts(x) else x.dtype


def is_ready(x: Tensor) -> bool:
    """Whether a convolution takes x as it is."""
    return x.dtype == precision_of(x) and x.is_contiguous(memory_format=torch.channels_last)


def _dense(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


def passes(module: nn.Module) -> bool:
    """Whether a module gives what it is given, and nobody watches it.

    >>> passes(nn.Identity()), passes(nn.ReLU())
    (True, False)
    """
    return type(module) is nn.Identity and not _watched(module)
