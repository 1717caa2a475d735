"""A convolution, and BatchNorm with the sum and the ReLU after it: by the narrow kernels where possible, else by torch.

The functions take torch's own modules: the kernels read their parameters and update their statistics. `conditions`
decides where the kernels can be used; elsewhere the module itself is called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import conditions

__all__ = ["KERNELS", "convolve", "convolve_normalised", "convolve_with_shortcut", "normalise"]

KERNELS = ("torch", "fused")
"""The choices of the field ``kernels`` of configs."""


def convolve(
    convolution: nn.Module,
    x: Tensor,
    fused: bool = True,
    *,
    norm: nn.Module | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``convolution(x)``, and statistics for the BatchNorm after it where the kernel can compute them cheaply.

    Args:
        convolution: any module. There are kernels for 3×3 convolutions without bias, with few channels, that keep the
            size or halve it; the input may also be images of three channels that need no gradient and keep their size.
        x: (N, C, H, W).
        fused: whether to use a kernel where there is one.
        norm: the layer that follows. If it needs statistics of the batch, the kernel can compute them.
        residual: the residual that `normalise` will be given with that norm.

    Returns:
        The maps; and the statistics, with which the norm is then already updated, or None. Pass these to `normalise`
        with the unchanged maps.

    >>> maps, statistics = convolve(nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.rand(2, 16, 8, 8))
    >>> maps.shape, statistics
    (torch.Size([2, 32, 8, 8]), None)
    """
    if not (fused and conditions.can_convolve(convolution, x)):
        return _called(convolution, x), None
    from .convolution import Convolution

    training_norm = conditions.training_norm_for(norm, convolution, x, residual)
    x, stride = _arranged(x.to(conditions.precision_of(x))), conditions.stride_of(convolution)
    found: Any = Convolution.apply(x, convolution.weight, training_norm, stride)  # type: ignore[no-untyped-call]
    return (found, None) if training_norm is None else found


def convolve_with_shortcut(
    convolution: nn.Module, x: Tensor, shortcut: Tensor, fused: bool = True, *, norm: nn.Module | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``convolution(x)``, the input of the shortcut beside it, and statistics.

    If x itself is the input of the shortcut, the kernel for the gradient of x also adds the gradient of the shortcut.

    Args:
        convolution: as for `convolve`.
        x: (N, C, H, W).
        shortcut: the input of the shortcut, which is returned: x itself, or x before a noise.
        fused: as for `convolve`.
        norm: as for `convolve`.

    >>> x = torch.rand(2, 16, 8, 8)
    >>> y, shortcut, statistics = convolve_with_shortcut(nn.Conv2d(16, 32, 3, padding=1, bias=False), x, x)
    >>> y.shape, shortcut is x
    (torch.Size([2, 32, 8, 8]), True)
    """
    if not (fused and x is shortcut and conditions.can_convolve(convolution, x) and conditions.is_ready(x)):
        maps, statistics = convolve(convolution, x, fused, norm=norm)
        return maps, shortcut, statistics
    from .convolution import Fork

    training_norm, stride = conditions.training_norm_for(norm, convolution, x, None), conditions.stride_of(convolution)
    found: Any = Fork.apply(x, convolution.weight, training_norm, stride)  # type: ignore[no-untyped-call]
    return (*found, None) if training_norm is None else found


def convolve_normalised(
    convolution: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool = True,
    fused: bool = True,
) -> Tensor:
    """``relu(residual + norm(convolution(x)))``: in one launch if the norm is in eval mode and gradients are off.

    Args:
        convolution: as for `convolve`.
        norm: as for `normalise`.
        x: (N, C, H, W).
        residual: added before the ReLU, of the shape of the output, or None.
        relu: whether to apply a ReLU.
        fused: whether to use kernels where there are some.

    >>> norm = nn.BatchNorm2d(32).eval()
    >>> convolve_normalised(nn.Conv2d(16, 32, 3, padding=1, bias=False), norm, torch.rand(2, 16, 8, 8)).shape
    torch.Size([2, 32, 8, 8])
    """
    if not (
        fused and conditions.can_convolve(convolution, x) and conditions.can_apply_norm(convolution, norm, x, residual)
    ):
        y, statistics = convolve(convolution, x, fused, norm=norm, residual=residual)
        return normalise(norm, y, residual, statistics=statistics, relu=relu, fused=fused)
    from .convolving import EvalNorm
    from .convolving import convolve as by_kernel

    layer: Any = norm  # with all that it may lack
    eval_norm = EvalNorm(layer.running_mean, layer.running_var, layer.weight, layer.bias, layer.eps, relu)
    weight: Any = convolution.weight
    added = None if residual is None else _arranged(residual)
    x, stride = _arranged(x.to(conditions.precision_of(x))), conditions.stride_of(convolution)
    return by_kernel(x, weight, mirrored=False, stride=stride, added=added, eval_norm=eval_norm)[0]


def normalise(
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    statistics: Tensor | None = None,
    relu: bool = True,
    fused: bool = True,
) -> Tensor:
    """``relu(residual + norm(x))``.

    Args:
        norm: any module; there are kernels for BatchNorm in training mode.
        x: (N, C, H, W).
        residual: added before the ReLU, of the shape of x, or None.
        statistics: what `convolve` returned with x for this norm, or None.
        relu: whether to apply a ReLU.
        fused: whether to use kernels where there are some.

    >>> normalise(nn.BatchNorm2d(16), torch.rand(2, 16, 8, 8), torch.ones(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """
    if not (fused and conditions.can_normalise(norm, x, residual)):
        plain = _called(norm, x) if residual is None else residual + _called(norm, x)
        return F.relu(plain) if relu else plain
    from .batchnorm import Normalisation, Running

    layer: Any = norm  # with all that it may lack
    running = Running(layer.running_mean, layer.running_var, layer.num_batches_tracked, layer.momentum)
    added = None if residual is None else _arranged(residual)
    y: Tensor = Normalisation.apply(  # type: ignore[no-untyped-call]
        _arranged(x), added, layer.weight, layer.bias, running, layer.eps, relu, statistics
    )
    return y


def _called(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y


def _arranged(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
