"""A GPU program for structured draws with the features last in memory: groups of lanes move in one piece."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .pairing import first_state, games, sign_bits

__all__ = [
    "high_half",
    "lanes_kernel",
    "low_half",
    "pack",
    "swap_features",
    "swap_words",
]


@triton.jit
def swap_lanes(values, wanted, STEP: tl.constexpr):
    """Exchange the lanes v and v XOR STEP of integers (rows, groups, lanes) where ``wanted`` (rows, 1, 1)."""
    halves = tl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // (2 * STEP), 2, STEP))
    other = tl.reshape(tl.sum(halves, axis=3, keep_dims=True) - halves, values.shape)  # exact: integers wrap
    return tl.where(wanted != 0, other, values)


@triton.jit
def swap_words(words, flip, LANES: tl.constexpr):
    """The lane of feature v goes to v XOR flip, features of 16 bits two to a word."""
    turned = (words << 16) | ((words >> 16) & 0xFFFF)
    words = tl.where((flip & 1) != 0, turned, words)
    if LANES > 2:
        words = swap_lanes(words, flip & 2, 1)
    if LANES > 4:
        words = swap_lanes(words, flip & 4, 2)
    return words


@triton.jit
def swap_features(values, flip, LANES: tl.constexpr):
    """The lane of feature v goes to v XOR flip, features as integers of 32 bits."""
    if LANES > 1:
        values = swap_lanes(values, flip & 1, 1)
    if LANES > 2:
        values = swap_lanes(values, flip & 2, 2)
    if LANES > 4:
        values = swap_lanes(values, flip & 4, 4)
    return values


@triton.jit
def low_half(words, kind: tl.constexpr):
    """The first feature of every word, as fp32."""
    if kind == tl.bfloat16:
        return (words << 16).to(tl.float32, bitcast=True)
    return words.to(tl.int16).to(kind, bitcast=True).to(tl.float32)


@triton.jit
def high_half(words, kind: tl.constexpr):
    """The second feature of every word, as fp32."""
    if kind == tl.bfloat16:
        return (words & -0x10000).to(tl.float32, bitcast=True)
    return (words >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)


@triton.jit
def pack(low, high, kind: tl.constexpr):
    """Two features of 16 bits in a word."""
    first = low.to(kind).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return first | (high.to(kind).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def exchange_where(one, two, mask):
    """Both integers with the bits of ``mask`` exchanged."""
    both = (one ^ two) & mask
    return one ^ both, two ^ both


@triton.jit
def lanes_kernel(
    x,
    y,
    tan,
    index,
    mean,
    shift,
    weight,
    seed,
    features,
    rows,
    tan_n,
    tan_p,
    index_n,
    index_p,
    weight_n,
    weight_p,
    ADJOINT: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    MEAN: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHT: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Features last, structured draws: two groups that meet are loaded once, in one piece, and turned.

    Lanes are exchanged in registers. With PACKED, the dtype of the features, x and y hold two of them to a
    word; then there is no mean and no shift.
    """
    tiles = tl.cdiv(rows, BLOCK_R)
    program = tl.program_id(0)
    n = (program // tiles).to(tl.int64)
    start = (program % tiles).to(tl.int64) * BLOCK_R
    row = tl.arange(0, BLOCK_R)[:, None]
    present = row < rows - start
    place = n * index_n + start * index_p
    k = tl.load(index + place + row * index_p, mask=present, other=0).to(tl.int32)
    t = tl.load(tan + n * tan_n + start * tan_p + row * tan_p, mask=present, other=0.0).to(tl.float32)
    t = (-t if ADJOINT else t).to(tl.int32, bitcast=True)[:, :, None]
    state = first_state(tl.load(seed), place + row * index_p, features)
    groups = features // LANES
    blocks = groups // 2 + 1 if ODD else groups // 2
    for offset in range(0, blocks, BLOCK_B):
        b = (offset + tl.arange(0, BLOCK_B))[None, :]
        one, two, flip, low = games(k, b, groups, LANES, ODD)
        negative = ~sign_bits(state, tl.maximum(b - 1, 0) if ODD else b, LANES)[:, :, None]
        valid = (present & (b < blocks))[:, :, None]
        if PACKED is not None:
            base = (n * rows + start) * (features // 2)
            word = tl.arange(0, LANES // 2)[None, None, :]
            at_one = (row * (features // 2) + one * (LANES // 2))[:, :, None] + word
            at_two = (row * (features // 2) + two * (LANES // 2))[:, :, None] + word
            low = low[:, :, None]
            mask = tl.where(low == 1, -0x10000, tl.where((low & (2 * word)) != 0, -1, 0))
            u, v = exchange_where(
                tl.load(x + base + at_one, mask=valid, other=0),
                tl.load(x + base + at_two, mask=valid, other=0),
                mask,
            )
            flip = flip[:, :, None]
            v = swap_words(v, flip, LANES)
            t_low = (t ^ ((negative >> (2 * word)) << 31)).to(tl.float32, bitcast=True)
            t_high = (t ^ ((negative >> (2 * word + 1)) << 31)).to(tl.float32, bitcast=True)
            u_low, u_high = low_half(u, PACKED), high_half(u, PACKED)
            v_low, v_high = low_half(v, PACKED), high_half(v, PACKED)
            u = pack(u_low + t_low * v_low, u_high + t_high * v_high, PACKED)
            v = swap_words(pack(v_low - t_low * u_low, v_high - t_high * u_high, PACKED), flip, LANES)
            u, v = exchange_where(u, v, mask)
            tl.store(y + base + at_one, u, mask=valid)
            tl.store(y + base + at_two, v, mask=valid)
        else:
            base = (n * rows + start) * features
            lane = tl.arange(0, LANES)[None, None, :]
            c_one = (one * LANES)[:, :, None] + lane
            c_two = (two * LANES)[:, :, None] + lane
            at_one = (row * features)[:, :, None] + c_one
            at_two = (row * features)[:, :, None] + c_two
            mask = tl.where((low[:, :, None] & lane) != 0, -1, 0)
            own = tl.load(x + base + at_one, mask=valid, other=0.0).to(tl.float32)
            other = tl.load(x + base + at_two, mask=valid, other=0.0).to(tl.float32)
            u, v = own, other
            if MEAN:
                u -= tl.load(mean + c_one, mask=valid, other=0.0)
                v -= tl.load(mean + c_two, mask=valid, other=0.0)
            signed = (t ^ ((negative >> lane) << 31)).to(tl.float32, bitcast=True)
            if ODD:  # the first block is the idle feature's
                signed = tl.where((b == 0)[:, :, None], 0.0, signed)
            u, v = exchange_where(u.to(tl.int32, bitcast=True), v.to(tl.int32, bitcast=True), mask)
            flip = flip[:, :, None]
            v = swap_features(v, flip, LANES)
            h = (-signed * u.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
            u = (signed * v.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
            u, v = exchange_where(u, swap_features(h, flip, LANES), mask)
            own += u.to(tl.float32, bitcast=True)
            other += v.to(tl.float32, bitcast=True)
            if SHIFT:
                s = tl.load(shift + c_one, mask=valid, other=0.0)
                r = tl.load(shift + c_two, mask=valid, other=0.0)
                if WEIGHT:
                    w = tl.load(weight + n * weight_n + (start + row) * weight_p, mask=present, other=0.0)[:, :, None]
                    s *= w
                    r *= w
                own += s
                other += r
            tl.store(y + base + at_one, own.to(y.dtype.element_ty), mask=valid)
            if ODD:
                valid = valid & (b > 0)[:, :, None]
            tl.store(y + base + at_two, other.to(y.dtype.element_ty), mask=valid)
