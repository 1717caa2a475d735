"""RotationOut (label eq13) and Dropout for sequences, as layers; `functional.sequences` does the work.

Noise that is drawn anew at every time step keeps a recurrent network from remembering (Zaremba et al. 2014; Gal and
Ghahramani 2016). These layers keep the direction of their rotation, or their mask, for a whole sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, overload

from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..functional import inputs
from ..functional.packed import check_packed, with_rows
from ..functional.rotation import turn_about
from ..functional.sequences import Sequences, lock, sample_packed, sequence_axis
from .arguments import NEVER_IN_PLACE, checked
from .base import Noise, recorded
from .rotation import _MAPS, _RotationOutNd

__all__ = ["LockedDropout", "RotationOutSequence"]


_SEQUENCES = {**_MAPS, "default": replace(_MAPS["default"], center=None)}


class RotationOutSequence(_RotationOutNd):
    """RotationOut for sequences of features: (T, N, C), a single (T, C), or packed (label eq13).

    By default every sequence has a random pairing of its own, held over time, and every time step a one-sided angle: a
    sequence turns in one direction, by different angles, about the origin. A packed batch gets the noise that it would
    get padded, and only its rows are turned and averaged. The identity in eval mode and at p = 0.

    Args:
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        batch_first: tensors are (N, T, C) instead of (T, N, C).
        choices: ``preset``, ``center`` and the other keyword arguments of `RotationOut`; a row is a time step and an
            example a sequence. A batch mean lets a time step see later ones, and includes padding unless there is a
            ``mask`` or the sequences are packed.

    >>> RotationOutSequence(p=0.2, batch_first=True)
    RotationOutSequence(p=0.2, permutation per example, gaussian_tan per row, one-sided, center=None,
        batch_first=True)
    """

    _presets = _SEQUENCES

    @checked(NEVER_IN_PLACE)
    def __init__(self, p: float = 0.5, *, batch_first: bool = False, **choices: Any) -> None:
        super().__init__(p, **choices)
        self.batch_first = _check_flag(batch_first)

    @overload
    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor: ...
    @overload
    def forward(self, input: PackedSequence, mask: Tensor | None = None) -> PackedSequence: ...
    def forward(self, input: Tensor | PackedSequence, mask: Tensor | None = None) -> Tensor | PackedSequence:
        """Turn ``input`` while training; padding, where ``mask`` is False, is left alone."""
        if not isinstance(input, PackedSequence):
            return super().forward(input, mask)
        if not self.training:
            return input
        if mask is not None:
            raise ValueError("mask marks padding, of which a packed sequence has none; leave it out")
        check_packed(input)
        rows = input.data
        inputs.check_pairs(rows, 1)
        center, seen = self._center(rows, 1), self._seen(rows, None, 1)
        output = input
        if self._active:
            rotation = sample_packed(input, self._scale_for(rows), self.draw, batch_first=self.batch_first)
            turned = turn_about(
                rows,
                rotation,
                1,
                center,
                keep_zeros=self.keep_zeros,
                gradient=self.gradient,
                sync=self.sync,
                backend=self.backend,
            )
            output = with_rows(input, turned)
        self._track_mean(seen)
        return output

    def _axes(self, x: Tensor) -> tuple[int, int | None]:
        return x.ndim - 1, sequence_axis(x, self.batch_first)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{super().extra_repr()}, batch_first={self.batch_first}"


class LockedDropout(Noise):
    """Dropout with one mask for all time steps of a sequence; see `rotationout.functional.locked_dropout`.

    The variance of its multiplier is that of `torch.nn.Dropout`, λ = p / (1 − p). The identity in eval mode and at
    p = 0.

    Args:
        p: drop probability.
        batch_first: tensors are (N, T, C) instead of (T, N, C).

    >>> import torch
    >>> LockedDropout(0.5)(torch.ones(5, 2, 4)).unique(dim=0).shape  # all time steps are alike
    torch.Size([1, 2, 4])
    """

    @checked(NEVER_IN_PLACE)
    def __init__(self, p: float = 0.5, *, batch_first: bool = False) -> None:
        super().__init__(p, "dropout")
        self.batch_first = _check_flag(batch_first)

    def forward(self, input: Sequences) -> Sequences:
        """Drop features of ``input``, (T, N, C), (T, C) or packed, while training."""
        if isinstance(input, Proxy):
            return cast(Sequences, recorded(self, input))
        if not self.training:
            return input
        scale = self._scale_for(input.data if isinstance(input, PackedSequence) else input)
        return lock(input, scale, self._active, batch_first=self.batch_first, generator=None)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{super().extra_repr()}, batch_first={self.batch_first}"


def _check_flag(batch_first: bool) -> bool:
    if not isinstance(batch_first, bool):
        raise TypeError(f"batch_first must be True for (N, T, C) or False for (T, N, C), got {batch_first!r}")
    return batch_first
