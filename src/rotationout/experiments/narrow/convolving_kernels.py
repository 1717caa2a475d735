"""The kernels of `rotationout.experiments.narrow.convolving`, in Triton. Import this only where triton is installed.

A program of `convolve_kernel` computes some positions and all output channels: for each tap it loads the shifted rows,
with zeros beyond the border, and multiplies them by that tap's weights. A program of `strip_kernel` works down some
columns of the images: it loads each row once for the three output rows that need it, and the weights once for all.

Both do the same with a product before they store it: apply a norm in eval mode (EVAL_NORM), add a tensor (ADDED), and
apply a ReLU (RELU). They can also compute sums for a norm (SUMS): of ``"values"``, for the norm after the convolution,
about its running mean; or of ``"gradients"``, for the norm before it, whose ReLU then masks what is stored (MASK says
how the mask is found). Of values, the last program to finish adds up the sums of all.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .batchnorm_kernels import channels, eval_channels, finish, mask_gradient, scaled
from .taps import load_strided_tap, load_taps, weight_offsets

__all__ = ["convolve_kernel", "strip_kernel"]


@triton.jit
def convolve_kernel(
    x,
    weight,
    added,
    y,
    running_mean,
    sums,
    norm_input,
    norm_output,
    saved,
    gamma,
    beta,
    var,
    batches,
    counter,
    eps,
    momentum,
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
    SUMS: tl.constexpr,
    MASK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EVAL_NORM: tl.constexpr,
    RELU: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Some positions of y, all channels. Three steps are loaded before any is multiplied: their latencies overlap."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    # A sum for each step of a group: Triton divides chained products among warps by rows alone, and with 64 rows two
    # groups of four warps would both compute everything. In a loop, not unrolled, for the same reason.
    first = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    third = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    kind = x.dtype.element_ty
    for group in range(3 // TAPS):
        if STRIDE == 1:
            a = load_taps(x, p, count, 3 * group, H, W, C, TAPS, DEPTH)
            b = load_taps(x, p, count, 3 * group + 1, H, W, C, TAPS, DEPTH)
            c = load_taps(x, p, count, 3 * group + 2, H, W, C, TAPS, DEPTH)
        else:
            a = load_strided_tap(x, p, count, 3 * group, H, W, C, MIRRORED, DEPTH)
            b = load_strided_tap(x, p, count, 3 * group + 1, H, W, C, MIRRORED, DEPTH)
            c = load_strided_tap(x, p, count, 3 * group + 2, H, W, C, MIRRORED, DEPTH)
        at, known = weight_offsets(3 * group, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        u = tl.load(weight + at, mask=known, other=0.0).to(kind)
        at, known = weight_offsets(3 * group + 1, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        v = tl.load(weight + at, mask=known, other=0.0).to(kind)
        at, known = weight_offsets(3 * group + 2, C, O, ROW, COLUMN, DOWN, ALONG, MIRRORED, TAPS, DEPTH, BLOCK_O)
        w = tl.load(weight + at, mask=known, other=0.0).to(kind)
        first = tl.dot(a, u, first, input_precision=PRECISION)
        second = tl.dot(b, v, second, input_precision=PRECISION)
        third = tl.dot(c, w, third, input_precision=PRECISION)
    total = first + second + third
    o = tl.arange(0, BLOCK_O)
    at = p[:, None] * O + o[None, :]
    inside = (p < count)[:, None] & (o < O)[None, :]
    if EVAL_NORM:
        mean, factor, offset = eval_channels(running_mean, var, gamma, beta, eps, O, BLOCK_O)
        total = scaled(total - mean[None, :], factor, offset)
    if ADDED:
        total += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        total = tl.where(total <= 0, 0.0, total)  # NaN stays NaN
    if SUMS == "gradients":
        mean, scale, factor, offset = channels(saved, gamma, beta, O, BLOCK_O)
        given = tl.load(norm_input + at, mask=inside, other=0.0)
        shown = tl.load(norm_output + at, mask=inside, other=0.0) if MASK == "output" else given
        distance = given.to(tl.float32) - mean[None, :]
        total = mask_gradient(total, shown, distance, factor, offset, kind, MASK)
        _keep_sums(sums, tl.program_id(0), tl.sum(total, 0), tl.sum(total * distance, 0) * scale, o, O)
    rounded = total.to(kind)
    tl.store(y + at, rounded, mask=inside)
    if SUMS == "values":
        middle = tl.load(running_mean + o, mask=o < O, other=0.0)
        once = tl.where(inside, rounded.to(tl.float32) - middle[None, :], 0.0)
        _keep_sums(sums, tl.program_id(0), tl.sum(once, 0), tl.sum(once * once, 0), o, O)
        _finish_last(sums, running_mean, var, batches, saved, counter, count, eps, momentum, O, BLOCK_O, AT_ONCE)


@triton.jit
def strip_kernel(
    x,
    weight,
    added,
    y,
    running_mean,
    sums,
    norm_input,
    norm_output,
    saved,
    gamma,
    beta,
    var,
    batches,
    counter,
    eps,
    momentum,
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
    SUMS: tl.constexpr,
    MASK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EVAL_NORM: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_O: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """ROWS rows of y, in some columns of the images; there are count columns in all.

    Each row is loaded while the one above it is multiplied, to hide the latency.
    """
    column = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    start = tl.program_id(1) * ROWS
    c = tl.arange(0, BLOCK_C)
    o = tl.arange(0, BLOCK_O)
    top = column // W * (H * W) + column % W
    known = (column < count)[:, None] & (c < C)[None, :]
    inside = (column < count)[:, None] & (o < O)[None, :]
    to_left = known & (column % W > 0)[:, None]
    to_right = known & (column % W < W - 1)[:, None]
    at = x + top[:, None] * C + c[None, :]
    kind = x.dtype.element_ty
    weights = weight + c[:, None] * ROW + o[None, :] * COLUMN
    some = (c < C)[:, None] & (o < O)[None, :]
    up_left, up, up_right = _row_of_weights(weights, 0, some, DOWN, ALONG, MIRRORED)
    left, centre, right = _row_of_weights(weights, 1, some, DOWN, ALONG, MIRRORED)
    down_left, down, down_right = _row_of_weights(weights, 2, some, DOWN, ALONG, MIRRORED)
    a, b, d = _row(at, start - 1, start > 0, to_left, known, to_right, W, C)
    # Rounded only now: a program waits for a load where its result is first used.
    up_left, up, up_right = up_left.to(kind), up.to(kind), up_right.to(kind)
    left, centre, right = left.to(kind), centre.to(kind), right.to(kind)
    down_left, down, down_right = down_left.to(kind), down.to(kind), down_right.to(kind)
    above = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    here = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    if SUMS == "values":
        middle = tl.load(running_mean + o, mask=o < O, other=0.0)
    if SUMS == "gradients":
        mean, scale, factor, offset = channels(saved, gamma, beta, O, BLOCK_O)
    if EVAL_NORM:
        mean, factor, offset = eval_channels(running_mean, var, gamma, beta, eps, O, BLOCK_O)
    if SUMS != "none":
        once = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
        times = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    for row in range(start - 1, start + ROWS + 1):
        more = row + 1 < tl.minimum(H, start + ROWS + 1)
        next_a, next_b, next_d = _row(at, row + 1, more, to_left, known, to_right, W, C)
        whole = inside & (row > start) & (row <= H)
        place = (top + (row - 1) * W)[:, None] * O + o[None, :]
        if ADDED:
            beside = tl.load(added + place, mask=whole, other=0.0)
        if SUMS == "gradients":
            given = tl.load(norm_input + place, mask=whole, other=0.0)
            shown = tl.load(norm_output + place, mask=whole, other=0.0) if MASK == "output" else given
        # An input row is multiplied by the lower taps for the output row above it, by the upper ones for that below.
        above = _three(a, b, d, down_left, down, down_right, above, PRECISION)
        here = _three(a, b, d, left, centre, right, here, PRECISION)
        below = _three(a, b, d, up_left, up, up_right, tl.zeros((BLOCK_P, BLOCK_O), tl.float32), PRECISION)
        if (row > start) & (row <= H):
            if EVAL_NORM:
                above = scaled(above - mean[None, :], factor, offset)
            if ADDED:
                above += beside.to(tl.float32)
            if RELU:
                above = tl.where(above <= 0, 0.0, above)  # NaN stays NaN
            if SUMS == "gradients":
                distance = given.to(tl.float32) - mean[None, :]
                above = mask_gradient(above, shown, distance, factor, offset, kind, MASK)
                once += above
                times += above * distance
            rounded = above.to(kind)
            tl.store(y + place, rounded, mask=inside)
            if SUMS == "values":
                distance = tl.where(inside, rounded.to(tl.float32) - middle[None, :], 0.0)
                once += distance
                times += distance * distance
        above, here = here, below
        a, b, d = next_a, next_b, next_d
    part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    if SUMS == "values":
        _keep_sums(sums, part, tl.sum(once, 0), tl.sum(times, 0), o, O)
        _finish_last(sums, running_mean, var, batches, saved, counter, count * H, eps, momentum, O, BLOCK_O, AT_ONCE)
    if SUMS == "gradients":
        _keep_sums(sums, part, tl.sum(once, 0), tl.sum(times, 0) * scale, o, O)


@triton.jit
def _row(at, row, there, to_left, known, to_right, W: tl.constexpr, C: tl.constexpr):
    """Load a row of the images, if it exists, shifted for the left, the middle and the right taps."""
    a = tl.load(at + (row * W - 1) * C, mask=to_left & there, other=0.0)
    b = tl.load(at + row * W * C, mask=known & there, other=0.0)
    return a, b, tl.load(at + (row * W + 1) * C, mask=to_right & there, other=0.0)


@triton.jit
def _row_of_weights(weights, down: tl.constexpr, some, DOWN: tl.constexpr, ALONG: tl.constexpr, MIRRORED: tl.constexpr):
    """Load the weights of the three taps of a row of the kernel."""
    first: tl.constexpr = (2 - down) * DOWN + 2 * ALONG if MIRRORED else down * DOWN
    along: tl.constexpr = -ALONG if MIRRORED else ALONG
    left = tl.load(weights + first, mask=some, other=0.0)
    middle = tl.load(weights + (first + along), mask=some, other=0.0)
    right = tl.load(weights + (first + 2 * along), mask=some, other=0.0)
    return left, middle, right


@triton.jit
def _three(a, b, c, u, v, w, total, PRECISION: tl.constexpr):
    """Add the products of three taps to a sum."""
    total = tl.dot(a, u, total, input_precision=PRECISION)
    total = tl.dot(b, v, total, input_precision=PRECISION)
    return tl.dot(c, w, total, input_precision=PRECISION)


@triton.jit
def _keep_sums(sums, part, once, times, o, O: tl.constexpr):  # noqa: E741
    """Store the two sums of a part to sums (parts, 2, O)."""
    mine = sums + part * (2 * O) + o
    tl.store(mine, once, mask=o < O)
    tl.store(mine + O, times, mask=o < O)


@triton.jit
def _finish_last(
    sums,
    mean,
    var,
    batches,
    saved,
    counter,
    count,
    eps,
    momentum,
    O: tl.constexpr,  # noqa: E741
    BLOCK_O: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Finish the statistics of all channels in the last program to get here, when all have stored their sums.

    A counter, zero between launches, finds that program. It is incremented with acquire-release semantics: a program
    sees what all that counted before it have stored. Sums are added up in the order of the parts, whichever program it
    is.
    """
    programs = tl.num_programs(0) * tl.num_programs(1)
    tl.debug_barrier()  # until all threads of this program have written
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1:
        tl.debug_barrier()
        o = tl.arange(0, BLOCK_O)
        finish(sums, mean, var, saved, count, eps, momentum, programs, o, O, AT_ONCE, BLOCK_O)
        tl.store(batches, tl.load(batches) + 1)
        tl.store(counter, 0)
