"""A GPU program that adds up the turns of structured draws, with the features last in memory.

Every row has a pairing of its own, so these sums take more arithmetic for each element than anything else here; this
file keeps that low. The random bits of the signs are made beforehand, 64 at a time, and read byte by byte.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import swap_features, swap_words, unpack_lanes
from .pairing import first_state, meet, mix, negatives

__all__ = ["lanes_sum_kernel", "signs_kernel"]


@triton.jit
def signs_kernel(seed, words, count, BLOCK: tl.constexpr):
    """The sign words of all draws, one after the other: see `rotationout.pairing.sign_words`."""
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = mix(first_state(tl.load(seed), number, 2))
    tl.store(words + number, word.to(tl.int64, bitcast=True), mask=number < count)


@triton.jit
def negate_words(words, negative, word):
    """Words of two features of 16 bits, of which those are negated whose bit of ``negative`` is set."""
    spread = (negative & 0xFF) * 0x8001  # a shift brings bits 2·word and 2·word + 1 to bits 15 and 31
    return words ^ ((spread << (15 - 2 * word)) & -0x7FFF8000)


@triton.jit
def drawn(index, tan, row, rows, tan_p, index_p):
    """The draws and angles of rows; beyond the last it is that one's draw, and no angle."""
    known = tl.minimum(row, rows - 1).to(tl.int64)
    k = tl.load(index + known * index_p).to(tl.int32)
    return k, tl.load(tan + known * tan_p, mask=row < rows, other=0.0).to(tl.float32)


@triton.jit
def lanes_sum_kernel(
    x,
    partial,
    tan,
    index,
    signs,
    rows,
    splits,
    tan_n,
    tan_p,
    index_n,
    index_p,
    scale,
    FEATURES: tl.constexpr,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    PACKED: tl.constexpr,
    ASM: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The sum over rows of tan θ · A x for structured draws, times ``scale``, for every n and split of the rows.

    A program adds up the same features of all its rows, wherever their partners are; programs take turns, each a tile
    of rows. With PACKED, the dtype of the features, x holds two of them to a word. ``signs`` are the bytes of what
    `signs_kernel` makes.

    Groups of lanes are read in parts of PART lanes, of 16 bytes at most: bits of the lane flip that are not inside a
    part change its address, the others move lanes in registers. A tile is (BLOCK_G, BLOCK_R, BLOCK_H): BLOCK_G parts
    side by side, which the compiler gives to neighbouring threads, rows, and BLOCK_H times as many parts, 4 at most,
    which a thread has of the same row: what depends on the row is worked out once for them, and so are their signs, a
    byte each. Nothing is masked: rows beyond the last and features that there are not are the last once more, with no
    angle or not stored.
    """
    parts: tl.constexpr = LANES // PART
    groups: tl.constexpr = FEATURES // LANES
    tiles: tl.constexpr = (groups * parts + BLOCK_G * BLOCK_H - 1) // (BLOCK_G * BLOCK_H)
    width: tl.constexpr = (FEATURES // 2 + 63) // 64 * 8
    place_of_sums = (tl.program_id(0) // tiles).to(tl.int64)
    n = place_of_sums // splits
    split = (place_of_sums % splits).to(tl.int32)
    last = tl.cdiv(rows, BLOCK_R) - 1
    x += n * rows * (FEATURES if PACKED is None else FEATURES // 2)
    index += n * index_n
    tan += n * tan_n
    signs += n * index_n * width
    piece = tl.arange(0, BLOCK_G)[:, None, None] + tl.arange(0, BLOCK_H)[None, None, :] * BLOCK_G
    piece += (tl.program_id(0) % tiles) * (BLOCK_G * BLOCK_H)
    known = piece if groups * parts % (BLOCK_G * BLOCK_H) == 0 else tl.minimum(piece, groups * parts - 1)
    group = known // parts
    row = tl.arange(0, BLOCK_R)[None, :, None]
    byte = tl.arange(0, BLOCK_H)[None, None, :] * 8
    total = tl.zeros((BLOCK_G, BLOCK_R, BLOCK_H * PART), tl.float32)
    k, t = drawn(index, tan, split * BLOCK_R + row, rows, tan_p, index_p)
    for tile in range(split, last + 1, splits):
        # Where features are depends on the draw: that of the next tile is on its way while this one is read.
        next_k, next_t = drawn(index, tan, tl.minimum(tile + splits, last) * BLOCK_R + row, rows, tan_p, index_p)
        first = tl.cast(tile * BLOCK_R, tl.int64)
        here = tl.minimum(row, rows - 1 - tile * BLOCK_R)
        partner, flip, block, behind, upper = meet(k, group, groups, LANES, ODD)
        place = (first * index_p + here * index_p) * width
        bits = tl.load(signs + place + (block * LANES >> 3)).to(tl.int32)
        if LANES < 8:
            bits = (bits >> (block * LANES & 7)) & (2**LANES - 1)
        bits = tl.sum(bits << byte, axis=2, keep_dims=True)
        second = tl.sum(tl.where(behind, 2**LANES - 1, 0) << byte, axis=2, keep_dims=True) ^ (upper * 0x01010101)
        negative = negatives(bits, flip, second, LANES) >> byte
        source = partner
        if parts > 1:
            negative = negative >> (known % parts * PART)
            source = partner * parts + (known % parts ^ (flip >> 2))
        if PACKED is not None:
            half: tl.constexpr = PART // 2
            word = tl.arange(0, half)[None, None, None, :]
            at = (here * (FEATURES // 2) + source * half)[:, :, :, None] + word
            words = tl.load(x + first * (FEATURES // 2) + at)
            words = swap_words(tl.reshape(words, (BLOCK_G, BLOCK_R, BLOCK_H * half)), flip, PART, ASM)
            words = tl.reshape(words, (BLOCK_G, BLOCK_R, BLOCK_H, half))
            words = negate_words(words, negative[:, :, :, None], word)
            total += t * unpack_lanes(tl.reshape(words, (BLOCK_G, BLOCK_R, BLOCK_H * half)), PACKED)
        else:
            lane = tl.arange(0, PART)[None, None, None, :]
            at = (here * FEATURES + source * PART)[:, :, :, None] + lane
            other = tl.load(x + first * FEATURES + at).to(tl.float32).to(tl.int32, bitcast=True)
            if ODD:
                other = tl.where((partner == group)[:, :, :, None], 0, other)
            other = swap_features(tl.reshape(other, total.shape), flip, PART)
            other ^= tl.reshape((negative[:, :, :, None] >> lane) << 31, total.shape)
            total += t * other.to(tl.float32, bitcast=True)
        k, t = next_k, next_t
    sums = tl.reshape(tl.sum(total, axis=1) * scale, (BLOCK_G, BLOCK_H, PART))
    c = tl.reshape(piece, (BLOCK_G, BLOCK_H, 1)) * PART + tl.arange(0, PART)[None, None, :]
    tl.store(partial + place_of_sums * FEATURES + c, sums, mask=c < FEATURES)
