"""Launches a 3×3 convolution of few channels on a GPU, in Triton (padding 1, no bias), or the gradient of its input.

The latter is a convolution with mirrored taps and transposed weights. The kernels can also do work for the BatchNorm
before or after the convolution. Import this only where triton is installed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import tiles
from .convolving_kernels import convolve_kernel, strip_kernel
from .handing import PrecedingNorm
from .taps import precision

__all__ = ["EvalNorm", "TrainingNorm", "convolve"]


class TrainingNorm(NamedTuple):
    """A BatchNorm in training mode after a convolution: the last program of the kernel finishes its statistics.

    Args:
        mean: the running mean, (O,) in fp32, which is updated as in torch, and so are the next two.
        var: the running variance.
        batches: the number of batches tracked.
        counter: counts finished programs: an int32, zero before and after the launch, used by this layer alone.
        eps: ε.
        momentum: the momentum of the running statistics.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor
    counter: Tensor
    eps: float
    momentum: float


class EvalNorm(NamedTuple):
    """A BatchNorm in eval mode after a convolution, which the kernel applies, with the ReLU after it.

    Args:
        mean: the running mean, (O,) in fp32, like the next three.
        var: the running variance.
        weight: γ.
        bias: β.
        eps: ε.
        relu: whether to apply a ReLU, after ``added`` of `convolve`.
    """

    mean: Tensor
    var: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    relu: bool


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    mirrored: bool,
    stride: int = 1,
    added: Tensor | None = None,
    preceding_norm: PrecedingNorm | None = None,
    training_norm: TrainingNorm | None = None,
    eval_norm: EvalNorm | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The convolution y of x, and sums or statistics for a BatchNorm.

    Args:
        x: (N, C, H, W) in channels_last.
        weight: (O, C, 3, 3), or (C, O, 3, 3) if mirrored.
        mirrored: compute the gradient of the input: x is then the gradient of the output.
        stride: 1, or 2 for maps with even sides: y has half the rows and columns of x, or twice as many if mirrored.
        added: is added to y, after the norm ``eval_norm`` if there is one, before y is rounded.
        preceding_norm: the norm whose output's gradient is y. y is masked by the norm's ReLU; the sums are those of y,
            before it is rounded, and of y·x̂, see `batchnorm_kernels.sums_kernel`.
        training_norm: the norm in training mode that follows: compute and keep its statistics of the rounded y, which
            it will read.
        eval_norm: the norm in eval mode that follows, which is applied to y; there are no sums.

    Returns:
        y; and, in fp32, the sums of each part for ``preceding_norm``, (parts, 2, O), or mean and 1/√(var + ε) of y for
        ``training_norm``, (2, O), or None.
    """
    rows, columns = (0, 1) if mirrored else (1, 0)  # axes of the weight that are input and output channels
    count, inputs, height, width = x.shape
    outputs = weight.size(columns)
    if stride == 2:
        height, width = (2 * height, 2 * width) if mirrored else (height // 2, width // 2)
    tile = tiles.fitted(tiles.CONVOLVED if stride == 1 else tiles.STRIDED, inputs, x.element_size())
    y = torch.empty((count, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if tile.rows:
        grid = triton.cdiv(count * width, tile.positions), triton.cdiv(height, tile.rows)
    else:
        grid = triton.cdiv(count * height * width, tile.positions), 1
    of = "values" if training_norm is not None else "gradients" if preceding_norm is not None else "none"
    sums = None
    if of != "none":
        sums = torch.empty((grid[0] * grid[1], 2, outputs), dtype=torch.float32, device=x.device)
    norm: tuple[Tensor, ...] = (*((y,) * 5 if preceding_norm is None else preceding_norm[:5]), y, y, y)
    running_mean, saved, eps, momentum, relu = y, None, 0.0, 0.0, False
    if training_norm is not None:
        running_mean, eps, momentum = training_norm.mean, training_norm.eps, training_norm.momentum
        saved = torch.empty((2, outputs), dtype=torch.float32, device=x.device)
        norm = y, y, saved, y, y, training_norm.var, training_norm.batches, training_norm.counter
    if eval_norm is not None:
        running_mean, eps, relu = eval_norm.mean, eval_norm.eps, eval_norm.relu
        norm = y, y, y, eval_norm.weight, eval_norm.bias, eval_norm.var, y, y
    maps = x, weight, y if added is None else added, y, running_mean, y if sums is None else sums
    wide = tiles.power_of_two(outputs)
    settings = {
        "H": height, "W": width, "C": inputs, "O": outputs, "ROW": weight.stride(rows),
        "COLUMN": weight.stride(columns), "DOWN": weight.stride(2), "ALONG": weight.stride(3), "MIRRORED": mirrored,
        "ADDED": added is not None, "SUMS": of, "MASK": "none" if preceding_norm is None else preceding_norm.mask,
        "AT_ONCE": max(16, 1024 * tile.warps // wide), "EVAL_NORM": eval_norm is not None, "RELU": relu,
        "BLOCK_P": tile.positions, "BLOCK_O": wide, "PRECISION": precision(x), **tile.options,
    }  # fmt: skip
    with torch.cuda.device_of(x):  # Triton launches on the current device
        if tile.rows:
            strip_kernel[grid](
                *maps, *norm, eps, momentum, count * width, ROWS=tile.rows, BLOCK_C=tiles.multiplied(inputs), **settings
            )
        else:
            convolve_kernel[grid](
                *maps,
                *norm,
                eps,
                momentum,
                count * height * width,
                STRIDE=stride,
                TAPS=tile.taps,
                DEPTH=tiles.multiplied(tile.taps * inputs),
                **settings,
            )
    return y, sums if saved is None else saved
