"""The operator on small CPU tensors, where the cost is in the calls of torch and not in the elements.

A plain expression that autograd differentiates by itself: a few calls forward and fewer backward. For backward it keeps
the partner of every feature, its factor and their product, so it is for small tensors only.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import pairing
from . import reference
from .cpu import WIDTHS, signs_of_bytes
from .reference import feature_sum, follow_mean, mean_parts

__all__ = ["MOST", "feature_sum", "follow_mean", "mean_parts", "rotate", "rotate_centred", "turn_back"]

MOST = 2**16
"""The most elements; with more `rotationout.kernels.cpu` is faster."""
KNOWN = 1024
"""The most features for which all structured pairings are cached, in 16 bits: 4 MB at most, see `cpu.WIDTHS`."""


def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate`."""

    def aligned(t: Tensor) -> Tensor:
        """(…, D or 1) → the axes of ``x``."""
        full = t if t.ndim == x.ndim else t.view(*(1,) * (x.ndim - t.ndim), *t.shape)
        return full if dim == x.ndim - 1 else full.movedim(-1, dim)

    wide = torch.promote_types(x.dtype, torch.float32)
    features = x.to(wide)
    partner, sign = _pairs(index, seed, x.size(dim), wide)
    # Multiply by the factor before the fetch (a partner has the opposite sign): gather keeps its input for backward,
    # and x itself may have changed in place by then.
    turn = aligned(sign * (tan if adjoint else -tan).to(wide).unsqueeze(-1))
    centred = features if mean is None else features - aligned(mean)
    return (features + _fetch(centred * turn, aligned(partner), dim)).to(x.dtype)


rotate_centred = functools.partial(reference.rotate_centred, rotate=rotate)
"""See `rotationout.kernels.reference.rotate_centred`."""
turn_back = functools.partial(reference.turn_back, rotate=rotate)
"""See `rotationout.kernels.reference.turn_back`."""


def _fetch(x: Tensor, partner: Tensor, dim: int) -> Tensor:
    """The partner of every feature; where all positions of a map share a pairing, whole maps at once."""
    after = math.prod(x.shape[dim + 1 :])
    if after == 1 or math.prod(partner.shape[dim + 1 :]) > 1:
        return x.gather(dim, partner.expand_as(x))
    chunks = x.reshape(-1, after)
    start = torch.arange(0, len(chunks), x.size(dim), device="cpu").view(*x.shape[:dim], *(1,) * (x.ndim - dim))
    return chunks.index_select(0, (start + partner).flatten()).view(x.shape)


def _pairs(index: Tensor, seed: Tensor | None, features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`pairing.partner_and_sign`, with the signs in ``dtype``."""
    if seed is None or features > KNOWN:
        partner, sign = pairing.partner_and_sign(index, seed, features)
        return partner, sign.to(dtype)
    drawn, shape = index.reshape(-1).int(), (*index.shape, features)
    partners, places = _tables(features)
    bits = pairing.sign_words(seed, index.reshape(-1), features).view(torch.uint8).flatten().int()
    signs = signs_of_bytes(dtype).index_select(0, bits).view(drawn.numel(), -1)
    # A feature that is second in its pair has the opposite sign, and an idle one none.
    choices = torch.cat([signs, -signs, signs.new_zeros(drawn.numel(), features % 2)], 1)
    sign = choices.gather(1, places.index_select(0, drawn).long())
    return partners.index_select(0, drawn).long().view(shape), sign.view(shape)


@functools.lru_cache(maxsize=WIDTHS)
def _tables(features: int) -> tuple[Tensor, Tensor]:
    """For all structured pairings, the partners and the places of the signs among the choices of `_pairs`."""
    draws = torch.arange(pairing.count_structured(features), device="cpu")
    partner, second, bit = pairing.structured(draws, features)
    width = 64 * pairing.words_per_draw(features)
    idle = partner == torch.arange(features, device="cpu")
    place = torch.where(idle, 2 * width, torch.where(second, bit + width, bit))
    return partner.short(), place.short()
