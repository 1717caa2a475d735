"""Autograd functions of 3×3 convolutions with few channels on a GPU, in Triton: padding 1, no bias.

Maps are in channels_last. Products are in the input's precision, sums in fp32. Under autocast the kernels read
fp32 weights and round them. Results do not depend on the order in which programs run. If x is directly the output of a
`rotationout.experiments.narrow.batchnorm.Normalisation`, the backward pass also computes the sums that this needs, see
`rotationout.experiments.narrow.handing`. Import this only where triton is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .adding import add_up
from .convolving import TrainingNorm, convolve
from .handing import PrecedingNorm, take
from .weighing import weight_gradient

__all__ = ["Convolution", "Fork"]


class Convolution(torch.autograd.Function):
    """``conv2d(x, weight.to(x.dtype), None, stride, 1)``; the gradient of the weight has the weight's own precision.

    Args:
        x: (N, C, H, W) in channels_last.
        weight: (O, C, 3, 3), contiguous or in channels_last; C and O are multiples of 16, 64 at most.
        training_norm: the norm after the convolution, or None; its statistics are then a second output.
        stride: 1, or 2 for maps with even sides.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, training_norm: TrainingNorm | None = None, stride: int = 1
    ) -> Tensor | tuple[Tensor, Tensor]:
        """One launch."""
        y, statistics = _convolved(ctx, x, weight, training_norm, stride)
        return y if statistics is None else (y, statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Run one launch for the input, two for the weight; the last also adds up sums for the norm before it."""
        return (None,) * 4 if gradient is None else _gradients(ctx, gradient, None)


class Fork(torch.autograd.Function):
    """A `Convolution` of x, and x itself, which goes to the shortcut.

    The kernel that computes the gradient of the convolution's input also adds that of the shortcut. This saves the
    launch, and the pass over the maps, with which autograd would add them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, training_norm: TrainingNorm | None = None, stride: int = 1
    ) -> tuple[Tensor, ...]:
        """One launch."""
        y, statistics = _convolved(ctx, x, weight, training_norm, stride)
        return (y, x) if statistics is None else (y, x, statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, of_shortcut: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Run as many launches as `Convolution`."""
        return (of_shortcut, None, None, None) if gradient is None else _gradients(ctx, gradient, of_shortcut)


def _convolved(
    ctx: Any, x: Tensor, weight: Tensor, training_norm: TrainingNorm | None, stride: int
) -> tuple[Tensor, Tensor | None]:
    ctx.stride, offer = stride, take(x)
    ctx.mask, ctx.answer = ("none", None) if offer is None else (offer.mask, offer.answer)
    ctx.save_for_backward(x, weight, *(() if offer is None else offer[:4]))
    ctx.set_materialize_grads(False)  # zeros for unused outputs would cost launches
    y, statistics = convolve(x, weight, mirrored=False, stride=stride, training_norm=training_norm)
    if statistics is not None:
        ctx.mark_non_differentiable(statistics)
    return y, statistics


def _gradients(ctx: Any, gradient: Tensor, of_shortcut: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, *norm = ctx.saved_tensors
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    of_shortcut = None if of_shortcut is None else of_shortcut.contiguous(memory_format=torch.channels_last)
    of_x, of_weight, beside = None, None, None
    if ctx.needs_input_grad[0]:
        preceding_norm = None
        if norm:
            given, saved, gamma, beta = norm
            preceding_norm = PrecedingNorm(given, x, saved, gamma, beta, ctx.mask)
        of_x, sums = convolve(
            gradient, weight, mirrored=True, stride=ctx.stride, added=of_shortcut, preceding_norm=preceding_norm
        )
        if sums is not None:
            beside = sums, torch.empty(sums.shape[1:], dtype=torch.float32, device=x.device)
            ctx.answer.give(of_x, beside[1])
    if ctx.needs_input_grad[1]:
        of_weight = weight_gradient(x, gradient, weight, stride=ctx.stride, beside=beside)
    elif beside is not None:
        add_up(*beside)
    return of_x, of_weight, None, None
