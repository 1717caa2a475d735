"""BatchNorm of few channels in training mode, with the sum and the ReLU after it, on a GPU in Triton.

y = relu(γ·(x − mean)/√(var + ε) + β + residual), residual and ReLU being optional. The forward pass has three launches,
and so has the backward pass: in the first every program computes sums over some positions, a small second one adds
these up in a fixed order, so that results are reproducible, and the last goes over the maps again.

Squares are summed about a value of the data, the first of each part and channel, as in Chan, Golub and LeVeque 1983:
nothing cancels where the mean is large. Every part then has a mean and a sum of squares about it, which Chan's formula
combines. The convolution before the norm can compute the statistics instead, from sums about the running mean; until
that is near the mean, variances have fewer digits. The convolution after the norm can compute the sums of the backward
pass, see `rotationout.experiments.narrow.handing`. Import this only where triton is installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import tiles
from .adding import add_up
from .batchnorm_kernels import (
    combine_kernel,
    gradient_kernel,
    moments_kernel,
    normalise_kernel,
    sums_kernel,
)
from .handing import Answer, Offer

__all__ = ["Normalisation", "Running"]

AGAIN = True
"""Whether the backward pass without a residual recomputes the mask of the ReLU from x instead of reading y."""


class Running(NamedTuple):
    """The running statistics of a layer, which every batch updates as in torch."""

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float


class Normalisation(torch.autograd.Function):
    """``relu(batch_norm(x) + residual)`` in the precision of x; gradients of γ and β have the precision of γ and β.

    Args:
        x: (N, C, H, W) in channels_last, C at most 64.
        residual: added before the ReLU, like x, or None.
        weight: γ.
        bias: β.
        running: the running statistics, changed in place.
        eps: ε.
        relu: whether to apply a ReLU.
        statistics: mean and 1/√(var + ε) of the batch, (2, C), with which ``running`` is already updated, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running: Running,
        eps: float,
        relu: bool,
        statistics: Tensor | None = None,
    ) -> Tensor:
        """Run three launches, or one if the convolution before it computed the statistics."""
        grid = _Grid.over(x, tiles.NORMALISED)
        saved, y = statistics, torch.empty_like(x)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            if saved is None:
                saved = torch.empty((2, grid.channels), dtype=torch.float32, device=x.device)
                parts = grid.new_parts(x)
                moments_kernel[(grid.parts,)](x, parts, grid.positions, STEPS=grid.steps, **grid.tile)
                combine_kernel[(triton.cdiv(grid.channels, tiles.COMBINED),)](
                    parts, running.mean, running.var, running.batches, saved, grid.positions, eps, running.momentum,
                    grid.parts, grid.steps * grid.tile["BLOCK_P"], C=grid.channels,
                    PARTS=tiles.power_of_two(grid.parts), BLOCK_C=tiles.COMBINED,
                )  # fmt: skip
            normalise_kernel[(grid.programs,)](
                x, x if residual is None else residual, weight, bias, saved, y, grid.positions,
                RESIDUAL=residual is not None, RELU=relu, **grid.tile,
            )  # fmt: skip
        ctx.added = residual is not None
        ctx.mask = "none" if not relu else "input" if AGAIN and not ctx.added else "output"
        ctx.save_for_backward(x, y if ctx.mask == "output" else x, saved, weight, bias)
        ctx.answer = Answer()
        ctx.offer = Offer(x, saved, weight, bias, ctx.mask, ctx.answer)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Run three launches, or the last one alone if the convolution after it has handed over the sums.

        The gradient of the residual is the masked gradient: with a residual and a ReLU the first launch stores it, and
        the last reads it without a mask.
        """
        x, y, saved, weight, bias = ctx.saved_tensors
        totals, ctx.offer = ctx.answer.of(gradient), None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        grid = _Grid.over(x, tiles.REVERSED)
        passed, mask = gradient, "none"
        with torch.cuda.device_of(x):
            if totals is None:
                stored = ctx.added and ctx.mask != "none"
                passed, mask = (torch.empty_like(x), "none") if stored else (gradient, ctx.mask)
                totals = torch.empty((2, grid.channels), dtype=torch.float32, device=x.device)
                parts = grid.new_parts(x)
                sums_kernel[(grid.parts,)](
                    gradient, x, y, saved, weight, bias, passed, parts, grid.positions,
                    STEPS=grid.steps, MASK=ctx.mask, STORED=stored, **grid.tile,
                )  # fmt: skip
                add_up(parts, totals)
            of_x = torch.empty_like(x)
            gradient_kernel[(grid.programs,)](
                passed, x, y, saved, totals, weight, bias, of_x, grid.positions, MASK=mask, **grid.tile
            )
        return of_x, passed if ctx.added else None, totals[1], totals[0], None, None, None, None


class _Grid(NamedTuple):
    """How the positions of maps are divided: into parts of ``steps`` tiles for sums, and programs of one tile each."""

    positions: int
    channels: int
    steps: int
    parts: int
    programs: int
    tile: dict[str, int]

    @classmethod
    def over(cls, x: Tensor, table: dict[int, tiles.Sums]) -> _Grid:
        """The grid over the positions of x."""
        channels = x.size(1)
        positions = x.numel() // channels
        wide = tiles.power_of_two(channels)
        sizes = table[tiles.choice(channels)]
        block = sizes.elements // wide
        steps = triton.cdiv(triton.cdiv(positions, sizes.parts), block)
        tile = {"C": channels, "BLOCK_P": block, "BLOCK_C": wide, "num_warps": sizes.warps}
        parts, programs = triton.cdiv(positions, steps * block), triton.cdiv(positions, block)
        return cls(positions, channels, steps, parts, programs, tile)

    def new_parts(self, x: Tensor) -> Tensor:
        """An empty tensor for two sums of each part and channel, on the device of x."""
        return torch.empty((self.parts, 2, self.channels), dtype=torch.float32, device=x.device)
