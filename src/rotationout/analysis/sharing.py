"""Shared draws: how the noises of two elements of a tensor are correlated (label eq13 for rotations).

Positions of a map may share a mask or a pairing, and so may time steps of a sequence. The second moments of one feature
vector (`rotationout.analysis.law`) do not show that; those of a whole tensor do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .. import strength
from ..functional.sequences import sequence_axis
from ..nn import LockedDropout, ShakeShake
from ..nn.base import CentredNoise
from ..nn.rotation import _RotationOutNd
from ..registry import is_stochastic_depth
from ..rotation import leading_batch_axis, shape_of_draws

__all__ = ["cutout_chances", "mask_of_element", "one_sided_correlation", "tangent_products"]


def mask_of_element(noise: nn.Module, x: Tensor) -> Tensor:
    """A number for every element of ``x``; those with the same number are multiplied by the same random number."""
    shape = list(x.shape)
    spatial = next((n for n in (1, 2, 3) if isinstance(noise, getattr(nn, f"Dropout{n}d"))), None)
    if spatial is not None:
        if x.ndim not in (spatial + 1, spatial + 2):
            raise ValueError(
                f"{type(noise).__name__} takes maps of {spatial + 1} or {spatial + 2} dimensions, got {tuple(x.shape)}"
            )
        # torch takes (C, L) and (C, D, H, W) for one example, but (A, B, C) in Dropout2d for a batch of sequences.
        alone = x.ndim == spatial + 1 and spatial != 2
        shape = [n if axis < (1 if alone else 2) else 1 for axis, n in enumerate(shape)]
    elif isinstance(noise, LockedDropout):
        sequences = sequence_axis(x, noise.batch_first)
        shape = [n if axis in (sequences, x.ndim - 1) else 1 for axis, n in enumerate(shape)]
    elif isinstance(noise, ShakeShake) or is_stochastic_depth(noise):
        together = "batch" in (getattr(noise, "per", None), getattr(noise, "mode", None))
        shape = [1 if together else shape[0], *[1] * (x.ndim - 1)]
    return torch.arange(math.prod(shape), device=x.device).view(shape).expand(x.shape)


def tangent_products(noise: CentredNoise, shape: Sequence[int], axis: int, batch_dim: int | None) -> Tensor:
    """E[t_a t_b] where two feature vectors share a pairing and 0 where they do not, (P, P) for P positions.

    t is tan θ. The signs of a pairing are random, so vectors with different pairings have uncorrelated noises. With one
    pairing E[t_a t_b] is E[t²] = λ if the angle is shared too, else (E t)², which is zero for symmetric angles. With
    blocks it is multiplied by the probability that both positions are covered. Noise without pairs shares nothing.
    """
    leading = tuple(shape[:axis]) + tuple(shape[axis + 1 :])
    if not isinstance(noise, _RotationOutNd):
        return strength.to_lam("dropout", noise.p) * torch.eye(math.prod(leading), dtype=torch.float64)
    batch_axis = leading_batch_axis(batch_dim, axis, len(shape), noise.draw)

    def same(per: str) -> Tensor:
        sizes = shape_of_draws(leading, per, batch_axis)
        number = torch.arange(math.prod(sizes)).view(sizes).expand(leading).flatten()
        return number[:, None] == number

    lam = strength.to_lam("dropout", noise.p)
    apart = lam * one_sided_correlation(noise.draw.law, lam) if noise.draw.side == "one" else 0.0
    together = same(noise.draw.angle_per).double()
    products = (lam * together + apart * (1 - together)) * same(noise.draw.pairing_per)
    if noise.block_size is None or noise.coverage is None:
        return products
    return products * _both_covered(leading, len(shape) - 1 - axis, noise.block_size, noise.coverage)


def one_sided_correlation(law: str, lam: float) -> float:
    """(E|tan θ|)² / E tan²θ, the correlation of the noises of two positions with one pairing and one-sided angles.

    >>> round(one_sided_correlation("gaussian_tan", 0.25), 4)  # 2 / π
    0.6366
    """
    scale = strength.from_lam(law, lam)
    if law == "gaussian_tan":
        return 2 / math.pi
    if law == "uniform_tan" or scale == 0.0:
        return 3 / 4
    if law == "uniform_angle":
        return (math.log(math.cos(scale)) / scale) ** 2 / lam
    theta = torch.linspace(0, min(strength.ANGLE_LIMIT, 12 * scale), 4001, dtype=torch.float64)
    density = torch.exp(-0.5 * (theta / scale) ** 2)
    mean, mass = (torch.trapezoid(y, theta).item() for y in (density * theta.tan(), density))
    return (mean / mass) ** 2 / lam


def cutout_chances(share: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The probability that Cutout hides a pixel, (H, W), and two pixels at once, (H, W, H, W), over all centres."""

    def inside(size: int) -> Tensor:
        """Whether a pixel along an axis is hidden, (centre, pixel)."""
        # In fp32, as the layer does: a side of 4.5 pixels is rounded the same way.
        side = (torch.tensor(share, dtype=torch.float32).sqrt() * size).round()
        pixel = torch.arange(size)
        offset = pixel - pixel[:, None] + side.div(2, rounding_mode="floor")
        return ((offset >= 0) & (offset < side)).double()

    rows, columns = inside(height), inside(width)
    one = rows.mean(0)[:, None] * columns.mean(0)
    both = torch.einsum("ab,cd->acbd", rows.T @ rows / height, columns.T @ columns / width)
    return one, both


def _both_covered(leading: tuple[int, ...], spatial: int, block_size: int, coverage: float) -> Tensor:
    """The probability that blocks cover two positions at once, (P, P).

    A position is uncovered if none of the B blocks that contain it is drawn, with probability 1 − c = (1 − γ)^B. Two
    positions of an example are both uncovered if none of 2B − S blocks is drawn, where S blocks contain both.
    """
    sizes = leading[len(leading) - spatial :]
    blocks = [min(block_size, n) for n in sizes]
    places = torch.cartesian_prod(*[torch.arange(n) for n in sizes]).view(-1, spatial)
    distance = (places[:, None] - places).abs()
    shared = (torch.tensor(blocks) - distance).clamp(min=0).prod(-1).double() / math.prod(blocks)
    alone = 1 - coverage
    inside = 1 - 2 * alone + alone ** (2 - shared)
    examples = math.prod(leading[: len(leading) - spatial])
    same = torch.eye(examples, dtype=torch.float64).repeat_interleave(len(places), 0).repeat_interleave(len(places), 1)
    return torch.where(same.bool(), inside.repeat(examples, examples), coverage**2)
