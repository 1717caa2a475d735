"""Triton kernels that run LSTMs frame by frame: a launch computes one frame of any number of LSTMs of equal sizes.

cuDNN's LSTMs hardly overlap when several runs share a GPU. Launches for single frames are small, and those of several
runs, on streams of their own and captured in CUDA graphs, do overlap: on an H200 six runs of Table 4 take half as long
as in cuDNN (``benchmarks/speech.py``). Import this only where triton is installed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Recurrence"]

UNITS, DEPTH, ROWS = 16, 64, 32
"""Per program: hidden units, the depth of one matrix product, and the largest number of sequences."""
WARPS, STAGES = 4, 3
"""Per program: warps of 32 threads, and stages of the software pipeline that loads ahead."""


class Recurrence(torch.autograd.Function):
    """`rotationout.experiments.speech.stepped.recur` and its gradient. Cells are in fp32, all else in gates' dtype."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor) -> Tensor:
        """Run a launch for every frame."""
        gates, weight = gates.contiguous(), weight.contiguous()
        copies, times, rows, hidden = *gates.shape[:3], weight.size(2)
        opened = torch.empty_like(gates)
        h = gates.new_empty(copies, times, rows, hidden)
        c = torch.empty_like(h, dtype=torch.float32)
        tensors, launch, sizes = (gates, weight, opened, h, c), _forward[_grid(h)], _sizes(h)
        for t in range(times):
            launch(*tensors, t, hidden if t else 0, times, rows, hidden, **sizes)
        ctx.save_for_backward(weight, opened, h, c)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Run a launch for every frame, from the last to the first; then find the gradient of the weights at once."""
        weight, opened, h, c = ctx.saved_tensors
        _, times, rows, hidden = h.shape
        given, turned = gradients[0].contiguous(), weight.transpose(1, 2).contiguous()
        found = torch.empty_like(opened)
        carried = torch.zeros_like(c[:, 0])
        tensors, launch, sizes = (given, turned, opened, c, found, carried), _backward[_grid(h)], _sizes(h)
        for t in reversed(range(times)):
            launch(*tensors, t, hidden if t < times - 1 else 0, times, rows, hidden, **sizes)
        later, before = found[:, 1:].flatten(1, 2), h[:, :-1].flatten(1, 2)
        return found, torch.bmm(later.transpose(1, 2), before)


def _sizes(h: Tensor) -> dict[str, Any]:
    rows = max(16, min(ROWS, triton.next_power_of_2(h.size(2))))
    precision = "ieee" if h.dtype == torch.float32 else "tf32"  # no effect on fp16 and bf16
    tile = {"ROWS": rows, "UNITS": UNITS, "DEPTH": DEPTH, "PRECISION": precision}
    return {**tile, "num_warps": WARPS, "num_stages": STAGES}


def _grid(h: Tensor) -> tuple[int, int, int]:
    return h.size(0), h.size(3) // UNITS, triton.cdiv(h.size(2), _sizes(h)["ROWS"])


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["t", "depth"])
def _forward(
    gates,
    weight,
    opened,
    h,
    c,
    t,
    depth,
    times,
    rows,
    hidden: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One frame t of some units of some sequences: the gates from h at t − 1, then the cells and h.

    gates (before the recurrent product) and opened (the activated gates) are (copies, times, rows, 4·hidden), in the
    order i, f, g and o; weight is (copies, 4·hidden, hidden).
    """
    copy = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[None, :]
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < rows
    now = (copy * times + t) * rows + row
    before = (now - rows) * hidden
    along = tl.arange(0, DEPTH)
    of_unit = weight + (copy * 4 * hidden + unit) * hidden + along[:, None]
    gate = hidden * hidden
    place = now * 4 * hidden + unit  # loaded before the products, which they do not wait for
    i = tl.load(gates + place, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(gates + place + hidden, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gates + place + 2 * hidden, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(gates + place + 3 * hidden, mask=inside, other=0.0).to(tl.float32)
    cell = tl.load(c + before + unit, mask=inside & (t > 0), other=0.0)
    for start in range(0, depth, DEPTH):
        x = tl.load(h + before + start + along[None, :], mask=inside, other=0.0)
        i = tl.dot(x, tl.load(of_unit + start), i, input_precision=PRECISION)
        f = tl.dot(x, tl.load(of_unit + gate + start), f, input_precision=PRECISION)
        g = tl.dot(x, tl.load(of_unit + 2 * gate + start), g, input_precision=PRECISION)
        o = tl.dot(x, tl.load(of_unit + 3 * gate + start), o, input_precision=PRECISION)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    cell = f * cell + i * g
    tl.store(c + now * hidden + unit, cell, mask=inside)
    tl.store(h + now * hidden + unit, (o * _tanh(cell)).to(h.dtype.element_ty), mask=inside)
    kind = opened.dtype.element_ty
    tl.store(opened + place, i.to(kind), mask=inside)
    tl.store(opened + place + hidden, f.to(kind), mask=inside)
    tl.store(opened + place + 2 * hidden, g.to(kind), mask=inside)
    tl.store(opened + place + 3 * hidden, o.to(kind), mask=inside)


@triton.jit(do_not_specialize=["t", "depth"])
def _backward(
    given,
    turned,
    opened,
    c,
    found,
    carried,
    t,
    depth,
    times,
    rows,
    hidden: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of the gates of some units at frame t, from that of all gates at t + 1.

    carried has the gradient of the cells; turned is the transposed weights, (copies, hidden, 4·hidden).
    """
    copy = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[None, :]
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < rows
    now = (copy * times + t) * rows + row
    after = (now + rows) * 4 * hidden
    along = tl.arange(0, DEPTH)
    of_unit = turned + (copy * hidden + unit) * 4 * hidden + along[:, None]
    dh = tl.load(given + now * hidden + unit, mask=inside, other=0.0).to(tl.float32)
    place = now * 4 * hidden + unit
    i = tl.load(opened + place, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(opened + place + hidden, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(opened + place + 2 * hidden, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(opened + place + 3 * hidden, mask=inside, other=0.0).to(tl.float32)
    squashed = _tanh(tl.load(c + now * hidden + unit, mask=inside, other=0.0))
    before = tl.load(c + (now - rows) * hidden + unit, mask=inside & (t > 0), other=0.0)
    carry = carried + (copy * rows + row) * hidden + unit
    dc = tl.load(carry, mask=inside, other=0.0)
    by_i = tl.zeros((ROWS, UNITS), tl.float32)  # a sum for each gate: independent products
    by_f = tl.zeros((ROWS, UNITS), tl.float32)
    by_g = tl.zeros((ROWS, UNITS), tl.float32)
    by_o = tl.zeros((ROWS, UNITS), tl.float32)
    for start in range(0, depth, DEPTH):
        x = found + after + start + along[None, :]
        w = of_unit + start
        by_i = tl.dot(tl.load(x, inside, 0.0), tl.load(w), by_i, input_precision=PRECISION)
        by_f = tl.dot(tl.load(x + hidden, inside, 0.0), tl.load(w + hidden), by_f, input_precision=PRECISION)
        by_g = tl.dot(tl.load(x + 2 * hidden, inside, 0.0), tl.load(w + 2 * hidden), by_g, input_precision=PRECISION)
        by_o = tl.dot(tl.load(x + 3 * hidden, inside, 0.0), tl.load(w + 3 * hidden), by_o, input_precision=PRECISION)
    dh += (by_i + by_f) + (by_g + by_o)
    dc += dh * o * (1 - squashed * squashed)
    tl.store(carry, dc * f, mask=inside)
    kind = found.dtype.element_ty
    tl.store(found + place, (dc * g * i * (1 - i)).to(kind), mask=inside)
    tl.store(found + place + hidden, (dc * before * f * (1 - f)).to(kind), mask=inside)
    tl.store(found + place + 2 * hidden, (dc * i * (1 - g * g)).to(kind), mask=inside)
    tl.store(found + place + 3 * hidden, (dh * squashed * o * (1 - o)).to(kind), mask=inside)
