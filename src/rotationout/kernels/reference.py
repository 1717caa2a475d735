"""The definition of the operator in plain torch, differentiable and on any device; all other kernels equal it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import pairing

__all__ = ["feature_sum", "follow_mean", "mean_parts", "rotate", "rotate_centred", "turn_back"]


def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """The operator x + tan θ · A(x − m), features along ``dim`` (labels eq6 and eq13); ``adjoint`` turns by −θ instead.

    The leading axes of ``tan`` (…), ``index`` and ``mean`` (…, D) broadcast against those of ``x`` with ``dim`` moved
    last. Arithmetic is done in fp32 at least and rounded once.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    features = x.movedim(dim, -1).to(wide)
    partner, sign = pairing.partner_and_sign(index, seed, features.size(-1))
    centred = features if mean is None else features - mean
    other = centred.expand_as(features).gather(-1, partner.expand(features.shape))
    turn = -tan if adjoint else tan
    rotated = features + turn.to(wide).unsqueeze(-1) * sign * other
    return rotated.to(x.dtype).movedim(-1, dim)


def rotate_centred(
    x: Tensor,
    weight: Tensor | None,
    tan: Tensor,
    index: Tensor,
    seed: Tensor | None,
    dim: int,
    adjoint: bool,
    *,
    rotate: Callable[..., Tensor] = rotate,
) -> Tensor:
    """The operator about the mean over every axis but ``dim``: I + K(I − M), K = tan θ · A; adjoint: I − (I − M)K.

    Rows of weight 0 take no part in M; the caller sets tan θ to 0 there. ``rotate`` is the implementation to build on.
    """
    rows = x.numel() // x.size(dim) if weight is None else weight.sum().clamp(min=1)
    if not adjoint:
        mean = feature_sum(x, weight, dim) / rows
        return rotate(x, mean, tan, index, seed, dim, False)
    turned = rotate(x, None, tan, index, seed, dim, True)
    kicked = (feature_sum(x, None, dim) - feature_sum(turned, None, dim)) / rows
    back = kicked if weight is None else kicked * weight.unsqueeze(-1)
    return (turned.movedim(dim, -1) + back).to(x.dtype).movedim(-1, dim)


def turn_back(
    grad: Tensor,
    z: Tensor,
    tan: Tensor,
    index: Tensor,
    seed: Tensor | None,
    dim: int,
    *,
    rotate: Callable[..., Tensor] = rotate,
) -> Tensor:
    """The gradient g − Kg = g + (w·g z − z·g w) / |z|², where w is z, turned: see `rotationout.kernels.plane`.

    ``rotate`` is the implementation to build on.
    """
    wide = torch.promote_types(z.dtype, torch.float32)
    z, g = z.to(wide), grad.to(wide)
    w = rotate(z, None, tan, index, seed, dim, False)
    wg, zg, zz = ((a * b).sum(dim, keepdim=True) for a, b in ((w, g), (z, g), (z, z)))  # autocast rounds products
    square = zz.clamp_min(torch.finfo(wide).tiny)
    return torch.addcmul(g, z, wg / square).addcmul(w, -zg / square).to(grad.dtype)


def feature_sum(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """The sum over every axis but ``dim``, (D,), in fp32 at least; rows weighted by ``weight`` (leading shape)."""
    rows = x.movedim(dim, -1)
    wide = torch.promote_types(x.dtype, torch.float32)
    if weight is not None:
        counted = weight.unsqueeze(-1)
        rows = torch.where(counted != 0, rows.to(wide) * counted, 0.0)  # padding may hold anything, NaN too
    axes = list(range(rows.ndim - 1))
    return rows.sum(axes, dtype=wide) if axes else rows.to(wide)


def mean_parts(x: Tensor, dim: int) -> Tensor:
    """The mean over every axis but ``dim``, as parts (parts, D) that add up to it; here one part."""
    return feature_sum(x, None, dim).unsqueeze(0) / max(x.numel() // x.size(dim), 1)


def follow_mean(running: Tensor, parts: Tensor, momentum: float | Tensor) -> None:
    """Move ``running`` (D,), in place, towards a mean in parts: by the fraction ``momentum`` of the difference."""
    mean = parts[0] if parts.size(0) == 1 else parts.sum(0)
    running.lerp_(mean.to(running.dtype), momentum)
