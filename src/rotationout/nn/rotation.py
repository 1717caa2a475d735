"""RotationOut as layers (labels eq6 and eq13): they hold strength and choices; `functional.rotation` does the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .. import strength
from ..functional.rotation import apply_noise, check_blocks, check_gradient, check_keep_zeros
from ..kernels.dispatch import BACKENDS
from ..rotation import Draw
from .arguments import ROTATION, checked
from .base import CentredNoise

__all__ = ["RotationOut", "RotationOut1d", "RotationOut2d", "RotationOut3d"]


@dataclass(frozen=True)
class _Preset:
    draw: Draw
    center: str | None


_VECTORS = {
    "default": _Preset(Draw(pairing="structured"), center=None),
    "paper": _Preset(Draw(law="uniform_angle"), center="batch"),
    "authors": _Preset(Draw(pairing_per="batch"), center="batch"),
}
_MAPS = {
    "default": _Preset(Draw(pairing_per="example", side="one"), center="batch"),
    "paper": _Preset(Draw(pairing_per="example", side="one", law="uniform_angle"), center="batch"),
    "authors": _Preset(Draw(pairing_per="batch", angle_per="example"), center="batch"),
}


class _RotationOutNd(CentredNoise):
    """The base of the RotationOut layers: how to draw, and presets of that."""

    _presets: dict[str, _Preset]
    _mixes = True
    _keeps_center = False  # the operator is linear
    block_size: int | None = None
    coverage: float | None = None
    keep_zeros = False
    gradient = "operator"

    @checked(ROTATION)
    def __init__(
        self,
        p: float = 0.5,
        *,
        preset: str = "default",
        pairing: str | None = None,
        pairing_per: str | None = None,
        angle_per: str | None = None,
        law: str | None = None,
        side: str | None = None,
        center: str | None = "default",
        num_features: int | None = None,
        momentum: float = 0.1,
        keep_zeros: bool = False,
        gradient: str = "operator",
        sync: bool = False,
        backend: str | None = None,
    ) -> None:
        chosen = self._presets[strength.check_choice("preset", preset, self._presets)]
        given = {
            "pairing": pairing,
            "pairing_per": pairing_per,
            "angle_per": angle_per,
            "law": law,
            "side": side,
        }
        draw = replace(chosen.draw, **{name: value for name, value in given.items() if value is not None})
        if center is not None:
            strength.check_choice("center", center, ("default", "batch", "running"), also="None")
        super().__init__(
            p,
            draw.law,
            center=chosen.center if center == "default" else center,
            num_features=num_features,
            momentum=momentum,
            sync=sync,
        )
        self.draw = draw
        self.keep_zeros = check_keep_zeros(keep_zeros)
        self.gradient = check_gradient(gradient, draw)
        if backend is not None:
            strength.check_choice("backend", backend, BACKENDS, also="None")
        self.backend = backend

    def _disturb(
        self, x: Tensor, center: str | Tensor | None, mask: Tensor | None, dim: int, batch_dim: int | None
    ) -> Tensor:
        return apply_noise(
            x,
            self._scale_for(x),
            self._active,
            dim=dim,
            batch_dim=batch_dim,
            draw=self.draw,
            center=center,
            mask=mask,
            block_size=self.block_size,
            coverage=self.coverage,
            keep_zeros=self.keep_zeros,
            gradient=self.gradient,
            sync=self.sync,
            generator=None,
            backend=self.backend,
        )

    def extra_repr(self) -> str:
        draw = self.draw
        parts = [
            f"p={self.p:g}",
            f"{draw.pairing} per {draw.pairing_per}",
            f"{draw.law} per {draw.angle_per}, {'one-sided' if draw.side == 'one' else 'symmetric'}",
            f"center={self.center}",
        ]
        if self.keep_zeros:
            parts.append("keep_zeros=True")
        if self.gradient != "operator":
            parts.append(f"gradient={self.gradient}")
        if self.block_size is not None:
            parts.append(f"block_size={self.block_size}, coverage={self.coverage:g}")
        return ", ".join(parts)


class RotationOut(_RotationOutNd):
    """RotationOut for features on the last axis, (…, D): vectors and tokens. A drop-in for `torch.nn.Dropout`.

    By default every feature vector has a structured pairing and a symmetric angle of its own, and turns about the
    origin (label eq6). A ``preset`` names a set of choices: ``"default"``, ``"paper"`` (as printed) or ``"authors"``
    (as in the authors' public code); the arguments below override single choices. The identity in eval mode and at
    p = 0.

    Args:
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        preset: ``"default"``, ``"paper"`` or ``"authors"``.
        pairing: how features are paired; for this and the next four see `rotationout.Draw`.
        pairing_per: what gets a pairing of its own.
        angle_per: what gets an angle of its own.
        law: the law of the angle.
        side: symmetric or one-sided angles.
        center: the point to turn about: None, the origin; ``"batch"``, the mean of every feature over all other axes,
            with gradients through it; or ``"running"``, an exponential mean of past batches, saved with the model. A
            batch mean couples the examples of a batch and, on sequences, lets a step see later ones. Do not use a
            running mean with activation checkpointing: the second forward pass would see it already updated.
        num_features: the size of the feature axis, for ``center="running"``.
        momentum: the weight of a new batch in the running mean.
        keep_zeros: leave features at zero that are zero, such as those that a ReLU has switched off. Dropout does so by
            itself; a rotation would give them a part of their partners. The other features get as much noise as
            without it, so that the noise on all of them together is weaker than p says.
        gradient: ``"operator"``, which turns all pairs of a gradient back, as the operator's own does (label eq6); or
            ``"plane"``, beyond the paper, which turns it back in the plane of x and x̃ only: less noise in the gradient
            of the same features. For backward it keeps x, or x − m in fp32 at least. It needs a pairing per row, which
            vectors have by default, or a symmetric angle per row.
        sync: take means over all data-parallel processes.
        backend: the name of the implementation to use; the fastest that can run if not given.

    >>> import torch
    >>> layer = RotationOut(p=0.2)
    >>> layer(torch.ones(8, 16)).shape
    torch.Size([8, 16])
    """

    _presets = _VECTORS

    def _axes(self, x: Tensor) -> tuple[int, int | None]:
        return x.ndim - 1, 0


class _RotationOutMaps(_RotationOutNd):
    _presets = _MAPS
    _shape: str

    @checked(ROTATION)
    def __init__(
        self, p: float = 0.5, *, block_size: int | None = None, coverage: float | None = None, **choices: Any
    ) -> None:
        super().__init__(p, **choices)
        self.block_size, covered = check_blocks(block_size, coverage, spatial=len(self._shape.split(", ")))
        self.coverage = None if block_size is None else covered

    def _axes(self, x: Tensor) -> tuple[int, int | None]:
        spatial = len(self._shape.split(", "))
        if x.ndim == spatial + 2:
            return 1, 0
        if x.ndim == spatial + 1:
            return 0, None
        batched = {3: "1d for (N, C, L)", 4: "2d for (N, C, H, W)", 5: "3d for (N, C, D, H, W)"}
        other = f"RotationOut{batched[x.ndim]}, or " if x.ndim in batched else ""
        raise ValueError(
            f"{type(self).__name__} takes (N, C, {self._shape}) or (C, {self._shape}), got {x.ndim} dimensions, "
            f"{tuple(x.shape)}; use {other}RotationOut for features on the last axis"
        )


class RotationOut1d(_RotationOutMaps):
    """RotationOut for sequences of features, (N, C, L) or (C, L); see `RotationOut2d`.

    >>> import torch
    >>> RotationOut1d(p=0.2)(torch.randn(4, 16, 100)).shape
    torch.Size([4, 16, 100])
    """

    _shape = "L"


class RotationOut2d(_RotationOutMaps):
    """RotationOut for feature maps, (N, C, H, W) or (C, H, W), memory format kept (label eq13).

    By default every example has a random pairing of its own and every position a one-sided angle: all positions turn in
    the same direction, by different angles, about the batch mean of each channel.

    Args:
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        block_size: turn only inside random blocks of this size along every axis, the combination with DropBlock of
            section 2.3; clipped where the map is smaller.
        coverage: the probability with which a position lies in a block, 0.1 if not given.
        choices: ``preset``, ``center`` and the other keyword arguments of `RotationOut`.

    >>> RotationOut2d(p=0.2, block_size=7, center="running", num_features=64)
    RotationOut2d(p=0.2, permutation per example, gaussian_tan per row, one-sided, center=running,
        block_size=7, coverage=0.1)
    """

    _shape = "H, W"


class RotationOut3d(_RotationOutMaps):
    """RotationOut for volumes of features, (N, C, D, H, W) or (C, D, H, W); see `RotationOut2d`.

    >>> import torch
    >>> RotationOut3d(p=0.2)(torch.randn(2, 16, 4, 8, 8)).shape
    torch.Size([2, 16, 4, 8, 8])
    """

    _shape = "D, H, W"
