"""What the backward pass of a convolution hands to that of the BatchNorm before it: sums, taken on the way.

The gradient of a convolution's input is that of the norm's output, as long as nobody else uses that. The kernel that
computes it has all of it at hand, and can stop it where the ReLU did and take the sums over positions that the norm
needs: a pass over the maps, and a launch, less. A norm *offers* what its gradients need where autograd keeps its
output's history; a convolution that reads the output as it is *takes* that; and the norm knows by the gradient that it
is given whether the sums are of that. The offer stands until the norm's own gradients are found: a convolution that is
done again, for a checkpoint, must keep what it kept before.

To stop a gradient before the norm does changes nothing for the norm, whoever else uses its output: it would stop it
again. What autograd shows for that output has then zeros where the ReLU had.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["HANDED", "Answer", "Before", "Offer", "take"]

HANDED = True
"""Whether convolutions take sums for the gradients of the BatchNorm before them."""


class Answer:
    """A gradient that a convolution gave, and the totals over its positions: where its norm looks for them."""

    def __init__(self) -> None:
        self._gradient: Tensor | None = None
        self._version = 0
        self._totals: Tensor | None = None

    def give(self, gradient: Tensor, totals: Tensor) -> None:
        """Keep both until they are asked for."""
        self._gradient, self._version, self._totals = gradient, gradient._version, totals

    def of(self, gradient: Tensor) -> Tensor | None:
        """The totals, if they are of this very gradient; whatever was kept is let go.

        While it is kept here autograd adds nothing to it in place.
        """
        same = gradient is self._gradient and gradient._version == self._version
        totals = self._totals if same else None
        self._gradient = self._totals = None
        return totals


class Offer(NamedTuple):
    """What the gradients of a norm need: as `Before`, with where to answer, and without y, whose history this is."""

    x: Tensor
    saved: Tensor
    weight: Tensor
    bias: Tensor
    mask: str
    answer: Answer


class Before(NamedTuple):
    """The norm before a convolution.

    Args:
        x: what it was given, (N, C, H, W) in channels_last.
        y: what it gave, likewise.
        saved: mean and 1/√(var + ε), (2, C).
        weight: γ.
        bias: β.
        mask: how what its ReLU let through is found: from its ``"input"``, from its ``"output"``, or ``"none"``
            if there was no ReLU.
    """

    x: Tensor
    y: Tensor
    saved: Tensor
    weight: Tensor
    bias: Tensor
    mask: str


def take(y: Tensor) -> Offer | None:
    """What the norm that y comes from offers, if it comes straight from one."""
    return getattr(y.grad_fn, "offer", None) if HANDED else None
