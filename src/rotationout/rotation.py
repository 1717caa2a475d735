"""Random rotations: `Draw` says how to draw, `sample_rotation` draws, and `Rotation` is one draw of the operator.

A rotation pairs the features of a vector and turns every pair by one angle (labels eq4 and eq6):

    R = M(θ, P) / cos θ = I + tan θ · A,        (u, v) → (u + v·tan θ, v − u·tan θ).

Rotations are drawn here only. Torch's own generators give all random numbers, or on a GPU the seed of those that a
kernel makes, so seeding, activation checkpointing, CUDA graphs, vmap and torch.compile behave as they do for
``torch.rand``. A draw does not depend on the dtype of the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from . import pairing, strength
from .kernels import dispatch
from .kernels.angles import tan_of_uniform

__all__ = ["Draw", "Rotation", "sample_rotation"]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How to draw a rotation: how features are paired, how far they turn, and what shares a pairing or an angle.

    Args:
        pairing: ``"permutation"``, a uniformly random permutation (the paper's), or ``"structured"``, one of D − 1
            pairings that together hold every pair once, with random signs. Mean and covariance (Lemma 1) are the same;
            structured draws are cheaper to make and to apply, but there are only (D − 1)·2^(D/2) of them, fewer than
            Dropout's 2^D masks: the paper's remark on diversity holds for permutations alone.
        pairing_per: what gets a pairing of its own: every ``"row"`` (feature vector), every ``"example"``, or the whole
            ``"batch"``. On maps a row is a position.
        angle_per: what gets an angle of its own, likewise.
        law: the law of the angle, one of `rotationout.strength.LAWS`.
        side: ``"symmetric"`` angles, or ``"one"``, only positive ones. The order inside a pair is random, so the mean
            and Lemma 1 hold for both; but positions that share a pairing turn in the same direction only with
            one-sided angles (label eq13).

    >>> Draw(pairing="structured", law="uniform_angle")
    Draw(pairing='structured', pairing_per='row', angle_per='row', law='uniform_angle', side='symmetric')
    """

    pairing: str = "permutation"
    pairing_per: str = "row"
    angle_per: str = "row"
    law: str = "gaussian_tan"
    side: str = "symmetric"

    def __post_init__(self) -> None:
        for field in fields(self):
            strength.check_choice(field.name, getattr(self, field.name), _CHOICES[field.name])


_SHARING = ("row", "example", "batch")
_CHOICES = {
    "pairing": ("permutation", "structured"),
    "pairing_per": _SHARING,
    "angle_per": _SHARING,
    "law": strength.LAWS,
    "side": ("symmetric", "one"),
}


