"""How the backward pass of a convolution hands sums to that of the BatchNorm (with ReLU) directly before it.

The gradient of the convolution's input is that of the norm's output, if nothing else uses that output. The kernel that
computes this gradient can also mask it by the norm's ReLU, and compute the sums over positions that the norm's own
backward pass needs: this saves a launch and a pass over the maps.

It works in three steps. The norm puts an `Offer`, with the tensors that are needed, on the ``grad_fn`` of its output. A
convolution that reads this very output finds the offer with `take`; in its backward pass it gives the sums to the
offer's `Answer`. In the norm's backward pass, the answer holds only if the gradient is the very tensor that came with
the sums. The offer stays until then, as activation checkpointing may run the convolution again, which must save the
same tensors.

Masking a gradient early does not change the norm's result, even if other modules use its output, as the norm masks it
again. But the gradient that autograd shows for that output has zeros where the ReLU was zero.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["HANDED", "Answer", "Offer", "PrecedingNorm", "take"]

HANDED = True
"""Whether convolutions compute sums for the backward pass of the BatchNorm before them; a switch for tests."""


class Answer:
    """Where a convolution leaves the gradient that it computed, with the totals over its positions, for the norm."""

    def __init__(self) -> None:
        self._gradient: Tensor | None = None
        self._version = 0
        self._totals: Tensor | None = None

    def give(self, gradient: Tensor, totals: Tensor) -> None:
        """Keep the gradient and its totals."""
        self._gradient, self._version, self._totals = gradient, gradient._version, totals

    def of(self, gradient: Tensor) -> Tensor | None:
        """The totals if they are of this very gradient, else None; both are forgotten.

        As long as the gradient is referenced here, autograd does not accumulate into it in place.
        """
        same = gradient is self._gradient and gradient._version == self._version
        totals = self._totals if same else None
        self._gradient = self._totals = None
        return totals


class Offer(NamedTuple):
    """The tensors that a norm's backward pass needs: those of `PrecedingNorm` but y, and where to leave the answer."""

    x: Tensor
    saved: Tensor
    weight: Tensor
    bias: Tensor
    mask: str
    answer: Answer


class PrecedingNorm(NamedTuple):
    """The norm before a convolution, for the kernel that computes the gradient of the convolution's input.

    Args:
        x: the input of the norm, (N, C, H, W) in channels_last.
        y: its output, likewise.
        saved: mean and 1/√(var + ε) of the batch, (2, C).
        weight: γ.
        bias: β.
        mask: how to find where the ReLU was zero: from the norm's ``"input"``, from its ``"output"``, or ``"none"`` if
            there was no ReLU.
    """

    x: Tensor
    y: Tensor
    saved: Tensor
    weight: Tensor
    bias: Tensor
    mask: str


def take(y: Tensor) -> Offer | None:
    """The offer of the norm whose output y is, or None if y is not directly the output of one."""
    return getattr(y.grad_fn, "offer", None) if HANDED else None
