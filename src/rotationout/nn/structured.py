"""Cutout and Shake-Shake as layers; `functional.structured` does the work."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.fx import Proxy

from .. import strength
from ..functional.structured import SHAKE_LIMIT, check_shake_rate, cut, mix
from .base import Noise, recorded

__all__ = ["Cutout", "ShakeShake"]


class Cutout(Noise):
    """Sets a square of every image to zero; see `rotationout.functional.cutout`.

    For images (N, C, H, W) or (C, H, W), as the first layer of a network. The identity in eval mode and at p = 0.
    Nothing is rescaled, so E[x̃ | x] is not x and there is no λ: ``p`` is not comparable with that of other noises.

    Args:
        p: the area of the square as a share of the image, before it is clipped at the border.

    >>> Cutout(0.25)  # 16 × 16 pixels of 32 × 32
    Cutout(p=0.25)
    """

    def __init__(self, p: float = 0.25) -> None:
        super().__init__(p, "dropout")

    def forward(self, input: Tensor) -> Tensor:
        """Cut ``input`` while training."""
        if isinstance(input, Proxy):
            return cast(Tensor, recorded(self, input))
        return cut(input, self._scale_for(input), self._active, generator=None) if self.training else input


class ShakeShake(Noise):
    """Mixes two residual branches at random, α·first + (1 − α)·second; see `rotationout.functional.shake_shake`.

    The output is the mean of the branches in eval mode and at p = 0. 2α = 1 + Unif(−β, β), where
    β² / 3 = λ = p / (1 − p): the multiplier 2α of a branch has the variance of Dropout's, but a whole branch shares it.

    Args:
        p: drop probability of that Dropout, at most 0.25: α uniform between 0 and 1, as in Gastaldi's paper.
        per: what gets an α of its own: every ``"example"`` (along the first axis), or the whole ``"batch"``.
        backward: the weights of the branches in the backward pass: ``"shake"``, drawn anew; ``"keep"``, those of the
            forward pass; or ``"even"``, a half each.

    >>> import torch
    >>> ShakeShake()(torch.zeros(8, 4), torch.zeros(8, 4)).shape
    torch.Size([8, 4])
    """

    def __init__(self, p: float = SHAKE_LIMIT, *, per: str = "example", backward: str = "shake") -> None:
        super().__init__(p, "uout")
        self.per = strength.check_choice("per", per, ("example", "batch"))
        self.backward_weights = strength.check_choice("backward", backward, ("shake", "keep", "even"))

    def _parameter(self, rate: float) -> float:
        return super()._parameter(check_shake_rate(rate))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Mix the outputs of two branches, at random while training."""
        if isinstance(first, Proxy):
            return cast(Tensor, recorded(self, first, second))
        active = self.training and self._active
        scale = self._scale_for(first)
        return mix(first, second, scale, active, per=self.per, backward=self.backward_weights, generator=None)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{super().extra_repr()}, per={self.per}, backward={self.backward_weights}"