@dataclass(frozen=True, eq=False)
class Rotation:
    """One draw: which features are paired, the sign inside each pair, and the tangent of the angle.

    The leading axes of ``tan`` (…) and of `partner` and `sign` (…, D) broadcast against those of the features with the
    feature axis moved last: (N, H, W) for a map (N, C, H, W). Build a rotation with `from_permutation` or
    `sample_rotation`, and apply it with `rotationout.functional.rotate`, as often as you like.

    Attributes:
        tan: tan θ.
        index: the pairing in its compact form, see `rotationout.pairing`.
        features: D.
        seed: the seed of the signs of a structured pairing; None for a table.

    >>> quarter = Rotation.from_permutation([0, 1], math.pi / 4)
    >>> quarter.matrix()
    tensor([[ 1.,  1.],
            [-1.,  1.]])
    >>> quarter.matrix(scaled=False)  # a rotation by 45 degrees
    tensor([[ 0.7071,  0.7071],
            [-0.7071,  0.7071]])
    """

    tan: Tensor
    index: Tensor
    features: int
    seed: Tensor | None = None

    @classmethod
    def from_permutation(cls, permutation: Tensor | Sequence[int], theta: Tensor | float) -> Rotation:
        """The rotation R = M(θ, P) / cos θ of label eq4, with P counted from 0.

        Args:
            permutation: P, shape (…, D): feature P[l] is paired with P[l + D // 2]. For odd D the last one stays idle.
            theta: the angle, |θ| < π/2, shape (…); a tensor for which autograd tracks gradients is allowed.

        >>> Rotation.from_permutation([2, 1, 0, 3], math.pi / 4).partner.tolist()
        [2, 3, 0, 1]
        """
        try:
            order = torch.as_tensor(permutation)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"permutation must hold integers along its last axis, got {permutation!r}") from error
        if order.ndim == 0 or order.is_floating_point() or order.is_complex() or order.dtype == torch.bool:
            raise TypeError(f"permutation must hold integers along its last axis, got {permutation!r}")
        order = order.long()
        features = order.size(-1)
        if features < 2:
            raise ValueError(f"permutation must have at least 2 features, got {features}")
        if not torch.equal(order.sort(-1).values, torch.arange(features, device=order.device).expand_as(order)):
            raise ValueError(
                f"permutation must hold each of 0 … {features - 1} once (counted from 0), got {permutation!r}"
            )
        try:
            angle = torch.as_tensor(theta, device=order.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"theta must be an angle in radians, or a tensor of them, got {theta!r}") from error
        if angle.is_complex():
            raise TypeError(f"theta must be an angle in radians, or a tensor of them, got {theta!r}")
        angle = angle if angle.is_floating_point() else angle.to(torch.get_default_dtype())
        if not bool((angle.abs() < math.pi / 2).all()):
            raise ValueError(f"theta must lie strictly between −π/2 and π/2, where tan θ is finite, got {theta!r}")
        if not all(a == b or 1 in (a, b) for a, b in zip(angle.shape[::-1], order.shape[-2::-1], strict=False)):
            raise ValueError(
                f"theta of shape {tuple(angle.shape)} does not broadcast with the leading shape "
                f"{tuple(order.shape[:-1])} of permutation"
            )
        return cls(tan=angle.tan(), index=pairing.from_permutation(order), features=features)

    @property
    def theta(self) -> Tensor:
        """θ, in radians."""
        return self.tan.atan()

    @property
    def partner(self) -> Tensor:
        """The partner of every feature, (…, D); an idle feature (odd D) is its own."""
        return pairing.partner_and_sign(self.index, self.seed, self.features)[0]

    @property
    def sign(self) -> Tensor:
        """+1 for the first feature of a pair, −1 for the second, 0 for an idle one, (…, D)."""
        return pairing.partner_and_sign(self.index, self.seed, self.features)[1]

    @property
    def leading_shape(self) -> torch.Size:
        """The shape of the draw, which must broadcast to that of the features without the feature axis."""
        index_shape = self.index.shape if self.seed is not None else self.index.shape[:-1]
        return torch.Size(torch.broadcast_shapes(self.tan.shape, index_shape))

    def matrix(self, *, scaled: bool = True) -> Tensor:
        """R = I + tan θ · A, which `rotate` applies (label eq6); with ``scaled=False`` M = R · cos θ (label eq4)."""
        partner, sign = pairing.partner_and_sign(self.index, self.seed, self.features)
        identity = torch.eye(self.features, dtype=self.tan.dtype, device=self.tan.device)
        skew = identity[partner] * sign.unsqueeze(-1)
        matrix = identity + self.tan[..., None, None] * skew
        return matrix if scaled else matrix * self.theta.cos()[..., None, None]

    def inverse(self) -> Rotation:
        """The turn back by −θ. Applying both scales each vector by 1 / cos²θ (even D)."""
        return Rotation(-self.tan, self.index, self.features, self.seed)

    def to(self, device: torch.device | str) -> Rotation:
        """The same draw on another device."""
        if not isinstance(device, torch.device | str | int):
            raise TypeError(
                f"device must be a torch.device or its name, e.g. 'cuda', got {type(device).__name__} {device!r}; "
                "a rotation has no dtype to convert: it applies to features of every dtype"
            )
        seed = None if self.seed is None else self.seed.to(device)
        return Rotation(self.tan.to(device), self.index.to(device), self.features, seed)

    def __repr__(self) -> str:
        kind = "table" if self.seed is None else "structured"
        return f"Rotation(features={self.features}, leading_shape={tuple(self.leading_shape)}, pairing={kind!r})"


