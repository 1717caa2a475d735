"""BatchNorm of few channels in training, with what follows it in a residual network, on a GPU in Triton.

y = relu(γ·(x − mean)/√(var + ε) + β + residual), the last two steps being optional, in two launches, and its gradients
in two: the first of each takes sums over some positions each, the second finishes them, every program for itself, and
goes over the maps once more. Parts are combined in one order, so that nothing depends on how programs run.

Variances are sums of squares about a value of the data, the first of each part and channel, which is as far from the
mean as data are (Chan, Golub and LeVeque 1983): nothing cancels where the mean is large. Parts then have means and
sums of squares about these, which Chan's formula combines. Import this only where triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import tiles

__all__ = ["Normalisation", "Running"]


class Running(NamedTuple):
    """What a layer keeps of its batches, brought up to date with every one as torch does it."""

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float


class Normalisation(torch.autograd.Function):
    """``relu(batch_norm(x) + residual)``, of x's precision; gradients of γ and β are of their own.

    Args:
        x: (N, C, H, W) in channels_last, C at most 64; as residual.
        residual: added before the ReLU, or None.
        weight: γ.
        bias: β.
        running: changed in place.
        eps: ε.
        relu: whether there is one.
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
    ) -> Tensor:
        """Two launches."""
        grid = _Grid.over(x, tiles.NORMALISED)
        parts = torch.empty((grid.parts, 2, grid.channels), dtype=torch.float32, device=x.device)
        saved = torch.empty((2, grid.channels), dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _moments_kernel[(grid.parts,)](x, parts, grid.positions, STEPS=grid.steps, **grid.tile)
            _normalise_kernel[(grid.programs,)](
                x, x if residual is None else residual, parts, weight, bias, running.mean, running.var, running.batches,
                y, saved, grid.positions, grid.parts, eps, running.momentum, STEPS=grid.steps,
                RESIDUAL=residual is not None, RELU=relu, PARTS=tiles.power_of_two(grid.parts), **grid.tile,
            )  # fmt: skip
        ctx.save_for_backward(x, y if relu else x, saved, weight)
        ctx.relu, ctx.added = relu, residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Two launches."""
        x, y, saved, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        grid = _Grid.over(x, tiles.REVERSED)
        parts = torch.empty((grid.parts, 2, grid.channels), dtype=torch.float32, device=x.device)
        of_x, of_weight, of_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        masked = ctx.added and ctx.relu
        of_residual = torch.empty_like(x) if masked else gradient if ctx.added else None
        with torch.cuda.device_of(x):
            _sums_kernel[(grid.parts,)](
                gradient, x, y, saved, parts, grid.positions, STEPS=grid.steps, RELU=ctx.relu, **grid.tile
            )
            _gradient_kernel[(grid.programs,)](
                gradient, x, y, saved, parts, weight, of_x, of_residual if masked else of_x, of_weight, of_bias,
                grid.positions, grid.parts, RESIDUAL=masked, RELU=ctx.relu, PARTS=tiles.power_of_two(grid.parts),
                **grid.tile,
            )  # fmt: skip
        return of_x, of_residual, of_weight, of_bias, None, None, None


class _Grid(NamedTuple):
    """How maps are shared out: to parts of ``steps`` tiles for sums, and to programs of a tile each."""

    positions: int
    channels: int
    steps: int
    parts: int
    programs: int
    tile: dict[str, int]

    @classmethod
    def over(cls, x: Tensor, table: dict[int, tiles.Sums]) -> _Grid:
        """That of x."""
        channels = x.size(1)
        positions = x.numel() // channels
        wide = tiles.power_of_two(channels)
        sizes = table[tiles.choice(channels)]
        block = sizes.elements // wide
        steps = triton.cdiv(triton.cdiv(positions, sizes.parts), block)
        tile = {"C": channels, "BLOCK_P": block, "BLOCK_C": wide, "num_warps": sizes.warps}
        parts, programs = triton.cdiv(positions, steps * block), triton.cdiv(positions, block)
        return cls(positions, channels, steps, parts, programs, tile)


@triton.jit
def _tile(start, count, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Where the elements of some positions lie, and which of these places are elements: (BLOCK_P, BLOCK_C)."""
    p = start + tl.arange(0, BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    return p[:, None] * C + c[None, :], (p < count)[:, None] & (c < C)[None, :]


@triton.jit
def _moments_kernel(
    x, parts, count, STEPS: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Mean, and sum of squares about it, of some positions: parts (parts, 2, C)."""
    part = tl.program_id(0)
    first = part * (STEPS * BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    origin = tl.load(x + first * C + c, mask=c < C, other=0.0).to(tl.float32)
    once = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    squared = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(STEPS):
        at, inside = _tile(first + step * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
        distance = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - origin[None, :]
        distance = tl.where(inside, distance, 0.0)
        once += distance
        squared += distance * distance
    some = tl.minimum(count - first, STEPS * BLOCK_P).to(tl.float32)
    total = tl.sum(once, 0)
    mine = parts + part * (2 * C) + c
    tl.store(mine, origin + total / some, mask=c < C)
    tl.store(mine + C, tl.sum(squared, 0) - total * total / some, mask=c < C)


@triton.jit
def _normalise_kernel(
    x,
    residual,
    parts,
    weight,
    bias,
    running_mean,
    running_var,
    batches,
    y,
    saved,
    count,
    known,
    eps,
    momentum,
    STEPS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Some positions of y; the first program also keeps the statistics. saved (2, C) is mean and 1/√(var + ε)."""
    program = tl.program_id(0)
    at, inside = _tile(program * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
    value = tl.load(x + at, mask=inside, other=0.0)
    if RESIDUAL:
        added = tl.load(residual + at, mask=inside, other=0.0)
    c = tl.arange(0, BLOCK_C)
    channel = c < C
    part = tl.arange(0, PARTS)
    # Channels go down here: what is found of them is then moved to where the maps need it, and not the maps to it.
    place = parts + part[None, :] * (2 * C) + c[:, None]
    there = (part < known)[None, :] & channel[:, None]
    means = tl.load(place, mask=there, other=0.0)
    squares = tl.load(place + C, mask=there, other=0.0)
    some = tl.minimum(tl.maximum(count - part * (STEPS * BLOCK_P), 0), STEPS * BLOCK_P).to(tl.float32)[None, :]
    mean = tl.sum(means * some, 1) / count
    apart = means - mean[:, None]
    square = tl.sum(squares + apart * apart * some, 1)
    scale = 1 / tl.sqrt(square / count + eps)
    factor = scale * tl.load(weight + c, mask=channel, other=0.0).to(tl.float32)
    offset = tl.load(bias + c, mask=channel, other=0.0).to(tl.float32)
    if program == 0:
        tl.store(saved + c, mean, mask=channel)
        tl.store(saved + C + c, scale, mask=channel)
        old = tl.load(running_mean + c, mask=channel, other=0.0)
        tl.store(running_mean + c, old + momentum * (mean - old), mask=channel)
        old = tl.load(running_var + c, mask=channel, other=0.0)
        tl.store(running_var + c, old + momentum * (square / (count - 1) - old), mask=channel)
        tl.store(batches, tl.load(batches) + 1)
    found = (value.to(tl.float32) - mean[None, :]) * factor[None, :] + offset[None, :]
    if RESIDUAL:
        found += added.to(tl.float32)
    if RELU:
        found = tl.where(found <= 0, 0.0, found)  # what is not a number stays so
    tl.store(y + at, found.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _passed(gradient, y, at, inside, RELU: tl.constexpr):
    """The gradient before the ReLU."""
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(y + at, mask=inside, other=0.0).to(tl.float32) <= 0, 0.0, g)
    return g


@triton.jit
def _sums_kernel(
    gradient,
    x,
    y,
    saved,
    parts,
    count,
    STEPS: tl.constexpr,
    RELU: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums of g and of g·x̂ over some positions: parts (parts, 2, C); x̂ is x after normalisation, before γ and β."""
    part = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    mean = tl.load(saved + c, mask=c < C, other=0.0)
    scale = tl.load(saved + C + c, mask=c < C, other=0.0)
    alone = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    times = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(STEPS):
        at, inside = _tile((part * STEPS + step) * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = _passed(gradient, y, at, inside, RELU)
        alone += g
        times += g * (value - mean[None, :])
    mine = parts + part * (2 * C) + c
    tl.store(mine, tl.sum(alone, 0), mask=c < C)
    tl.store(mine + C, tl.sum(times, 0) * scale, mask=c < C)


@triton.jit
def _gradient_kernel(
    gradient,
    x,
    y,
    saved,
    parts,
    weight,
    of_x,
    of_residual,
    of_weight,
    of_bias,
    count,
    known,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """γ/√(var + ε) · (g − mean of g − x̂ · mean of g·x̂) for some positions; the first program gives those of γ and β."""
    program = tl.program_id(0)
    at, inside = _tile(program * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    g = _passed(gradient, y, at, inside, RELU)
    c = tl.arange(0, BLOCK_C)
    channel = c < C
    part = tl.arange(0, PARTS)
    # Channels go down here: what is found of them is then moved to where the maps need it, and not the maps to it.
    place = parts + part[None, :] * (2 * C) + c[:, None]
    there = (part < known)[None, :] & channel[:, None]
    alone = tl.sum(tl.load(place, mask=there, other=0.0), 1)
    times = tl.sum(tl.load(place + C, mask=there, other=0.0), 1)
    mean = tl.load(saved + c, mask=channel, other=0.0)
    scale = tl.load(saved + C + c, mask=channel, other=0.0)
    factor = scale * tl.load(weight + c, mask=channel, other=0.0).to(tl.float32)
    if program == 0:
        tl.store(of_weight + c, times.to(of_weight.dtype.element_ty), mask=channel)
        tl.store(of_bias + c, alone.to(of_bias.dtype.element_ty), mask=channel)
    if RESIDUAL:
        tl.store(of_residual + at, g.to(of_residual.dtype.element_ty), mask=inside)
    slope = times * scale / count
    found = factor[None, :] * (g - (alone / count)[None, :] - (value - mean[None, :]) * slope[None, :])
    tl.store(of_x + at, found.to(of_x.dtype.element_ty), mask=inside)
