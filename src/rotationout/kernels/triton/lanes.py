"""Functions on lanes of features in registers: exchange lanes, and pack two features of 16 bits into a word.

ASM says that NVIDIA's instructions can be used, which do in one step what otherwise takes several.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "as_bits",
    "as_numbers",
    "exchange_where",
    "flat",
    "high_half",
    "low_half",
    "pack",
    "pack_lanes",
    "signed_by",
    "swap_features",
    "swap_words",
    "unpack_lanes",
]


@triton.jit
def as_bits(values):
    """Numbers of fp32 as integers."""
    return values.to(tl.int32, bitcast=True)


@triton.jit
def as_numbers(values):
    """The reverse."""
    return values.to(tl.float32, bitcast=True)


@triton.jit
def flat(values):
    """A tile (blocks, rows, more blocks, lanes) with its last two axes as one."""
    return tl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] * values.shape[3]))


@triton.jit
def signed_by(t, negative):
    """The bits ``t`` of fp32, negated where the lowest bit of ``negative`` is set."""
    return as_numbers(t ^ (negative << 31))


@triton.jit
def swapped(values, STEP: tl.constexpr):
    """Integers (rows, groups, lanes) with the lanes v and v XOR STEP exchanged."""
    halves = tl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // (2 * STEP), 2, STEP))
    return tl.reshape(tl.sum(halves, axis=3, keep_dims=True) - halves, values.shape)  # exact: integers wrap


@triton.jit
def swap_lanes(values, wanted, STEP: tl.constexpr):
    """The same where ``wanted`` (rows, 1, 1)."""
    return tl.where(wanted != 0, swapped(values, STEP), values)


@triton.jit
def swap_words(words, flip, LANES: tl.constexpr, ASM: tl.constexpr = False):
    """The lane of feature v goes to v XOR flip, features of 16 bits two to a word."""
    if ASM:  # four bytes out of a word and its neighbour, by their numbers
        bytes_of = tl.where((flip & 1) != 0, 0x1032, 0x3210)
        neighbour = words
        if LANES > 2:
            bytes_of += (flip & 2) * 0x2222
            neighbour = swapped(words, 1)
        words = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [words, neighbour, bytes_of], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
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
def exchange_where(one, two, mask):
    """Both integers with the bits of ``mask`` exchanged."""
    both = (one ^ two) & mask
    return one ^ both, two ^ both


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
def pack(low, high, kind: tl.constexpr, ASM: tl.constexpr = False):
    """Two features of 16 bits in a word, rounded to nearest even."""
    if ASM:
        if kind == tl.bfloat16:
            return tl.inline_asm_elementwise(
                "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], dtype=tl.int32, is_pure=True, pack=1
            )
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], dtype=tl.int32, is_pure=True, pack=1
        )
    first = low.to(kind).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return first | (high.to(kind).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def unpack_lanes(words, kind: tl.constexpr):
    """Words (rows, groups, words) as features of fp32 (rows, groups, lanes)."""
    both = tl.join(low_half(words, kind), high_half(words, kind))
    return tl.reshape(both, (words.shape[0], words.shape[1], 2 * words.shape[2]))


@triton.jit
def pack_lanes(features, kind: tl.constexpr, ASM: tl.constexpr = False):
    """The reverse, rounded."""
    pairs = tl.reshape(features, (features.shape[0], features.shape[1], features.shape[2] // 2, 2))
    low, high = tl.split(pairs)
    return pack(low, high, kind, ASM)