def sample_rotation(
    shape: Sequence[int],
    p: float = 0.5,
    *,
    dim: int = -1,
    batch_dim: int | None = 0,
    draw: Draw | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Rotation:
    """Draw a rotation for features of the given shape, as strong as Dropout with drop probability ``p``.

    Args:
        shape: the shape of the tensor to be rotated.
        p: drop probability of the equally strong Dropout, E tan²θ = p / (1 − p).
        dim: the feature axis.
        batch_dim: the axis of examples; None for a single example without a batch axis.
        draw: how to draw; `Draw()` if not given.
        generator: where the random numbers come from; torch's default generator of ``device`` if not given.
        device: where the draw is made; the generator's device if not given.

    >>> sample_rotation((32, 64, 8, 8), 0.2, dim=1, draw=Draw(pairing_per="example")).leading_shape
    torch.Size([32, 8, 8])
    """
    draw = check_draw(draw)
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"shape must be that of a tensor, e.g. (32, 64), got {type(shape).__name__} {shape!r}")
    size = tuple(strength.check_integer(f"shape[{axis}]", n, 0) for axis, n in enumerate(shape))
    feature_axis = resolve_axis("dim", dim, len(size))
    check_pairs(size[feature_axis], dim)
    batch_axis = leading_batch_axis(batch_dim, feature_axis, len(size), draw)
    leading = size[:feature_axis] + size[feature_axis + 1 :]
    scale = strength.convert(p, "dropout", draw.law)
    check_generator(generator)
    where = torch.device(device) if device is not None else generator.device if generator is not None else None
    return sample(leading, size[feature_axis], scale, draw, batch_axis, generator, where)


def resolve_axis(name: str, axis: int, ndim: int) -> int:
    """``axis`` counted from the front, or an IndexError that names the argument."""
    axis = strength.check_integer(name, axis)
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name} = {axis} does not exist in a tensor with {ndim} dimensions")
    return axis % ndim


def check_draw(draw: Draw | None) -> Draw:
    """``draw``, or the default one if it is None."""
    if draw is not None and not isinstance(draw, Draw):
        raise TypeError(f"draw must be a Draw, got {type(draw).__name__} {draw!r}; e.g. Draw(pairing='structured')")
    return Draw() if draw is None else draw


def leading_batch_axis(batch_dim: int | None, feature_axis: int, ndim: int, draw: Draw) -> int | None:
    """``batch_dim`` as an axis of the shape without the feature axis; None if nothing is drawn per example."""
    if batch_dim is None or "example" not in (draw.pairing_per, draw.angle_per):
        return None
    axis = resolve_axis("batch_dim", batch_dim, ndim)
    if ndim == 1:
        return None
    if axis == feature_axis:
        raise ValueError(f"batch_dim = {batch_dim} is the feature axis; for a single example pass batch_dim=None")
    return axis - (axis > feature_axis)


def check_pairs(features: int, dim: int) -> None:
    """Raise a ValueError if there are fewer than 2 features."""
    if features < 2:
        raise ValueError(
            f"the feature axis dim = {dim} has size {features}, but a rotation needs at least 2 features; "
            "choose the axis that holds the features"
        )


