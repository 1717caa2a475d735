"""A GPU program that adds up the turns of structured draws, with the features last in memory.

Every row has a pairing of its own, so the sums take more arithmetic for what they read than anything else here: that is
what this file spares. The random bits of the signs are made beforehand, 64 at a time, and read byte by byte.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import high_half, low_half, swap_features, swap_words
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
    spread = (negative & 0xFF) | (
        (negative & 0xFF) << 15
    )  # a shift brings bits 2·word and 2·word + 1 to bits 15 and 31
    return words ^ ((spread << (15 - 2 * word)) & -0x7FFF8000)


@triton.jit
def drawn(index, tan, n, row, rows, tan_n, tan_p, index_n, index_p):
    """The draws and angles of rows."""
    present = row < rows
    k = tl.load(index + n * index_n + row * index_p, mask=present, other=0).to(tl.int32)
    return k, tl.load(tan + n * tan_n + row * tan_p, mask=present, other=0.0).to(tl.float32)


@triton.jit
def lanes_sum_kernel(
    x,
    partial,
    tan,
    index,
    signs,
    features,
    rows,
    splits,
    tan_n,
    tan_p,
    index_n,
    index_p,
    scale,
    LANES: tl.constexpr,
    ODD: tl.constexpr,
    PACKED: tl.constexpr,
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
    side by side, which the compiler gives to neighbouring threads, rows, and BLOCK_H times as many parts, which a
    thread has of the same row, so that what depends on the row is worked out once for them.
    """
    parts: tl.constexpr = LANES // PART
    groups = features // LANES
    tiles = tl.cdiv(groups * parts, BLOCK_G * BLOCK_H)
    place_of_sums = (tl.program_id(0) // tiles).to(tl.int64)
    n = place_of_sums // splits
    split = place_of_sums % splits
    piece = tl.arange(0, BLOCK_G)[:, None, None] + tl.arange(0, BLOCK_H)[None, None, :] * BLOCK_G
    piece += (tl.program_id(0) % tiles) * (BLOCK_G * BLOCK_H)
    group = piece // parts
    width = (features // 2 + 63) // 64 * 8
    row = tl.arange(0, BLOCK_R)[None, :, None]
    total = tl.zeros((BLOCK_G, BLOCK_R, BLOCK_H, PART), tl.float32)
    k, t = drawn(index, tan, n, split * BLOCK_R + row, rows, tan_n, tan_p, index_n, index_p)
    for tile in range(split, tl.cdiv(rows, BLOCK_R), splits):
        first = tile * BLOCK_R
        # Where features are depends on the draw: that of the next tile is on its way while this one is read.
        next_k, next_t = drawn(index, tan, n, first + splits * BLOCK_R + row, rows, tan_n, tan_p, index_n, index_p)
        partner, flip, block, second = meet(k, group, groups, LANES, ODD)
        valid = (row < rows - first) & (group < groups)
        place = n * index_n + (first + row) * index_p
        bits = tl.load(signs + place * width + (block if LANES == 8 else block * LANES >> 3), mask=valid, other=0)
        bits = bits.to(tl.int32)
        if LANES < 8:
            bits = bits >> (block * LANES & 7)
        negative = negatives(bits, flip, second, LANES)
        source = partner
        if parts > 1:
            negative = negative >> (piece % parts * PART)
            source = partner * parts + (piece % parts ^ (flip >> 2))
        if PACKED is not None:
            half: tl.constexpr = PART // 2
            word = tl.arange(0, half)[None, None, None, :]
            at = (row * (features // 2) + source * half)[:, :, :, None] + word
            words = tl.load(x + (n * rows + first) * (features // 2) + at, mask=valid[:, :, :, None], other=0)
            words = swap_words(tl.reshape(words, (BLOCK_G, BLOCK_R, BLOCK_H * half)), flip, PART)
            words = tl.reshape(words, (BLOCK_G, BLOCK_R, BLOCK_H, half))
            words = negate_words(words, negative[:, :, :, None], word)
            total += t[:, :, :, None] * tl.reshape(
                tl.join(low_half(words, PACKED), high_half(words, PACKED)), total.shape
            )
        else:
            lane = tl.arange(0, PART)[None, None, None, :]
            at = (row * features + source * PART)[:, :, :, None] + lane
            other = tl.load(x + (n * rows + first) * features + at, mask=valid[:, :, :, None], other=0.0)
            other = other.to(tl.float32).to(tl.int32, bitcast=True)
            other = swap_features(tl.reshape(other, (BLOCK_G, BLOCK_R, BLOCK_H * PART)), flip, PART)
            other = tl.reshape(other, total.shape) ^ ((negative[:, :, :, None] >> lane) << 31)
            if ODD:
                other = tl.where((partner == group)[:, :, :, None], 0, other)
            total += t[:, :, :, None] * other.to(tl.float32, bitcast=True)
        k, t = next_k, next_t
    c = tl.reshape(piece, (BLOCK_G, BLOCK_H, 1)) * PART + tl.arange(0, PART)[None, None, :]
    tl.store(partial + place_of_sums * features + c, tl.sum(total, axis=1) * scale, mask=c < features)
