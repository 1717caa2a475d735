"""Cutout, which hides a square of every image, and Shake-Shake, which mixes two residual branches at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import strength
from ..rotation import random_source
from .inputs import check_dense

__all__ = ["SHAKE_LIMIT", "check_shake_rate", "cut", "cutout", "mix", "shake_shake"]

SHAKE_LIMIT = 0.25
"""The largest p of Shake-Shake: λ = 1/3, the variance of 2α for α uniform between 0 and 1."""


def cutout(x: Tensor, p: float = 0.25, training: bool = True, *, generator: torch.Generator | None = None) -> Tensor:
    """Set a square of every image to zero (DeVries and Taylor 2017).

    Its centre is a uniformly random pixel of the image and what lies beyond the border is lost, so less than the share
    ``p`` of the image is hidden on average. As in the paper nothing is rescaled: E[x̃ | x] is not x, and there is no λ.
    The identity if ``training`` is false or ``p`` is 0.

    Args:
        x: images, (N, C, H, W) or (C, H, W).
        p: the area of the square as a share of the image: its sides are √p·H and √p·W, rounded to pixels. The paper's
            squares of 16 pixels in images of 32 are p = 0.25.
        training: apply the noise.
        generator: where the random numbers come from; torch's default generator if not given.

    >>> image = torch.ones(1, 1, 4, 4)
    >>> hidden = (cutout(image, 0.25) == 0).sum().item()  # 2 × 2 pixels, fewer at the border
    >>> hidden in (1, 2, 4)
    True
    """
    rate = strength.check_rate(p)
    return cut(x, rate, training and rate > 0.0, generator=generator)


def cut(x: Tensor, share: float | Tensor, active: bool, *, generator: torch.Generator | None) -> Tensor:
    """`cutout` once the share is checked: a number, or a tensor that a schedule may change."""
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"Cutout takes images, (N, C, H, W) or (C, H, W), got {got}")
    check_dense(x)
    if not active or x.numel() == 0:
        return x
    area = share if isinstance(share, Tensor) else torch.full((), share, dtype=torch.float32, device=x.device)
    root = area.sqrt()
    source = random_source(generator, x.device)

    def inside(size: int) -> Tensor:
        """Which of the ``size`` pixels along an axis the square of an example takes, (…, 1, 1, size)."""
        side = (root * size).round()
        centre = torch.randint(size, (*x.shape[:-3], 1, 1, 1), **source)
        offset = torch.arange(size, device=x.device) - centre + side.div(2, rounding_mode="floor")
        return (offset >= 0) & (offset < side)

    hidden = inside(x.size(-2)).mT & inside(x.size(-1))
    return torch.where(hidden, x.new_zeros(()), x)  # masked_fill would lose the memory format


def shake_shake(
    first: Tensor,
    second: Tensor,
    p: float = SHAKE_LIMIT,
    training: bool = True,
    *,
    per: str = "example",
    backward: str = "shake",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mix two residual branches at random: α·first + (1 − α)·second (Gastaldi 2017).

    2α = 1 + Unif(−β, β), β² / 3 = λ = p / (1 − p). So E[x̃] is the mean of the branches, and
    Var[x̃] = λ·((first − second) / 2)². The mean itself is returned if ``training`` is false or ``p`` is 0. The largest
    p is 0.25, Gastaldi's α uniform between 0 and 1.

    Args:
        first: the output of one branch.
        second: the output of the other one, of the same shape.
        p: drop probability of the Dropout whose multiplier has the variance of 2α, at most 0.25.
        training: apply the noise.
        per: what gets an α of its own: every ``"example"`` (along the first axis), or the whole ``"batch"``.
        backward: the weights of the branches in the backward pass: ``"shake"``, drawn anew; ``"keep"``, those of the
            forward pass, the true gradient; or ``"even"``, a half each.
        generator: where the random numbers come from; torch's default generator if not given.

    >>> mixed = shake_shake(torch.zeros(100, 8), torch.ones(100, 8))
    >>> bool((mixed >= 0).all() and (mixed <= 1).all()), shake_shake(torch.zeros(2), torch.ones(2), training=False)
    (True, tensor([0.5000, 0.5000]))
    """
    strength.check_choice("per", per, ("example", "batch"))
    strength.check_choice("backward", backward, ("shake", "keep", "even"))
    reach = strength.convert(check_shake_rate(p), "dropout", "uout")
    return mix(first, second, reach, training and reach > 0.0, per=per, backward=backward, generator=generator)


def check_shake_rate(p: float) -> float:
    """``p`` as a float, or a ValueError if it is more than `SHAKE_LIMIT`."""
    rate = strength.check_rate(p)
    if rate > SHAKE_LIMIT:
        raise ValueError(
            f"p must be at most {SHAKE_LIMIT} for Shake-Shake, got {rate!r}: at {SHAKE_LIMIT} (λ = 1/3) α is uniform "
            "between 0 and 1, and above it a branch could have a negative weight"
        )
    return rate


def mix(
    first: Tensor,
    second: Tensor,
    reach: float | Tensor,
    active: bool,
    *,
    per: str,
    backward: str,
    generator: torch.Generator | None,
) -> Tensor:
    """`shake_shake` once the strength is β: a number, or a tensor that a schedule may change."""
    for name, branch in (("first", first), ("second", second)):
        if not isinstance(branch, Tensor) or not branch.is_floating_point() or branch.ndim == 0:
            got = f"{branch.dtype} {tuple(branch.shape)}" if isinstance(branch, Tensor) else type(branch).__name__
            raise TypeError(f"{name} must be the output of a branch, a floating-point tensor (N, …), got {got}")
    if first.shape != second.shape or first.dtype != second.dtype:
        raise ValueError(
            "the two branches must have the same shape and dtype, "
            f"got {first.dtype} {tuple(first.shape)} and {second.dtype} {tuple(second.shape)}"
        )
    if not active:
        return first * 0.5 + second * 0.5
    size = (first.size(0) if per == "example" else 1, *(1,) * (first.ndim - 1))
    source = random_source(generator, first.device)

    def weight() -> Tensor:
        return 0.5 + reach * (torch.rand(size, dtype=torch.float32, **source) - 0.5)

    forward = weight()
    if backward == "keep":
        return _weighted(first, second, forward)
    returned = weight() if backward == "shake" else torch.full_like(forward, 0.5)
    return _Mix.apply(first, second, forward, returned)  # type: ignore[no-any-return, no-untyped-call]


def _weighted(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """weight·first + (1 − weight)·second, in fp32 at least and rounded once."""
    return (first * weight + second * (1 - weight)).to(first.dtype)


class _Mix(Function):
    """A mixture whose backward pass has weights of its own; that is no derivative, so there is no forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first: Tensor, second: Tensor, weight: Tensor, returned: Tensor) -> Tensor:
        return _weighted(first, second, weight).clone()  # torch.compile gives the gradient to another copy else

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (returned,) = grads, ctx.saved_tensors
        return (grad * returned).to(grad.dtype), (grad * (1 - returned)).to(grad.dtype), None, None
