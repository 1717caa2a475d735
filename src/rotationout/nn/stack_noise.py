"""Noises on sequences inside a network: `noise_for` makes a copy for each place, `disturb` applies it."""

from __future__ import annotations

import copy
from typing import cast

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ..functional.packed import with_rows
from ..functional.sequences import Sequences
from .rotation import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d

__all__ = ["disturb", "noise_for"]

_ON_MAPS = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.FeatureAlphaDropout,
    RotationOut1d,
    RotationOut2d,
    RotationOut3d,
)


def noise_for(place: str, noise: nn.Module | None, batch_first: bool) -> nn.Module:
    """A copy of a noise for one place of a network, or an error if it would look for features or examples elsewhere."""
    if noise is None:
        return nn.Identity()
    if not isinstance(noise, nn.Module):
        raise TypeError(f"{place} must be a module, e.g. LockedDropout(0.3), or None, got {noise!r}")
    own = copy.deepcopy(noise)
    _settle(place, own, batch_first)
    return own


def _settle(place: str, noise: nn.Module, batch_first: bool) -> None:
    name = type(noise).__name__
    if isinstance(noise, nn.Sequential):
        for part in noise:
            _settle(place, part, batch_first)
    elif _knows_sequences(noise):
        noise.batch_first = batch_first  # type: ignore[assignment]
    elif any(_knows_sequences(part) for part in noise.modules()):
        raise TypeError(
            f"{place}: {name} contains a noise on sequences; pass that noise itself, or noises in a nn.Sequential"
        )
    elif isinstance(noise, _ON_MAPS) or getattr(noise, "dim", -1) != -1:
        raise TypeError(f"{place}: {name} does not take features on the last axis, where sequences have them")
    elif isinstance(noise, RotationOut) and "example" in (noise.draw.pairing_per, noise.draw.angle_per):
        raise TypeError(f"{place}: {name} takes the first axis to be that of examples; use RotationOutSequence")


def _knows_sequences(noise: nn.Module) -> bool:
    return hasattr(noise, "batch_first")


def disturb(noise: nn.Module, x: Sequences) -> Sequences:
    """Apply a noise to sequences; a noise without ``batch_first`` is given the rows of packed ones."""
    if isinstance(noise, nn.Sequential):
        for part in noise:
            x = disturb(part, x)
        return x
    if isinstance(x, PackedSequence) and not _knows_sequences(noise):
        return with_rows(x, noise(x.data))
    return cast(Sequences, noise(x))
