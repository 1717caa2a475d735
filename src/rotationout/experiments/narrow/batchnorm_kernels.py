"""The kernels of `rotationout.experiments.narrow.batchnorm`, in Triton. Import this only where triton is installed."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["combine_kernel", "gradient_kernel", "moments_kernel", "normalise_kernel", "sums_kernel"]


@triton.jit
def tile(start, count, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """The offsets of the elements of some positions, and a mask of those that exist: (BLOCK_P, BLOCK_C) each."""
    p = start + tl.arange(0, BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    return p[:, None] * C + c[None, :], (p < count)[:, None] & (c < C)[None, :]


@triton.jit
def moments_kernel(x, parts, count, STEPS: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean, and sum of squares about it, over the positions of each part, to parts (parts, 2, C)."""
    part = tl.program_id(0)
    first = part * (STEPS * BLOCK_P)
    c = tl.arange(0, BLOCK_C)
    origin = tl.load(x + first * C + c, mask=c < C, other=0.0).to(tl.float32)
    once = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    squared = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(STEPS):
        at, inside = tile(first + step * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
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
def combine_kernel(
    parts,
    running_mean,
    running_var,
    batches,
    saved,
    count,
    eps,
    momentum,
    known,
    each,
    C: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Statistics of some channels from the means and sums of squares of known parts, of ``each`` positions each."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    old = tl.load(running_mean + c, mask=c < C, other=0.0)
    part = tl.arange(0, PARTS)
    place = parts + part[:, None] * (2 * C) + c[None, :]
    there = (part < known)[:, None] & (c < C)[None, :]
    means = tl.load(place, mask=there, other=0.0)
    squares = tl.load(place + C, mask=there, other=0.0)
    some = tl.minimum(tl.maximum(count - part * each, 0), each).to(tl.float32)[:, None]
    mean = tl.sum(means * some, 0) / count
    apart = means - mean[None, :]
    square = tl.sum(squares + apart * apart * some, 0)
    store_statistics(mean, square, old, running_mean, running_var, saved, count, eps, momentum, c, C)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def finish(
    sums,
    running_mean,
    running_var,
    saved,
    count,
    eps,
    momentum,
    known,
    c,
    C: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Statistics of channels c from sums (known, 2, C) about the running mean, always added up in one order."""
    old = tl.load(running_mean + c, mask=c < C, other=0.0)
    once = tl.zeros((AT_ONCE, BLOCK_C), tl.float32)
    squared = tl.zeros((AT_ONCE, BLOCK_C), tl.float32)
    for first in range(0, known, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        place = sums + part[:, None] * (2 * C) + c[None, :]
        there = (part < known)[:, None] & (c < C)[None, :]
        # Bypass the L1 cache: other programs of this very launch may have written the sums.
        once += tl.load(place, mask=there, other=0.0, cache_modifier=".cg")
        squared += tl.load(place + C, mask=there, other=0.0, cache_modifier=".cg")
    apart = tl.sum(once, 0) / count
    square = tl.sum(squared, 0) - count * apart * apart
    square = tl.where(square < 0, 0.0, square)  # negative by rounding only; NaN stays NaN
    store_statistics(old + apart, square, old, running_mean, running_var, saved, count, eps, momentum, c, C)


@triton.jit
def store_statistics(mean, square, old, running_mean, running_var, saved, count, eps, momentum, c, C: tl.constexpr):
    """Store mean and 1/√(var + ε) of channels c to saved (2, C), and update the moving averages.

    The old running mean must have been loaded before the sums: no thread may read it after another has written the new
    one.
    """
    channel = c < C
    tl.store(saved + c, mean, mask=channel)
    tl.store(saved + C + c, 1 / tl.sqrt(square / count + eps), mask=channel)
    tl.store(running_mean + c, old + momentum * (mean - old), mask=channel)
    old = tl.load(running_var + c, mask=channel, other=0.0)
    tl.store(running_var + c, old + momentum * (square / (count - 1) - old), mask=channel)


@triton.jit
def normalise_kernel(
    x,
    residual,
    weight,
    bias,
    saved,
    y,
    count,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalise some positions, add the residual, apply the ReLU, and store them to y."""
    at, inside = tile(tl.program_id(0) * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
    value = tl.load(x + at, mask=inside, other=0.0)
    if RESIDUAL:
        added = tl.load(residual + at, mask=inside, other=0.0)
    mean, _, factor, offset = channels(saved, weight, bias, C, BLOCK_C)
    found = scaled(value.to(tl.float32) - mean[None, :], factor, offset)
    if RESIDUAL:
        found += added.to(tl.float32)
    if RELU:
        found = tl.where(found <= 0, 0.0, found)  # NaN stays NaN
    tl.store(y + at, found.to(y.dtype.element_ty), mask=inside)


@triton.jit
def channels(saved, weight, bias, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean, 1/√(var + ε), γ/√(var + ε) and β of all channels, with the statistics of the batch."""
    c = tl.arange(0, BLOCK_C)
    mean = tl.load(saved + c, mask=c < C, other=0.0)
    scale = tl.load(saved + C + c, mask=c < C, other=0.0)
    factor = scale * tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    return mean, scale, factor, tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)


@triton.jit
def eval_channels(mean, var, weight, bias, eps, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean, γ/√(var + ε) and β of all channels, with the running statistics of a layer in eval mode."""
    c = tl.arange(0, BLOCK_C)
    factor = tl.load(weight + c, mask=c < C, other=0.0) / tl.sqrt(tl.load(var + c, mask=c < C, other=1.0) + eps)
    return tl.load(mean + c, mask=c < C, other=0.0), factor, tl.load(bias + c, mask=c < C, other=0.0)


@triton.jit
def scaled(distance, factor, offset):
    """Normalise, given the distance from the mean. All kernels use this, so that the backward pass finds equal bits."""
    return distance * factor[None, :] + offset[None, :]


@triton.jit
def load_masked_gradient(gradient, y, distance, factor, offset, at, inside, MASK: tl.constexpr):
    """Load the gradient of y, and mask it by the ReLU."""
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    shown = tl.load(y + at, mask=inside, other=0.0) if MASK == "output" else distance
    return mask_gradient(g, shown, distance, factor, offset, y.dtype.element_ty, MASK)


@triton.jit
def mask_gradient(g, shown, distance, factor, offset, kind: tl.constexpr, MASK: tl.constexpr):
    """Mask a gradient g by the ReLU: by the shown y, or recomputed from the distance of x from its mean.

    The recomputed mask is that of y as it was stored: in fp16, values up to half of the least number became zero.
    The other precisions have the exponents of fp32.
    """
    if MASK == "output":
        g = tl.where(shown.to(tl.float32) <= 0, 0.0, g)
    if MASK == "input":
        least: tl.constexpr = 2.0**-25 if kind == tl.float16 else 0.0
        g = tl.where(scaled(distance, factor, offset) <= least, 0.0, g)
    return g


@triton.jit
def sums_kernel(
    gradient,
    x,
    y,
    saved,
    weight,
    bias,
    kept,
    parts,
    count,
    STEPS: tl.constexpr,
    MASK: tl.constexpr,
    STORED: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums of g and of g·x̂ over the positions of each part, to parts (parts, 2, C).

    x̂ is x after normalisation, before γ and β. g is the gradient before the ReLU; if STORED it is also written to kept.
    """
    part = tl.program_id(0)
    mean, scale, factor, offset = channels(saved, weight, bias, C, BLOCK_C)
    alone = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    times = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(STEPS):
        at, inside = tile((part * STEPS + step) * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
        distance = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        g = load_masked_gradient(gradient, y, distance, factor, offset, at, inside, MASK)
        if STORED:
            tl.store(kept + at, g.to(kept.dtype.element_ty), mask=inside)
        alone += g
        times += g * distance
    c = tl.arange(0, BLOCK_C)
    mine = parts + part * (2 * C) + c
    tl.store(mine, tl.sum(alone, 0), mask=c < C)
    tl.store(mine + C, tl.sum(times, 0) * scale, mask=c < C)


@triton.jit
def gradient_kernel(
    gradient,
    x,
    y,
    saved,
    totals,
    weight,
    bias,
    of_x,
    count,
    MASK: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """γ/√(var + ε) · (g − mean of g − x̂ · mean of g·x̂) for some positions, from the totals (2, C) of g and g·x̂."""
    mean, scale, factor, offset = channels(saved, weight, bias, C, BLOCK_C)
    at, inside = tile(tl.program_id(0) * BLOCK_P, count, C, BLOCK_P, BLOCK_C)
    distance = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
    g = load_masked_gradient(gradient, y, distance, factor, offset, at, inside, MASK)
    c = tl.arange(0, BLOCK_C)
    level = tl.load(totals + c, mask=c < C, other=0.0) / count
    slope = tl.load(totals + C + c, mask=c < C, other=0.0) * scale / count
    found = factor[None, :] * (g - level[None, :] - distance * slope[None, :])
    tl.store(of_x + at, found.to(of_x.dtype.element_ty), mask=inside)
