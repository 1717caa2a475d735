"""GPU programs for structured draws with the features last in memory: groups of lanes move in one piece."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .pairing import first_state, games, meet, negatives, sign_bits

__all__ = [
    "lanes_kernel",
    "lanes_sum_kernel",
]


@triton.jit
def swap_lanes(values, wanted, STEP: tl.constexpr):
    """Exchange the lanes v and v XOR STEP of integers (rows, groups, lanes) where ``wanted`` (rows, 1)."""
    halves = tl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // (2 * STEP), 2, STEP))
    other = tl.reshape(tl.sum(halves, axis=3, keep_dims=True) - halves, values.shape)  # exact: integers wrap
    return tl.where((wanted != 0)[:, :, None], other, values)


@triton.jit
def swap_words(words, flip, LANES: tl.constexpr):
    """The lane of feature v goes to v XOR flip, features of 16 bits two to a word."""
    turned = (words << 16) | ((words >> 16) & 0xFFFF)
    words = tl.where(((flip & 1) != 0)[:, :, None], turned, words)
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
    n = (tl.program_id(0) // tiles).to(tl.int64)
    start = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_R
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


@triton.jit
def lanes_sum_kernel(
    x,
    partial,
    tan,
    index,
    seed,
    features,
    rows,
    splits,
    per_split,
    tan_n,
    tan_p,
    index_n,
    index_p,
    scale,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """The sum over rows of tan θ · A x for structured draws, times ``scale``, for every n and split of the rows.

    A program adds up the same features of all its rows, wherever their partners are. PACKED as above.
    """
    groups = features // LANES
    tiles = tl.cdiv(groups, BLOCK_G)
    part = (tl.program_id(0) // tiles).to(tl.int64)
    n = part // splits
    begin = part % splits * per_split
    group = ((tl.program_id(0) % tiles) * BLOCK_G + tl.arange(0, BLOCK_G))[None, :]
    lane = tl.arange(0, LANES)[None, None, :]
    draw_seed = tl.load(seed)
    row = tl.arange(0, BLOCK_R)[:, None]
    total = tl.zeros((BLOCK_R, BLOCK_G, LANES), tl.float32)
    for offset in range(0, per_split, BLOCK_R):
        first = begin + offset
        present = (row < rows - first) & (row < per_split - offset)
        place = n * index_n + first * index_p + row * index_p
        k = tl.load(index + place, mask=present, other=0).to(tl.int32)
        t = tl.load(tan + n * tan_n + first * tan_p + row * tan_p, mask=present, other=0.0).to(tl.float32)
        partner, flip, block, second = meet(k, group, groups, LANES, ODD)
        bits = sign_bits(first_state(draw_seed, place, features), block, LANES)
        negative = negatives(bits, flip, second, LANES)[:, :, None]
        valid = (present & (group < groups))[:, :, None]
        if PACKED is not None:
            at = (row * (features // 2) + partner * (LANES // 2))[:, :, None] + tl.arange(0, LANES // 2)[None, None, :]
            words = tl.load(x + (n * rows + first) * (features // 2) + at, mask=valid, other=0)
            words = swap_words(words, flip, LANES)
            other = tl.reshape(tl.join(low_half(words, PACKED), high_half(words, PACKED)), (BLOCK_R, BLOCK_G, LANES))
        else:
            at = (row * features + partner * LANES)[:, :, None] + lane
            other = tl.load(x + (n * rows + first) * features + at, mask=valid, other=0.0).to(tl.float32)
            other = swap_features(other.to(tl.int32, bitcast=True), flip, LANES).to(tl.float32, bitcast=True)
        signed = (t.to(tl.int32, bitcast=True)[:, :, None] ^ ((negative >> lane) << 31)).to(tl.float32, bitcast=True)
        if ODD:
            signed = tl.where((partner == group)[:, :, None], 0.0, signed)
        total += signed * other
    c = tl.reshape(group, (BLOCK_G, 1)) * LANES + tl.arange(0, LANES)[None, :]
    tl.store(partial + part * features + c, tl.sum(total, axis=0) * scale, mask=c < features)
