"""Noises on sequences, tensors and packed ones: `locked_dropout`, and the draw of a rotation for packed rows.

A packed batch gets the noise that the same batch would get padded: with one seed both forms are disturbed alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .. import pairing, strength
from ..rotation import Draw, Rotation, random_source, sample
from . import inputs
from .packed import check_packed, places, with_rows

__all__ = ["dropout_multiplier", "lock", "locked_dropout", "sample_packed", "sequence_axis"]

Sequences = TypeVar("Sequences", Tensor, PackedSequence)


def locked_dropout(
    x: Sequences,
    p: float = 0.5,
    training: bool = True,
    *,
    batch_first: bool = False,
    generator: torch.Generator | None = None,
) -> Sequences:
    """Drop a feature of a sequence at all time steps or at none (Gal and Ghahramani 2016; Merity et al. 2017).

    Its multiplier is 0 with probability p, else 1 / (1 − p): mean 1 and variance λ = p / (1 − p), those of
    `torch.nn.functional.dropout`. The identity if ``training`` is false or ``p`` is 0.

    Args:
        x: features (T, N, C), (T, C) or packed.
        p: drop probability.
        training: apply the noise.
        batch_first: tensors are (N, T, C) instead of (T, N, C).
        generator: where the random numbers come from; torch's default generator if not given.

    >>> dropped = locked_dropout(torch.ones(5, 2, 4), 0.5)
    >>> bool((dropped == dropped[0]).all())  # all time steps are alike
    True
    """
    rate = strength.check_rate(p)
    return lock(x, rate, training and rate > 0.0, batch_first=batch_first, generator=generator)


def lock(
    x: Sequences, rate: float | Tensor, active: bool, *, batch_first: bool, generator: torch.Generator | None
) -> Sequences:
    """`locked_dropout` once the rate is checked: a number, or a tensor that a schedule may change."""
    if isinstance(x, PackedSequence):
        check_packed(x)
        inputs.check_features(x.data, -1)
        if not active:
            return x
        _, sequence = places(x)
        multiplier = dropout_multiplier((int(x.batch_sizes[0]), x.data.size(1)), rate, x.data, generator)
        return with_rows(x, x.data * multiplier[sequence])
    features = inputs.check_features(x, -1)
    batch = sequence_axis(x, batch_first)
    if not active:
        return x
    shape = [n if axis in (batch, features) else 1 for axis, n in enumerate(x.shape)]
    return x * dropout_multiplier(shape, rate, x, generator)


def dropout_multiplier(
    shape: Sequence[int], rate: float | Tensor, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """A random tensor of 0 with probability ``rate``, else 1 / (1 − rate), of the dtype and device of ``like``."""
    uniform = torch.rand(shape, dtype=torch.float32, **random_source(generator, like.device))
    return ((uniform >= rate).to(uniform.dtype) / (1 - rate)).to(like.dtype)


def sequence_axis(x: Tensor, batch_first: bool) -> int | None:
    """The batch axis of ``x``; None if it is a single sequence."""
    if x.ndim == 3:
        return 0 if batch_first else 1
    if x.ndim == 2:
        return None
    layout = "(N, T, C)" if batch_first else "(T, N, C)"
    raise ValueError(f"sequences are {layout}, (T, C) or packed, got {x.ndim} dimensions, {tuple(x.shape)}")


def sample_packed(packed: PackedSequence, scale: float | Tensor, draw: Draw, *, batch_first: bool) -> Rotation:
    """Draw a rotation for the padded batch (label eq13), and select the rows that are packed."""
    time, sequence = places(packed)
    where = (sequence, time) if batch_first else (time, sequence)
    steps, sequences = packed.batch_sizes.numel(), int(packed.batch_sizes[0])
    leading, batch_axis = ((sequences, steps), 0) if batch_first else ((steps, sequences), 1)
    padded = sample(leading, packed.data.size(1), scale, draw, batch_axis, None, packed.data.device)
    # The signs of a structured pairing depend on its position in the draw; a table can be reindexed.
    table = pairing.as_table(padded.index, padded.seed, padded.features)
    return Rotation(_at(where, padded.tan), _at(where, table), padded.features)


def _at(where: tuple[Tensor, Tensor], drawn: Tensor) -> Tensor:
    """The part of a draw for each packed row; along an axis of size 1 all rows share it."""
    if drawn.shape[:2] == (1, 1):
        return drawn[0]
    return drawn[tuple(0 if size == 1 else index for size, index in zip(drawn.shape, where, strict=False))]
