"""The gradient of the weight of a 3×3 convolution of few channels on a GPU, in Triton.

Every program computes sums over some positions; a second launch adds these up, always in one order. Import this only
where triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .adding import add_up
from .taps import load_strided_tap, load_taps, precision, weight_offsets

__all__ = ["weight_gradient"]


def weight_gradient(
    x: Tensor, gradient: Tensor, weight: Tensor, *, stride: int = 1, beside: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The gradient of the weight, in the memory layout of the weight.

    Args:
        x: the input of the convolution.
        gradient: the gradient of its output.
        weight: its weight.
        stride: its stride: 1, or 2 for maps with even sides.
        beside: other sums, and the total to add them up to in the same launch, see `add_up`.
    """
    count, outputs, height, width = gradient.shape
    channels = x.size(1)
    table = tiles.WEIGHED if stride == 1 else tiles.WEIGHED_STRIDED
    tile = tiles.fitted(table, max(channels, outputs), x.element_size())
    positions, groups = count * height * width, max(1, 3 // tile.taps)
    steps = triton.cdiv(triton.cdiv(positions, max(1, tile.programs // groups)), tile.positions)
    parts = triton.cdiv(positions, steps * tile.positions)
    total = torch.empty_like(weight)
    sums = torch.empty((parts, weight.numel()), dtype=torch.float32, device=x.device)
    shape = {"STEPS": steps, "H": height, "W": width, "C": channels, "O": outputs, "BLOCK_P": tile.positions}
    strides = {
        "ROW": weight.stride(1),
        "COLUMN": weight.stride(0),
        "DOWN": weight.stride(2),
        "ALONG": weight.stride(3),
    }
    options = {"PRECISION": precision(x), **tile.options}
    with torch.cuda.device_of(x):  # Triton launches on the current device
        if tile.taps == 9:
            _weigh_all_kernel[(parts,)](
                x, gradient, sums, positions, DEPTH=tiles.multiplied(3 * channels),
                WIDTH=tiles.power_of_two(3 * outputs), **shape, **strides, **options,
            )  # fmt: skip
        else:
            _weigh_kernel[(parts, groups)](
                x, gradient, sums, positions, TAPS=tile.taps, DEPTH=tiles.multiplied(tile.taps * channels),
                BLOCK_O=tiles.power_of_two(outputs), STRIDE=stride, **shape, **strides, **options,
            )  # fmt: skip
    add_up(sums, total, beside)
    return total


@triton.jit
def _weigh_all_kernel(
    x,
    gradient,
    sums,
    count,
    STEPS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741 - outputs, as C are channels
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    DOWN: tl.constexpr,
    ALONG: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over some positions for all weights, in one product.

    The gradient of the tap d rows down and a columns along is the sum over p of x[p + d·W + a]·g[p], which equals that
    of x[p + a]·g[p − d·W]. So three views of x, shifted along, and three of g, shifted up or down, give all nine taps.
    """
    part = tl.program_id(0)
    j = tl.arange(0, DEPTH)
    k = tl.arange(0, WIDTH)
    along = j // C
    down = k // O
    total = tl.zeros((DEPTH, WIDTH), tl.float32)
    for step in range(STEPS):
        p = (part * STEPS + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        column = (p % W - 1)[:, None] + along[None, :]
        inside = (p < count)[:, None] & (column >= 0) & (column < W) & (j < 3 * C)[None, :]
        u = tl.load(x + (p - 1)[:, None] * C + j[None, :], mask=inside, other=0.0)
        row = (p // W % H + 1)[:, None] - down[None, :]
        inside = (p < count)[:, None] & (row >= 0) & (row < H) & (k < 3 * O)[None, :]
        g = tl.load(gradient + (p + W)[:, None] * O + (k % O - down * (W * O))[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(u), g, total, input_precision=PRECISION)
    at = (along * ALONG + j % C * ROW)[:, None] + (down * DOWN + k % O * COLUMN)[None, :]
    known = (j < 3 * C)[:, None] & (k < 3 * O)[None, :]
    tl.store(sums + part.to(tl.int64) * (9 * C * O) + at, total, mask=known)


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
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over some positions for the weights of three steps: with TAPS = 3 all weights, else a row of the kernel."""
    part = tl.program_id(0)
    group = tl.program_id(1)
    o = tl.arange(0, BLOCK_O)
    a = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    b = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    c = tl.zeros((DEPTH, BLOCK_O), tl.float32)
    for step in range(STEPS):
        p = (part * STEPS + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        g = tl.load(gradient + p[:, None] * O + o[None, :], mask=(p < count)[:, None] & (o < O)[None, :], other=0.0)
        if STRIDE == 1:
            u = load_taps(x, p, count, 3 * group, H, W, C, TAPS, DEPTH)
            v = load_taps(x, p, count, 3 * group + 1, H, W, C, TAPS, DEPTH)
            w = load_taps(x, p, count, 3 * group + 2, H, W, C, TAPS, DEPTH)
        else:
            u = load_strided_tap(x, p, count, 3 * group, H, W, C, False, DEPTH)
            v = load_strided_tap(x, p, count, 3 * group + 1, H, W, C, False, DEPTH)
            w = load_strided_tap(x, p, count, 3 * group + 2, H, W, C, False, DEPTH)
        a = tl.dot(tl.trans(u), g, a, input_precision=PRECISION)
        b = tl.dot(tl.trans(v), g, b, input_precision=PRECISION)
        c = tl.dot(tl.trans(w), g, c, input_precision=PRECISION)
    mine = sums + part.to(tl.int64) * (9 * C * O)
    at, known = weight_offsets(3 * group, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, a, mask=known)
    at, known = weight_offsets(3 * group + 1, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, b, mask=known)
    at, known = weight_offsets(3 * group + 2, C, O, ROW, COLUMN, DOWN, ALONG, False, TAPS, DEPTH, BLOCK_O)
    tl.store(mine + at, c, mask=known)
