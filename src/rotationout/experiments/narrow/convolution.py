"""3×3 convolutions of few channels on a GPU, in Triton: stride 1, padding 1, no bias; and their gradients.

Maps are in channels_last. Products are of the input's precision, sums in fp32. Weights are read as they are and rounded
in the kernel, as autocast would round them before. Nothing depends on the order in which programs run. Import this only
where triton is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .convolving import convolve
from .weighing import weigh

__all__ = ["Convolution", "Fork"]


class Convolution(torch.autograd.Function):
    """``conv2d(x, weight.to(x.dtype), padding=1)``; the gradient of the weight is of the weight's own precision.

    Args:
        x: (N, C, H, W) in channels_last.
        weight: (O, C, 3, 3), contiguous or in channels_last; C and O are multiples of 16, 64 at most.
        origin: (O,) in fp32, a running mean; if it is given, `convolve`'s sums about it are a further output.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, origin: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """One launch."""
        y, sums = _convolved(ctx, x, weight, origin)
        return y if sums is None else (y, sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """One launch for the input, two for the weight."""
        return (None, None, None) if gradient is None else _gradients(ctx, gradient, None)


class Fork(torch.autograd.Function):
    """A `Convolution` of x, and x itself, which goes past it to a sum.

    The gradients of both meet in the kernel that takes that of the convolution: a launch, and a pass over the maps,
    that autograd would need to add them up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, origin: Tensor | None = None) -> tuple[Tensor, ...]:
        """One launch."""
        y, sums = _convolved(ctx, x, weight, origin)
        return (y, x) if sums is None else (y, x, sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, past: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """As many as `Convolution` has."""
        return (past, None, None) if gradient is None else _gradients(ctx, gradient, past)


def _convolved(ctx: Any, x: Tensor, weight: Tensor, origin: Tensor | None) -> tuple[Tensor, Tensor | None]:
    ctx.save_for_backward(x, weight)
    ctx.set_materialize_grads(False)  # zeros for what nobody used would be launches
    y, sums = convolve(x, weight, mirrored=False, origin=origin)
    if sums is not None:
        ctx.mark_non_differentiable(sums)
    return y, sums


def _gradients(ctx: Any, gradient: Tensor, past: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    past = None if past is None else past.contiguous(memory_format=torch.channels_last)
    of_x = convolve(gradient, weight, mirrored=True, added=past)[0] if ctx.needs_input_grad[0] else None
    of_weight = weigh(x, gradient, weight) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None
