"""Who is paired with whom, and with which sign: pure integer maths, nothing random.

A pairing splits D features into pairs (i, j) and gives each pair a direction: the first feature gets ``+tan θ`` times
the second, the second ``−tan θ`` times the first (label eq4). It is kept in one of two forms, which expand to tensors
with the features on the last axis:

*table*
    a signed partner for each feature, ``sign · (partner + 1)`` in the smallest integer type, 0 for an idle feature.

*structured*
    one integer k per draw out of D − 1 (even D) or D (odd D) pairings that together hold every pair exactly once, and a
    seed from which the sign of each pair is read. Lemma 1 requires no more of a pairing. Features are numbered
    i = (g, v), lane v < V of group g, and groups are paired as in a round-robin tournament; the lanes of a group stay
    together, so that a GPU loads them in 16-byte pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "as_table",
    "count_structured",
    "from_permutation",
    "partner_and_sign",
    "sign_words",
    "structured",
    "structured_groups",
    "words_per_draw",
]


def from_permutation(permutation: Tensor) -> Tensor:
    """The table of a permutation P (label eq4): P[l] meets P[l + d], d = D // 2; for odd D the last one is idle."""
    half = permutation.size(-1) // 2
    first, second = permutation[..., :half], permutation[..., half : 2 * half]
    codes = torch.cat([second + 1, -(first + 1), torch.zeros_like(permutation[..., 2 * half :])], dim=-1)
    return torch.zeros_like(permutation).scatter(-1, permutation, codes).to(index_dtype(permutation.size(-1)))


def index_dtype(features: int) -> torch.dtype:
    """The smallest integer type that holds an entry of a table, or the k of a structured pairing."""
    return torch.int8 if features < 2**7 else torch.int16 if features < 2**15 else torch.int32


def partner_and_sign(index: Tensor, seed: Tensor | None, features: int) -> tuple[Tensor, Tensor]:
    """Expand a pairing of either form: partners (int64) and signs (int8, 0 for an idle feature), each (…, D)."""
    if seed is None:
        code = index.long()
        idle = torch.arange(features, device=index.device)
        return torch.where(code == 0, idle, code.abs() - 1), code.sign().to(torch.int8)
    partner, second, bit = structured(index, features)
    word = _splitmix64(seed, _first_word(index, features) + (bit >> 6))
    flip = (word >> (bit & 63)) & 1
    sign = (2 * flip - 1) * torch.where(second, -1, 1)
    idle = partner == torch.arange(features, device=index.device)
    return partner, torch.where(idle, 0, sign).to(torch.int8)


def as_table(index: Tensor, seed: Tensor | None, features: int) -> Tensor:
    """A pairing of either form as a table. Unlike a structured pairing it can be reindexed: it holds its own signs."""
    if seed is None:
        return index
    partner, sign = partner_and_sign(index, seed, features)
    return (sign * (partner + 1)).to(index_dtype(features))


def count_structured(features: int) -> int:
    """How many structured pairings there are: k runs from 0 to this, exclusive."""
    return features - 1 if features % 2 == 0 else features


def lanes(features: int) -> int:
    """V, how many features move together in a structured pairing. It depends on D alone, never on the dtype."""
    return next((v for v in (8, 4, 2) if features % (2 * v) == 0), 1)


def structured_groups(k: Tensor, features: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The structured pairings k of an even D at the level of groups, i = (g, v), g < G = D / V.

    Returns the partner group (…, G), the lane flip u (…, 1) with partner lane v XOR u, the block of sign bits of the
    pair (…, G), and the mask (…, G) whose bit v is set where (g, v) is second in its pair.

    k < V − 1 pairs lanes inside a group (u = k + 1). The others are round r of a tournament of G groups, (r, u) =
    divmod(k − (V − 1), V): group f = r / 2 (mod G − 1) meets G − 1, and f + δ meets f − δ.
    """
    lane_count = lanes(features)
    groups = features // lane_count
    modulus = groups - 1
    k = k.long().unsqueeze(-1)
    group = torch.arange(groups, device=k.device)
    inside = k < lane_count - 1
    played = (k - (lane_count - 1)).clamp(min=0)
    flip = torch.where(inside, k + 1, played % lane_count)

    pivot = torch.div(played, lane_count, rounding_mode="floor") * (groups // 2) % modulus
    delta = (group - pivot) % modulus
    last = group == modulus
    partner = torch.where(last, pivot, torch.where(delta == 0, modulus, (pivot - delta) % modulus))
    ahead = delta < groups // 2
    second = last | ~ahead
    block = torch.where(last, 0, torch.where(ahead, delta, modulus - delta))

    # Inside a group half of the lanes are first in their pair. Groups g and g + G/2 share a block of sign bits: lanes
    # that are first in one group are second in the other, so every pair still has a bit of its own.
    full = 2**lane_count - 1
    lane = torch.arange(lane_count, device=k.device)
    low_bit = flip & -flip
    inside_mask = torch.where((lane & low_bit) != 0, 1 << lane, 0).sum(-1, keepdim=True)
    inside_mask = torch.where(group < groups // 2, inside_mask, full - inside_mask)
    return (
        torch.where(inside, group, partner),
        flip,
        torch.where(inside, group % (groups // 2), block),
        torch.where(inside, inside_mask, torch.where(second, full, 0)),
    )


def sign_words(seed: Tensor, index: Tensor, features: int) -> Tensor:
    """The random bits of the signs, D/2 to a draw, as (…, W) words of 64.

    They are computed from the seed whenever they are needed, so that a draw keeps one number instead of D/2 bits.
    """
    width = words_per_draw(features)
    return _splitmix64(seed, _first_word(index, features) + torch.arange(width, device=index.device))


def words_per_draw(features: int) -> int:
    """W, the number of 64-bit words that hold the signs of a draw."""
    return (features // 2 + 63) // 64


def _first_word(index: Tensor, features: int) -> Tensor:
    """The number of the first sign word of every draw, (…, 1)."""
    count = index.numel() * words_per_draw(features)
    return torch.arange(0, count, words_per_draw(features), device=index.device).view(*index.shape, 1)


def _splitmix64(seed: Tensor, count: Tensor) -> Tensor:
    """Word number ``count`` of SplitMix64 (Steele, Lea and Flood 2014) started at ``seed``."""
    state = seed + (count + 1) * _signed(0x9E3779B97F4A7C15)
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift(state, 31)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _shift(word: Tensor, by: int) -> Tensor:
    """A logical right shift; torch's own is arithmetic."""
    return torch.bitwise_and(word >> by, 2 ** (64 - by) - 1)


def structured(k: Tensor, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Structured pairings k: the partner of every feature, whether it is second, and its sign bit, each (…, D)."""
    if features % 2:  # a tournament with a bye: r/2 (mod D) is idle
        feature = torch.arange(features, device=k.device)
        pivot = k.long().unsqueeze(-1) * ((features + 1) // 2) % features
        delta = (feature - pivot) % features
        second = delta > features // 2
        bit = torch.where(second, features - delta, delta).clamp(min=1) - 1
        return (pivot - delta) % features, second, bit
    lane_count = lanes(features)
    groups, flip, block, mask = (part.unsqueeze(-1) for part in structured_groups(k, features))
    lane = torch.arange(lane_count, device=k.device)
    second = ((mask >> lane) & 1).bool()
    partner = groups * lane_count + (lane ^ flip)
    bit = block * lane_count + torch.where(second, lane ^ flip, lane)
    return partner.flatten(-2), second.flatten(-2), bit.flatten(-2)
