"""3×3 convolutions of few channels on a GPU, in Triton: stride 1, padding 1, no bias; and their gradients.

Maps are in channels_last, so that consecutive positions of all examples are rows of one matrix, and a neighbour's are
the same rows some way on. A program takes some positions and all output channels: for each tap it loads the shifted
rows, with zeros beyond the border, and multiplies them by that tap's weights. The gradient of the input is the same
with the taps mirrored and the weights transposed. Products are of the input's precision, sums in fp32. Weights are read
as they are and rounded in the kernel, as autocast would round them before. Nothing here depends on the order in which
programs run. Import this only where triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import tiles

__all__ = ["Convolution", "Fork"]


class Convolution(torch.autograd.Function):
    """``conv2d(x, weight.to(x.dtype), padding=1)``; the gradient of the weight is of the weight's own precision.

    Args:
        x: (N, C, H, W) in channels_last.
        weight: (O, C, 3, 3), contiguous or in channels_last; C and O are multiples of 16, 64 at most.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """One launch."""
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, mirrored=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """One launch for the input, two for the weight."""
        return _gradients(ctx, gradient, None)


class Fork(torch.autograd.Function):
    """A `Convolution` of x, and x itself, which goes past it to a sum.

    The gradients of both meet in the kernel that takes that of the convolution: a launch, and a pass over the maps,
    that autograd would need to add them up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """One launch."""
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return _convolve(x, weight, mirrored=False), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """As many as `Convolution` has."""
        return (past, None) if gradient is None else _gradients(ctx, gradient, past)


def _gradients(ctx: Any, gradient: Tensor, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    past = None if past is None else past.contiguous(memory_format=torch.channels_last)
    of_x = _convolve(gradient, weight, mirrored=True, added=past) if ctx.needs_input_grad[0] else None
    of_weight = _weigh(x, gradient, weight) if ctx.needs_input_grad[1] else None
    return of_x, of_weight


def _convolve(x: Tensor, weight: Tensor, *, mirrored: bool, added: Tensor | None = None) -> Tensor:
    rows, columns = (0, 1) if mirrored else (1, 0)  # of the matrix that a tap's weights are here
    count, channels, height, width = x.shape
    outputs = weight.size(columns)
    tile = tiles.fitted(tiles.CONVOLVED, channels, x.element_size())
    y = torch.empty((count, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    positions = count * height * width
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _convolve_kernel[(triton.cdiv(positions, tile.positions),)](
            x, weight, y if added is None else added, y, positions, H=height, W=width, C=channels, O=outputs,
            ROW=weight.stride(rows), COLUMN=weight.stride(columns), DOWN=weight.stride(2), ALONG=weight.stride(3),
            MIRRORED=mirrored, ADDED=added is not None, TAPS=tile.taps, DEPTH=tiles.power_of_two(tile.taps * channels),
            BLOCK_P=tile.positions, BLOCK_O=tiles.power_of_two(outputs), PRECISION=_precision(x),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return y


def _weigh(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weight, in the order in which the weight lies in memory."""
    count, channels, height, width = x.shape
    outputs = weight.size(0)
    tile = tiles.fitted(tiles.WEIGHED, channels, x.element_size())
    positions, groups = count * height * width, 3 // tile.taps
    steps = triton.cdiv(triton.cdiv(positions, max(1, tile.programs // groups)), tile.positions)
    parts = triton.cdiv(positions, steps * tile.positions)
    total = torch.empty_like(weight)
    sums = torch.empty((parts, weight.numel()), dtype=torch.float32, device=x.device)
    at_once, elements = tiles.ADDED
    with torch.cuda.device_of(x):
        _weigh_kernel[(parts, groups)](
            x, gradient, sums, positions, STEPS=steps, H=height, W=width, C=channels, O=outputs,
            ROW=weight.stride(1), COLUMN=weight.stride(0), DOWN=weight.stride(2), ALONG=weight.stride(3),
            TAPS=tile.taps, DEPTH=tiles.power_of_two(tile.taps * channels),
            BLOCK_P=tile.positions, BLOCK_O=tiles.power_of_two(outputs), PRECISION=_precision(x),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        _add_up_kernel[(triton.cdiv(weight.numel(), elements),)](
            sums, total, parts, SIZE=weight.numel(), AT_ONCE=at_once, BLOCK=elements
        )
    return total


def _precision(x: Tensor) -> str:
    """Three products of TF32 are as good as one of fp32, and leave room for more; it has no meaning for halves."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


@triton.jit
def _seen(
    x, p, count, step, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, DEPTH: tl.constexpr
):
    """What positions p see through the taps of a step, zeros beyond the border: (positions, DEPTH), channel by channel.

    There are 9 / TAPS steps; through TAPS neighbours along a row of the kernel.
    """
    j = tl.arange(0, DEPTH)
    down = step * TAPS // 3 - 1
    along = step * TAPS % 3 - 1
    row = p // W % H + down
    inside = ((p < count) & (row >= 0) & (row < H))[:, None]
    if TAPS == 1:
        column = p % W + along
        inside = inside & ((column >= 0) & (column < W))[:, None]
    else:
        column = (p % W + along)[:, None] + (j // C)[None, :]
        inside = inside & (column >= 0) & (column < W)
    if DEPTH > TAPS * C:
        inside = inside & (j < TAPS * C)[None, :]
    return tl.load(x + (p + (down * W + along))[:, None] * C + j[None, :], mask=inside, other=0.0)


@triton.jit
def _places(
    step,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741 - outputs, as C are channels
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    DOWN: tl.constexpr,
    ALONG: tl.constexpr,
    MIRRORED: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Where the weights of a step's taps lie, and which of these places are weights: (DEPTH, BLOCK_O)."""
    j = tl.arange(0, DEPTH)
    o = tl.arange(0, BLOCK_O)
    down = step * TAPS // 3
    along = step * TAPS % 3 + j // C
    if MIRRORED:
        down = 2 - down
        along = 2 - along
    place = (down * DOWN + along * ALONG + j % C * ROW)[:, None] + (o * COLUMN)[None, :]
    return place, (j < TAPS * C)[:, None] & (o < O)[None, :]


@triton.jit
def _convolve_kernel(
    x,
    weight,
    added,
    y,
    count,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    DOWN: tl.constexpr,
    ALONG: tl.constexpr,
    MIRRORED: tl.constexpr,
    ADDED: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Some positions of y, all channels. Three steps are loaded before any is multiplied: their latencies overlap."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    # A sum for each step of a group: products that are added to one another Triton shares out by rows alone, and of 64
    # rows two groups of four warps would both compute all. In a loop, not unrolled, for the same reason.
    first = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    third = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    kind = x.dtype.element_ty
    for group in range(3 // TAPS):
        a = _seen(x, p, count, 3 * group, H, W, C, TAPS, DEPTH)
        b = _seen(x, p, count, 3 * group + 1, H, W, C, TAPS, DEPTH)
        c = _seen(x, p, count, 3 * group + 2, H, W, C, TAPS, DEPTH)
        at, known = _places(3 * group, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        u = tl.load(weight + at, mask=known, other=0.0).to(kind)
        at, known = _places(3 * group + 1, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        v = tl.load(weight + at, mask=known, other=0.0).to(kind)
        at, known = _places(3 * group + 2, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        w = tl.load(weight + at, mask=known, other=0.0).to(kind)
        first = tl.dot(a, u, first, input_precision=PRECISION)
        second = tl.dot(b, v, second, input_precision=PRECISION)
        third = tl.dot(c, w, third, input_precision=PRECISION)
    total = first + second + third
    o = tl.arange(0, BLOCK_O)
    at = p[:, None] * O + o[None, :]
    inside = (p < count)[:, None] & (o < O)[None, :]
    if ADDED:
        total += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, total.to(kind), mask=inside)


@triton.jit
def _weigh_kernel(
    x,
    gradient,
    sums,
    count,
    STEPS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    DOWN: tl.constexpr,
    ALONG: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over some positions for the weights of three steps, all of them or a row of the kernel."""
    part = tl.program_id(0)
    group = tl.program_id(1)
    o = tl.arange(0, BLOCK_O)
    a = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    b = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    c = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    for step in range(STEPS):
        p = (part * STEPS + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        g = tl.load(gradient + p[:, None] * O + o[None, :], mask=(p < count)[:, None] & (o < O)[None, :], other=0.0)
        u = _seen(x, p, count, 3 * group, H, W, C, TAPS, DEPTH)
        v = _seen(x, p, count, 3 * group + 1, H, W, C, TAPS, DEPTH)
        w = _seen(x, p, count, 3 * group + 2, H, W, C, TAPS, DEPTH)
        a = tl.dot(tl.trans(u), g, a, input_precision=PRECISION)
        b = tl.dot(tl.trans(v), g, b, input_precision=PRECISION)
        c = tl.dot(tl.trans(w), g, c, input_precision=PRECISION)
    mine = sums + part.to(tl.int64) * (9 * C * O)
    at, known = _places(3 * group, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, a, mask=known)
    at, known = _places(3 * group + 1, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, b, mask=known)
    at, known = _places(3 * group + 2, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, c, mask=known)


@triton.jit
def _add_up_kernel(sums, total, parts, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of all parts (parts, SIZE), always in one order."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        inside = (part < parts)[:, None] & (element < SIZE)[None, :]
        found += tl.load(sums + part[:, None] * SIZE + element[None, :], mask=inside, other=0.0)
    tl.store(total + element, tl.sum(found, 0).to(total.dtype.element_ty), mask=element < SIZE)
