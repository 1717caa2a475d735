"""The GPU kernels as operators of torch: torch.compile calls them as they are, without a graph break."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from .. import pairing
from . import reference
from .memory import in_memory_order
from .reference import follow_mean

__all__ = ["feature_sum", "follow_mean", "mean_parts", "rotate", "rotate_centred", "sample", "turn_back"]

SORT_LIMIT = 4096
"""Permutations of more features than this are left to torch's sort."""


def _empty(x: Tensor) -> Tensor:
    """An empty result with the strides that the kernels give it: the axes of x in their order in memory, no gaps."""
    dense, order = in_memory_order(x)
    return torch.empty_like(dense).permute([order.index(axis) for axis in range(x.ndim)])


def _as_promised(turned: Tensor, x: Tensor) -> Tensor:
    """``turned`` with the strides of `_empty`, which the compiler was promised; those of the reference may differ."""
    if turned.is_contiguous() and x.is_contiguous():
        return turned
    promised = _empty(x)
    return turned if turned.stride() == promised.stride() else promised.copy_(turned)


@custom_op("rotationout::rotate", mutates_args=(), device_types="cuda")
def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate`."""
    from . import triton

    return _as_promised(triton.rotate(x, mean, tan, index, seed, dim, adjoint), x)


@custom_op("rotationout::rotate_centred", mutates_args=(), device_types="cuda")
def rotate_centred(
    x: Tensor, weight: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate_centred`."""
    from . import triton

    return _as_promised(triton.rotate_centred(x, weight, tan, index, seed, dim, adjoint), x)


turn_back = functools.partial(reference.turn_back, rotate=rotate)
"""See `rotationout.kernels.reference.turn_back`: the compiler fuses all but the rotation."""


@custom_op("rotationout::feature_sum", mutates_args=(), device_types="cuda")
def feature_sum(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.feature_sum`."""
    from . import triton

    return triton.feature_sum(x, weight, dim)


def mean_parts(x: Tensor, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.mean_parts`."""
    total: Tensor = feature_sum(x, None, dim)
    return total.unsqueeze(0) / max(x.numel() // x.size(dim), 1)


@custom_op("rotationout::draw", mutates_args=(), device_types="cuda")
def draw(
    seed: Tensor,
    scale: Tensor,
    pairs: Sequence[int],
    angles: Sequence[int],
    features: int,
    structured: bool,
    law: str,
    one_sided: bool,
) -> tuple[Tensor, Tensor]:
    """Draw tan θ and the index from a seed; see `rotationout.kernels.triton.draw`."""
    from . import triton

    return triton.draw(
        seed, tuple(pairs), tuple(angles), features, scale, structured=structured, law=law, one_sided=one_sided
    )


@rotate.register_fake
@rotate_centred.register_fake
def _(x: Tensor, *others: object) -> Tensor:
    return _empty(x)


@feature_sum.register_fake
def _(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    return x.new_empty(x.size(dim), dtype=torch.promote_types(x.dtype, torch.float32))


@draw.register_fake
def _(
    seed: Tensor,
    scale: Tensor,
    pairs: Sequence[int],
    angles: Sequence[int],
    features: int,
    structured: bool,
    law: str,
    one_sided: bool,
) -> tuple[Tensor, Tensor]:
    shape = tuple(pairs) if structured else (*pairs, features)
    tan = seed.new_empty(tuple(angles), dtype=torch.float32)
    return tan, seed.new_empty(shape, dtype=pairing.index_dtype(features))


def sample(
    pairs: tuple[int, ...],
    angles: tuple[int, ...],
    features: int,
    scale: float | Tensor,
    *,
    structured: bool,
    law: str,
    one_sided: bool,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `rotationout.kernels.triton.sample`. The seed is drawn outside the operator, where the compiler sees it."""
    source: dict[str, Any] = {} if generator is None else {"generator": generator}  # None refuses symbolic sizes
    seed = torch.randint(2**63 - 1, (), device=device, **source)
    given = scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32, device=device)
    tan, index = draw(seed, given, pairs, angles, features, structured, law, one_sided)
    return tan, index, seed if structured else None
