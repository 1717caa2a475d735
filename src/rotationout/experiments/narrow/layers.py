"""A convolution, and BatchNorm with what follows it, by kernels for few channels where they can be used, else by torch.

Modules stay what they are: the kernels read their parameters and keep their statistics. `conditions` says where there
are any; elsewhere the module itself is called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import conditions

__all__ = ["KERNELS", "convolve", "convolve_beside", "convolve_normalised", "normalise"]

KERNELS = ("torch", "fused")
"""By the names that configs use."""


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
    if not (fused and conditions.convolves(convolution, x)):
        return _called(convolution, x), None
    from .convolution import Convolution

    origin = conditions.sums_for(norm, convolution, x, residual)
    x, stride = _arranged(x.to(conditions.precision_of(x))), conditions.stride_of(convolution)
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
    if not (fused and x is past and conditions.convolves(convolution, x) and conditions.is_ready(x)):
        maps, sums = convolve(convolution, x, fused, norm=norm)
        return maps, past, sums
    from .convolution import Fork

    origin = conditions.sums_for(norm, convolution, x, None)
    found: Any = Fork.apply(x, convolution.weight, origin, conditions.stride_of(convolution))  # type: ignore[no-untyped-call]
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
    if not (fused and conditions.convolves(convolution, x) and conditions.settles(convolution, norm, x, residual)):
        y, sums = convolve(convolution, x, fused, norm=norm, residual=residual)
        return normalise(norm, y, residual, sums=sums, relu=relu, fused=fused)
    from .convolving import Kept
    from .convolving import convolve as by_kernel

    layer: Any = norm  # with all that it may lack
    kept = Kept(layer.running_mean, layer.running_var, layer.weight, layer.bias, layer.eps, relu)
    weight: Any = convolution.weight
    added = None if residual is None else _arranged(residual)
    x, stride = _arranged(x.to(conditions.precision_of(x))), conditions.stride_of(convolution)
    return by_kernel(x, weight, mirrored=False, stride=stride, added=added, kept=kept)[0]


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
    if not (fused and conditions.normalises(norm, x, residual)):
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


def _called(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y


def _arranged(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
