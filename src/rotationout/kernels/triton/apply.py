"""The operator on a GPU: one pass over the features, two when it turns about their batch mean.

`choose` decides which programs do it. The host never waits for the device. Nothing here is differentiable;
`rotationout.kernels.autograd` wraps it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from . import choose, sizes
from .launch import Program
from .layout import Arranged, arrange

__all__ = ["feature_sum", "fits", "follow_mean", "mean_parts", "rotate", "rotate_centred", "turned"]


def rotate(
    x: Tensor, mean: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """See `rotationout.kernels.reference.rotate`."""
    if (mean is not None and mean.numel() != x.size(dim)) or not fits(x, dim):
        return reference.rotate(x, mean, tan, index, seed, dim, adjoint)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        draw = arrange(x, tan, index, seed, dim, None)
        mean = None if mean is None else mean.reshape(1, -1).float().contiguous()
        return turned(draw, mean, None, adjoint, centred=False)


def rotate_centred(
    x: Tensor, weight: Tensor | None, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, adjoint: bool
) -> Tensor:
    """I + K(I − M), or its adjoint I − (I − M)K: K = tan θ · A, M is the mean over every axis but ``dim``.

    Rows of weight 0 take no part in M, and there tan θ is 0. Small maps are turned in one launch. Otherwise x is read
    twice, either way: for a sum over its rows, and to be turned; the adjoint sums K x and adds the mean back to every
    row.
    """
    if not fits(x, dim):
        return reference.rotate_centred(x, weight, tan, index, seed, dim, adjoint)
    with torch.cuda.device_of(x):
        draw = arrange(x, tan, index, seed, dim, weight)
        result = _at_once(draw, adjoint)
        if result is not None:
            return result
        mean = _sums(draw, turned=adjoint, mean=True)
        about, back = (None, mean) if adjoint else (mean, None)
        return turned(draw, about, back, adjoint, centred=True)


def feature_sum(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.feature_sum`."""
    if not fits(x, dim):
        return reference.feature_sum(x, weight, dim)
    with torch.cuda.device_of(x):
        parts = _sums(arrange(x, None, None, None, dim, weight), turned=False, mean=False)
        return parts[0] if parts.size(0) == 1 else parts.sum(0)


def mean_parts(x: Tensor, dim: int) -> Tensor:
    """See `rotationout.kernels.reference.mean_parts`: as many parts as programs have made."""
    if not fits(x, dim):
        return reference.mean_parts(x, dim)
    with torch.cuda.device_of(x):
        return _sums(arrange(x, None, None, None, dim, None), turned=False, mean=True, whole=not sizes.FOLLOW)


_followers: dict[tuple[object, ...], Program] = {}
"""Programs of `follow_mean`, by all that decides them."""


def follow_mean(running: Tensor, parts: Tensor, momentum: float | Tensor) -> None:
    """See `rotationout.kernels.reference.follow_mean`: in one launch."""
    plain = running.device == parts.device and running.is_contiguous() and not running.requires_grad
    narrow = running.dtype != torch.float64  # the program computes in fp32
    if isinstance(momentum, Tensor) or not (sizes.FOLLOW and plain and narrow):
        reference.follow_mean(running, parts, momentum)
        return
    key = parts.shape, momentum, running.dtype, running.device
    with torch.cuda.device_of(parts):
        program = _followers.get(key)
        if program is None:
            if len(_followers) >= 1024:
                _followers.clear()
            program = _followers[key] = choose.finish(parts.size(1), parts.size(0), float(momentum))
        program(parts, running)
    torch.autograd.graph.increment_version(running)  # autograd is to know that it was written to


def fits(x: Tensor, dim: int) -> bool:
    """Whether the programs take x: it is not empty, fp32 is wide enough, and 32 bits count its rows in whole tiles."""
    return x.numel() > 0 and x.dtype != torch.float64 and x.numel() // x.size(dim) < 2**31 - 2**16


def _at_once(draw: Arranged, adjoint: bool) -> Tensor | None:
    """The result of `rotate_centred` in one launch; None if no program can do that."""
    if draw.tan is None or draw.pairs is None or draw.weight is not None:
        return None
    known = draw.plan.once
    if adjoint not in known:
        known[adjoint] = choose.once(draw.plan, adjoint)
    program = known[adjoint]
    if program is None:
        return None
    y = draw.empty()
    program(draw.x, y, draw.tan, draw.pairs)
    return y


def turned(draw: Arranged, mean: Tensor | None, shift: Tensor | None, adjoint: bool, *, centred: bool) -> Tensor:
    """The result of y = x + tan θ · A(x − m) + w·s, with −θ if ``adjoint``; m and s in parts (parts, D).

    ``centred``: what was launched last has made m or s, by this call.
    """
    plan, x = draw.plan, draw.x
    parts = 0 if mean is None else mean.size(0), 0 if shift is None else shift.size(0)
    packed = choose.packs(x)
    key = adjoint, parts, packed, centred
    program = plan.programs.get(key)
    if program is None:
        weighted = draw.weight is not None and shift is not None
        program = plan.programs[key] = choose.turn(plan, x, adjoint, parts, weighted, packed, centred)
    y = draw.empty()
    optional = draw.tan, draw.pairs, mean, shift, draw.weight, draw.seed
    program(x, y, *[x if t is None else t for t in optional])  # x: anything, it is not read
    return y


def _sums(draw: Arranged, *, turned: bool, mean: bool, whole: bool = True) -> Tensor:
    """The sum over all rows of w·x, or of tan θ · A x if ``turned``, or the mean, in one part or a few (parts, D).

    In as many parts as there are, unless it is to be ``whole``.
    """
    plan, x, weight = draw.plan, draw.x, draw.weight
    packed = choose.packs(x)
    key = turned, mean, packed
    sums = plan.sums.get(key)
    if sums is None:
        scale = plan.layout.features / x.numel() if mean and weight is None else 1.0
        sums = plan.sums[key] = choose.sums(plan, x, turned, weight is not None, scale, packed)
    result = partial = torch.empty((sums.parts, plan.layout.features), dtype=torch.float32, device=x.device)
    seed = draw.seed
    if sums.signs is not None and seed is not None:
        words = torch.empty(sums.words, dtype=torch.int64, device=x.device)
        sums.signs(seed, words)
        seed = words.view(torch.uint8)
    optional = draw.tan if turned else weight, draw.pairs, seed
    sums.program(x, partial, *[x if t is None else t for t in optional])
    if whole and sums.finish is not None:
        result = torch.empty((1, plan.layout.features), dtype=torch.float32, device=x.device)
        sums.finish(partial, result)
    return result / weight.sum().clamp(min=1) if mean and weight is not None else result
