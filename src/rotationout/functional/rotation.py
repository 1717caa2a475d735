"""`rotate` applies a given rotation (label eq6); `rotation_out` draws one first, as the layers do (label eq13)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .. import rotation as _rotation
from .. import strength
from ..kernels import autograd, plane
from ..rotation import Draw, Rotation
from . import inputs
from .centred import disturb_about

__all__ = ["apply_noise", "check_blocks", "check_gradient", "check_keep_zeros", "rotate", "rotation_out"]

GRADIENTS = ("operator", "plane")
"""What a gradient may be: the operator's own, or that of `rotationout.kernels.plane`."""


def rotate(
    x: Tensor, rotation: Rotation, mean: Tensor | None = None, *, dim: int = -1, backend: str | None = None
) -> Tensor:
    """Turn the features of ``x`` by a given rotation: y = x + tan θ · A(x − m) (label eq6, centred as in section 2.3).

    Deterministic, linear in ``x``, differentiable in ``x`` and ``mean``.

    Args:
        x: features, fp16, bf16, fp32 or fp64.
        rotation: the draw. Its leading shape must broadcast to the shape of ``x`` without ``dim``.
        mean: the point to turn about, shape (D,) or (…, D); the origin if not given.
        dim: the feature axis.
        backend: the name of the implementation to use; the fastest that can run if not given.

    >>> quarter = Rotation.from_permutation([0, 1], torch.pi / 4)
    >>> rotate(torch.tensor([3.0, 1.0]), quarter)
    tensor([ 4., -2.])
    """
    axis = inputs.check_pairs(x, dim)
    inputs.check_local(x)
    if not isinstance(rotation, Rotation):
        raise TypeError(f"rotation must be a Rotation, got {type(rotation).__name__}; build one with sample_rotation")
    leading = x.shape[:axis] + x.shape[axis + 1 :]
    if rotation.features != x.size(axis):
        raise ValueError(f"rotation turns {rotation.features} features, but x has {x.size(axis)} along dim = {dim}")
    if not inputs.broadcasts_to(rotation.leading_shape, leading):
        raise ValueError(
            f"rotation has leading shape {tuple(rotation.leading_shape)}, which does not broadcast to "
            f"{tuple(leading)}, the shape {tuple(x.shape)} of x without its feature axis dim = {dim}"
        )
    for part in (rotation.tan, rotation.index, rotation.seed):
        if part is not None:
            inputs.check_device("rotation", part, x)
    if mean is not None:
        inputs.check_mean("mean", mean, x, axis)
    return autograd.rotate(x, mean, rotation.tan, rotation.index, rotation.seed, axis, backend=backend)


def rotation_out(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    dim: int = -1,
    batch_dim: int | None = 0,
    draw: Draw | None = None,
    center: str | Tensor | None = None,
    mask: Tensor | None = None,
    block_size: int | None = None,
    coverage: float | None = None,
    keep_zeros: bool = False,
    gradient: str = "operator",
    sync: bool = False,
    generator: torch.Generator | None = None,
    backend: str | None = None,
) -> Tensor:
    """Turn the features of ``x`` by a random angle in a random direction, as strong a noise as Dropout with rate ``p``.

    The identity if ``training`` is false or ``p`` is 0.

    Args:
        x: features, fp16, bf16, fp32 or fp64.
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        training: apply the noise.
        dim: the feature axis.
        batch_dim: the axis of examples; None for a single example without a batch axis.
        draw: how to draw; `Draw()`, a pairing and an angle for every feature vector, if not given.
        center: the point to turn about: None, the origin; ``"batch"``, the mean of every feature over all other axes,
            with gradients through it; or a tensor, a mean of shape (D,). A batch mean couples the examples of a batch.
        mask: True where there are features and False at padding, broadcast to the shape of ``x`` without ``dim``.
            Padding is passed through and takes no part in a batch mean, which needs at least two rows that are not
            padding.
        block_size: turn only inside random blocks of this size along the axes after ``dim``.
        coverage: the probability with which a position lies in a block, 0.1 if not given.
        keep_zeros: leave features at zero that are zero, such as those that a ReLU has switched off; the others turn as
            without it.
        gradient: ``"operator"``, which turns all pairs of a gradient back; or ``"plane"``, which turns it back in the
            plane of x and x̃ only: a gradient of the same mean, to second order in tan θ, with less noise. It needs a
            pairing per row, or a symmetric angle per row.
        sync: take the batch mean over all data-parallel processes.
        generator: where the random numbers come from; torch's default generator if not given.
        backend: the name of the implementation to use; the fastest that can run if not given.

    >>> x = torch.tensor([[3.0, 4.0]])
    >>> turned = rotation_out(x, 0.2)
    >>> bool(((turned - x) * x).sum().abs() < 1e-5)  # what is added is perpendicular to x
    True
    """
    rate = strength.check_rate(p)
    draw = _rotation.check_draw(draw)
    check_keep_zeros(keep_zeros)
    check_gradient(gradient, draw)
    active = training and rate > 0.0
    scale = strength.convert(rate, "dropout", draw.law) if active else 0.0
    return apply_noise(
        x,
        scale,
        active,
        dim=dim,
        batch_dim=batch_dim,
        draw=draw,
        center=center,
        mask=mask,
        block_size=block_size,
        coverage=coverage,
        keep_zeros=keep_zeros,
        gradient=gradient,
        sync=sync,
        generator=generator,
        backend=backend,
    )


