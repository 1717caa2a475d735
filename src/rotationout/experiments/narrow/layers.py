"""A convolution, and BatchNorm with what follows it, by kernels for few channels where they can be used, else by torch.

Modules stay what they are: the kernels read their parameters and keep their statistics. Where anybody watches a module
with hooks, and where torch.compile looks on, the module itself is called.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from ...kernels.dispatch import HAS_TRITON

__all__ = ["KERNELS", "convolve", "convolve_beside", "convolve_normalised", "normalise", "passes"]

KERNELS = ("torch", "fused")
"""By the names that configs use."""
MULTIPLE, MOST = 16, 64
"""Numbers of channels that there are kernels for: multiples of the one, up to the other."""
COLOURS = 3
"""Those of images, which a convolution can also read; but there is no kernel for their gradient."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 2**31
"""Elements that 32 bits can count."""
SUMMED = True
"""Whether convolutions take sums for the BatchNorm behind them."""
LAST = True
"""Whether they finish them too, by the last of their programs."""
STRIDES = True
"""Whether there are kernels for a stride of 2."""
SETTLED = True
"""Whether they also do that BatchNorm, and what follows it, where it goes by the statistics that it kept."""


def convolve(
    convolution: nn.Module,
    x: Tensor,
    fused: bool = True,
    *,
    norm: nn.Module | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``convolution(x)``, and statistics for the BatchNorm behind it, where they cost little.

    Args:
        convolution: any module; a kernel there is for 3×3 convolutions that keep the size, or halve it, and have no
            bias, of few channels, or of images that need no gradient and keep their size.
        x: (N, C, H, W).
        fused: whether to use a kernel where there is one.
        norm: what comes next. If it takes statistics of the batch, the kernel can take them on its way.
        residual: what `normalise` will be given with that.

    Returns:
        The maps; and sums for the statistics, or those themselves, which the norm has kept then; or None. `normalise`
        must be given them with these maps, unchanged, and before that norm sees any other.

    >>> maps, sums = convolve(nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.rand(2, 16, 8, 8))
    >>> maps.shape, sums
    (torch.Size([2, 32, 8, 8]), None)
    """
    if not (fused and _convolves(convolution, x)):
        return _called(convolution, x), None
    from .convolution import Convolution

    origin = _origin(norm, convolution, x, residual)
    x, stride = _arranged(x.to(_precision(x))), _stride(convolution)
    found: Any = Convolution.apply(x, convolution.weight, origin, stride)  # type: ignore[no-untyped-call]
    return (found, None) if origin is None else found


def convolve_beside(
    convolution: nn.Module, x: Tensor, past: Tensor, fused: bool = True, *, norm: nn.Module | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``convolution(x)``, what goes past it, and statistics: where x goes past, a kernel adds the gradients of both.

    Args:
        convolution: as for `convolve`.
        x: (N, C, H, W).
        past: what goes past.
        fused: as for `convolve`.
        norm: as for `convolve`.

    >>> x = torch.rand(2, 16, 8, 8)
    >>> y, past, sums = convolve_beside(nn.Conv2d(16, 32, 3, padding=1, bias=False), x, x)
    >>> y.shape, past is x
    (torch.Size([2, 32, 8, 8]), True)
    """
    if not (fused and x is past and _convolves(convolution, x) and _ready(x)):
        maps, sums = convolve(convolution, x, fused, norm=norm)
        return maps, past, sums
    from .convolution import Fork

    origin = _origin(norm, convolution, x, None)
    found: Any = Fork.apply(x, convolution.weight, origin, _stride(convolution))  # type: ignore[no-untyped-call]
    return (*found, None) if origin is None else found


def convolve_normalised(
    convolution: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool = True,
    fused: bool = True,
) -> Tensor:
    """``relu(residual + norm(convolution(x)))``: one launch, where the norm is in eval mode and nobody differentiates.

    Args:
        convolution: as for `convolve`.
        norm: as for `normalise`.
        x: (N, C, H, W).
        residual: what is added, if anything; as large as what comes out.
        relu: whether there is one.
        fused: whether to use kernels where there are some.

    >>> norm = nn.BatchNorm2d(32).eval()
    >>> convolve_normalised(nn.Conv2d(16, 32, 3, padding=1, bias=False), norm, torch.rand(2, 16, 8, 8)).shape
    torch.Size([2, 32, 8, 8])
    """
    if not (fused and _convolves(convolution, x) and _settles(convolution, norm, x, residual)):
        y, sums = convolve(convolution, x, fused, norm=norm, residual=residual)
        return normalise(norm, y, residual, sums=sums, relu=relu, fused=fused)
    from .convolving import Kept
    from .convolving import convolve as by_kernel

    layer: Any = norm  # with all that it may lack
    kept = Kept(layer.running_mean, layer.running_var, layer.weight, layer.bias, layer.eps, relu)
    weight: Any = convolution.weight
    added = None if residual is None else _arranged(residual)
    x, stride = _arranged(x.to(_precision(x))), _stride(convolution)
    return by_kernel(x, weight, mirrored=False, stride=stride, added=added, kept=kept)[0]


def passes(module: nn.Module) -> bool:
    """Whether a module gives what it is given, and nobody watches it.

    >>> passes(nn.Identity()), passes(nn.ReLU())
    (True, False)
    """
    return type(module) is nn.Identity and not _watched(module)


def normalise(
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    sums: Tensor | None = None,
    relu: bool = True,
    fused: bool = True,
) -> Tensor:
    """``relu(residual + norm(x))``.

    Args:
        norm: any module; kernels there are for BatchNorm in training.
        x: (N, C, H, W).
        residual: what is added, if anything; as large as x.
        sums: that `convolve` gave with x and this norm, if it did: about its running mean, which must still be that, or
            statistics that it has kept already.
        relu: whether there is one.
        fused: whether to use kernels where there are some.

    >>> normalise(nn.BatchNorm2d(16), torch.rand(2, 16, 8, 8), torch.ones(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """
    if not (fused and _normalises(norm, x, residual)):
        plain = _called(norm, x) if residual is None else residual + _called(norm, x)
        return F.relu(plain) if relu else plain
    from .batchnorm import Normalisation, Running

    layer: Any = norm  # with all that it may lack
    running = Running(layer.running_mean, layer.running_var, layer.num_batches_tracked, layer.momentum)
    added = None if residual is None else _arranged(residual)
    y: Tensor = Normalisation.apply(  # type: ignore[no-untyped-call]
        _arranged(x), added, layer.weight, layer.bias, running, layer.eps, relu, sums
    )
    return y


def _convolves(convolution: nn.Module, x: Tensor) -> bool:
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


def _origin(norm: nn.Module | None, convolution: nn.Module, x: Tensor, residual: Tensor | None) -> Any:
    """What a convolution's sums are about: the running mean of a norm that needs them, or all that finishes them."""
    if not SUMMED or not isinstance(norm, nn.BatchNorm2d) or not norm.training or norm.running_mean is None:
        return None
    if norm.num_features != convolution.out_channels or norm.running_mean.dtype != torch.float32:
        return None
    layer: Any = norm  # with all that it may lack
    shape = _shape_behind(convolution, x)
    if not (LAST and _available(norm, nn.BatchNorm2d, x) and _takes(norm, shape, _precision(x), residual)):
        return layer.running_mean
    from .convolving import Behind

    kept = layer.running_mean, layer.running_var, layer.num_batches_tracked
    return Behind(*kept, _counter(norm), layer.eps, layer.momentum)


def _counter(norm: nn.BatchNorm2d) -> Tensor:
    """A zero of this layer's own: nobody else counts with it while its statistics are taken."""
    mean: Any = norm.running_mean
    counter = _counters.get(norm)
    if counter is None or counter.device != mean.device:
        counter = _counters[norm] = torch.zeros((), dtype=torch.int32, device=mean.device)
    return counter


_counters: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def _normalises(norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
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


def _settles(convolution: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernel of this convolution can do this norm: it goes by what it kept, and nobody differentiates."""
    if not SETTLED or torch.is_grad_enabled() or type(norm) is not nn.BatchNorm2d or norm.training or _watched(norm):
        return False
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return False
    kept = norm.running_mean, norm.running_var, norm.weight, norm.bias
    if any(tensor.dtype != torch.float32 for tensor in kept) or norm.num_features != convolution.out_channels:
        return False
    return residual is None or (residual.shape == _shape_behind(convolution, x) and residual.dtype == _precision(x))


def _called(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y


def _available(module: nn.Module, kind: type[nn.Module], x: Tensor) -> bool:
    """Whether there are kernels for such maps here, and nobody watches the module."""
    if torch.compiler.is_compiling() or type(module) is not kind or _watched(module):
        return False
    return _on_gpu(x) and x.ndim == 4 and x.dtype in PRECISIONS and _counted(x)


def _watched(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or _has_any_global_hook()


def _stride(convolution: nn.Module) -> int:
    stride: Any = convolution.stride
    return int(stride[0])


def _shape_behind(convolution: nn.Module, x: Tensor) -> tuple[int, ...]:
    """That of what a convolution gives, which keeps sizes or halves them."""
    stride, channels = _stride(convolution), convolution.out_channels
    return x.size(0), int(channels), x.size(2) // stride, x.size(3) // stride  # type: ignore[arg-type]


def _halved(x: Tensor) -> bool:
    """Whether a stride of 2 ends where x does."""
    return x.size(1) != COLOURS and x.size(2) % 2 == x.size(3) % 2 == 0


def _on_gpu(x: Tensor) -> bool:
    return HAS_TRITON and x.is_cuda


def _narrow(channels: int) -> bool:
    return channels % MULTIPLE == 0 and 0 < channels <= MOST


def _counted(x: Tensor) -> bool:
    """Whether there is anything, and 32 bits count it, also with the most channels."""
    return 0 < x.numel() // x.size(1) * MOST < LARGEST


def _casts(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _precision(x: Tensor) -> torch.dtype:
    """That of a convolution, by autocast if it is on."""
    return torch.get_autocast_dtype(x.device.type) if _casts(x) else x.dtype


def _ready(x: Tensor) -> bool:
    """Whether a convolution takes x as it is."""
    return x.dtype == _precision(x) and x.is_contiguous(memory_format=torch.channels_last)


def _dense(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


def _arranged(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