def sample(
    leading: tuple[int, ...],
    features: int,
    scale: float | Tensor,
    draw: Draw,
    batch_axis: int | None,
    generator: torch.Generator | None,
    device: torch.device | None,
) -> Rotation:
    """`sample_rotation` after the checks, for a law with parameter ``scale``: a number, or a tensor on the device."""
    source = random_source(generator, device)
    pairs = shape_of_draws(leading, draw.pairing_per, batch_axis)
    angles = shape_of_draws(leading, draw.angle_per, batch_axis)
    structured, one_sided = draw.pairing == "structured", draw.side == "one"
    kernels = dispatch.sampler(device, features, structured)
    if kernels is not None:
        tan, index, seed = kernels.sample(
            pairs, angles, features, scale, structured=structured, law=draw.law, one_sided=one_sided, **source
        )
        return Rotation(tan, index, features, seed)
    seed = None
    if structured:
        index = torch.randint(pairing.count_structured(features), pairs, **source)
        index = index.to(pairing.index_dtype(features))
        seed = torch.randint(2**63 - 1, (), **source)
    else:
        # Sorting 63-bit keys: fp32 ones would tie often enough to favour the original order.
        keys = torch.randint(2**63 - 1, (*pairs, features), **source)
        index = pairing.from_permutation(keys.argsort(-1))
    tan = _sample_tan(angles, scale, draw, source)
    if features % 2:  # one feature is idle in every draw: the others make up for it
        tan = tan * math.sqrt(features / (features - 1))
    return Rotation(tan, index, features, seed)


def shape_of_draws(leading: tuple[int, ...], per: str, batch_axis: int | None) -> tuple[int, ...]:
    """The axes before the features, with size 1 where rows share a draw: each row, example or batch gets its own.

    >>> [shape_of_draws((3, 4, 5), per, batch_axis=0) for per in ("row", "example", "batch")]
    [(3, 4, 5), (3, 1, 1), (1, 1, 1)]
    """
    if per == "row":
        return leading
    return tuple(n if per == "example" and axis == batch_axis else 1 for axis, n in enumerate(leading))


def random_source(generator: torch.Generator | None, device: torch.device | None) -> dict[str, Any]:
    """Keyword arguments for torch's samplers. ``generator=None`` is left out: with it they refuse symbolic sizes."""
    check_generator(generator)
    return {"device": device} if generator is None else {"device": device, "generator": generator}


def check_generator(generator: torch.Generator | None) -> None:
    """Raise a TypeError unless ``generator`` is a torch.Generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            "generator must be a torch.Generator, e.g. torch.Generator().manual_seed(0), "
            f"got {type(generator).__name__} {generator!r}"
        )


def _sample_tan(shape: tuple[int, ...], scale: float | Tensor, draw: Draw, source: dict[str, Any]) -> Tensor:
    one_sided = draw.side == "one"
    if draw.law == "gaussian_tan":
        tan = torch.randn(shape, dtype=torch.float32, **source) * scale
        return tan.abs() if one_sided else tan
    uniform = torch.rand(shape, dtype=torch.float32, **source)
    if not one_sided:
        uniform = 2 * uniform - 1
    return tan_of_uniform(uniform, draw.law, scale)


def sample_blocks(
    leading: tuple[int, ...],
    spatial: int,
    block_size: int,
    coverage: float,
    generator: torch.Generator | None,
    device: torch.device | None,
) -> Tensor:
    """A mask of random blocks on the last ``spatial`` axes of ``leading``: True with probability ``coverage``.

    For the combination with DropBlock of section 2.3. A block is laid from each point of a grid with probability γ. The
    grid reaches b − 1 beyond the map, so every position lies in b^d possible blocks (b clipped to the map on each axis)
    and is covered by at least one of them with probability c = 1 − (1 − γ)^(b^d). That is exact at the border too,
    unlike DropBlock's own approximation (Ghiasi et al. 2018).
    """
    sizes = leading[len(leading) - spatial :]
    blocks = [min(block_size, n) for n in sizes]
    gamma = -math.expm1(math.log1p(-coverage) / math.prod(blocks)) if coverage < 1 else 1.0
    grid = [n + b - 1 for n, b in zip(sizes, blocks, strict=True)]
    examples = leading[: len(leading) - spatial]
    seeds = torch.rand((*examples, *grid), dtype=torch.float32, **random_source(generator, device)) < gamma
    covered = seeds
    for axis, block in enumerate(blocks, start=len(examples)):
        covered = covered.unfold(axis, block, 1).any(-1)
    return covered