def apply_noise(
    x: Tensor,
    scale: float | Tensor,
    active: bool,
    *,
    dim: int,
    batch_dim: int | None,
    draw: Draw,
    center: str | Tensor | None,
    mask: Tensor | None,
    block_size: int | None,
    coverage: float | None,
    keep_zeros: bool,
    gradient: str,
    sync: bool,
    generator: torch.Generator | None,
    backend: str | None,
) -> Tensor:
    """`rotation_out` with the parameter of the law instead of p: a number, or a tensor that a schedule may change."""
    axis = inputs.check_pairs(x, dim)
    batch_axis = _rotation.leading_batch_axis(batch_dim, axis, x.ndim, draw)
    leading = x.shape[:axis] + x.shape[axis + 1 :]
    inputs.check_center(center, x, axis)
    block_size, covered = check_blocks(block_size, coverage, spatial=x.ndim - 1 - axis)
    weight = None if mask is None else inputs.mask_weight(mask, x, axis)
    # With sync an empty batch must take part too: the other processes wait for it.
    if not active or (x.numel() == 0 and not (sync and inputs.processes() > 1)):
        return x

    inputs.check_local(x)
    rotation = _rotation.sample(tuple(leading), x.size(axis), scale, draw, batch_axis, generator, x.device)
    tan = rotation.tan
    if block_size is not None:
        spatial = x.ndim - 1 - axis
        tan = tan * _rotation.sample_blocks(tuple(leading), spatial, block_size, covered, generator, x.device)
    if weight is not None:
        tan = tan * weight
    if tan is not rotation.tan:
        rotation = replace(rotation, tan=tan)
    return turn_about(
        x, rotation, axis, center, weight, keep_zeros=keep_zeros, gradient=gradient, sync=sync, backend=backend
    )


def turn_about(
    x: Tensor,
    rotation: Rotation,
    axis: int,
    center: str | Tensor | None,
    weight: Tensor | None = None,
    *,
    keep_zeros: bool,
    gradient: str,
    sync: bool,
    backend: str | None,
) -> Tensor:
    """Apply a rotation about ``center``; arguments are checked already. Rows of weight 0 are passed through.

    So are features that are zero, with ``keep_zeros``.
    """
    draws = (rotation.tan, rotation.index, rotation.seed, axis)

    def in_plane(x: Tensor, mean: Tensor | None, axis: int) -> Tensor:
        if mean is None:
            turned = plane.rotate_in_plane(x, *draws, backend=backend)
        else:
            turned = plane.rotate_in_plane(x - mean, *draws, backend=backend) + mean
        return torch.where(x != 0, turned, x) if keep_zeros else turned

    if gradient == "plane":
        mask = None if weight is None else weight != 0
        return disturb_about(x, in_plane, True, dim=axis, center=center, mask=mask, sync=sync)
    if not isinstance(center, str):
        rotated = autograd.rotate(x, center, *draws, backend=backend)
    elif sync and inputs.processes() > 1:
        mean, _ = inputs.feature_mean(x, weight, axis, sync=True)
        rotated = autograd.rotate(x, mean, *draws, backend=backend)
    else:
        inputs.check_batch(x, weight, axis, axis)
        rotated = autograd.rotate_centred(x, weight, *draws, backend=backend)
    if weight is not None:
        rotated = torch.where((weight != 0).unsqueeze(-1).movedim(-1, axis), rotated, x)  # padding stays, even NaN
    return torch.where(x != 0, rotated, x) if keep_zeros else rotated


def check_gradient(gradient: str, draw: Draw) -> str:
    """``gradient``, or an error if it is no choice, or none for rotations that are drawn so."""
    strength.check_choice("gradient", gradient, GRADIENTS)
    uncorrelated = draw.pairing_per == "row" or (draw.angle_per == "row" and draw.side == "symmetric")
    if gradient == "plane" and not uncorrelated:
        one = "side='symmetric'" if draw.angle_per == "row" else "angle_per='row' and side='symmetric'"
        raise ValueError(
            "gradient='plane' would have a wrong mean where vectors turn the same way. Set "
            f"{one}, for an angle of either sign at every position, or pairing_per='row', for a pairing at every "
            f"position; here they are pairing_per={draw.pairing_per!r}, angle_per={draw.angle_per!r} and "
            f"side={draw.side!r}"
        )
    return gradient


def check_keep_zeros(keep_zeros: bool) -> bool:
    """``keep_zeros``, or an error if it is not a bool: any other value, such as ``"no"``, might count as True."""
    if not isinstance(keep_zeros, bool):
        raise TypeError(f"keep_zeros must be True or False, got {keep_zeros!r}")
    return keep_zeros


def check_blocks(block_size: int | None, coverage: float | None, spatial: int) -> tuple[int | None, float]:
    """Check both arguments; return the size and the coverage to use, which is 1 without blocks."""
    if block_size is None:
        if coverage is not None:
            raise ValueError(f"coverage = {coverage!r} is the share that blocks cover: give block_size too")
        return None, 1.0
    size = strength.check_integer("block_size", block_size, 1, also="None")
    fraction = 0.1 if coverage is None else coverage
    if not isinstance(fraction, float):  # torch.compile knows only the type of a symbolic number
        fraction = strength.check_number("coverage", fraction)
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"coverage must be in (0, 1], got {fraction!r}; for no noise set p = 0")
    if spatial == 0:
        raise ValueError("block_size needs axes after the feature axis to lay blocks on; use RotationOut1d, 2d or 3d")
    return size, fraction
