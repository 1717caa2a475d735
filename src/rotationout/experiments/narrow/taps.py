"""Kernel parts that load the inputs of the nine taps of a 3×3 convolution, and find the addresses of their weights.

Maps are in channels_last: the positions of all examples are the rows of one matrix, and the inputs of a tap are these
rows shifted by a constant, with zeros beyond the border. Import this only where triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["load_strided_tap", "load_taps", "precision", "weight_offsets"]


def precision(x: Tensor) -> str:
    """The precision of Triton's products: for fp32 three of TF32, as accurate as one of fp32; no effect on halves."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


@triton.jit
def load_taps(
    x, p, count, step, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, DEPTH: tl.constexpr
):
    """The inputs of positions p through the taps of a step, zeros beyond the border: (positions, DEPTH).

    There are 9 / TAPS steps. A step has TAPS neighbouring taps of a row of the 3×3 kernel, and DEPTH is TAPS times the
    channels, padded.
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
def load_strided_tap(
    x, p, count, tap, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SPREAD: tl.constexpr, DEPTH: tl.constexpr
):
    """The inputs of positions p through one tap of a convolution of stride 2, whose output is H × W, and x 2H × 2W.

    With SPREAD, for the gradient of the input, it is the other way round: p is a position of H × W, and x is H/2 × W/2,
    spread with zeros in between.
    """
    c = tl.arange(0, DEPTH)
    row = p // W % H
    column = p % W
    if SPREAD:
        row += tap // 3 - 1
        column += tap % 3 - 1
        inside = (row >= 0) & (row < H) & (row % 2 == 0) & (column >= 0) & (column < W) & (column % 2 == 0)
        place = (p // (H * W) * (H // 2) + row // 2) * (W // 2) + column // 2
    else:
        row = 2 * row + tap // 3 - 1
        column = 2 * column + tap % 3 - 1
        inside = (row >= 0) & (column >= 0)  # sides are even: never beyond the lower or right border
        place = (p // (H * W) * (2 * H) + row) * (2 * W) + column
    known = (inside & (p < count))[:, None] & (c < C)[None, :]
    return tl.load(x + place[:, None] * C + c[None, :], mask=known, other=0.0)


@triton.jit
def weight_offsets(
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
    """The offsets of the weights of a step's taps, and a mask of those that exist: (DEPTH, BLOCK_O) each."""
    j = tl.arange(0, DEPTH)
    o = tl.arange(0, BLOCK_O)
    down = step * TAPS // 3
    along = step * TAPS % 3 + j // C
    if MIRRORED:
        down = 2 - down
        along = 2 - along
    place = (down * DOWN + along * ALONG + j % C * ROW)[:, None] + (o * COLUMN)[None, :]
    return place, (j < TAPS * C)[:, None] & (o < O)[None, :]
