"""The noises that `rotationout.noise` knows: what each one does, what its p means, and how it is built.

Noises that ``torch.nn`` or torchvision already has are used as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from . import strength
from .functional.rotation import check_blocks
from .nn import (
    CentredDropout,
    Cutout,
    GaussianDropout,
    IsotropicNoise,
    LockedDropout,
    RotationOut,
    RotationOut1d,
    RotationOut2d,
    RotationOut3d,
    RotationOutSequence,
    ShakeShake,
    Uout,
    WeightDrop,
)

__all__ = ["KINDS", "Kind", "listed"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One noise.

    Attributes:
        summary: what the noise does, who proposed it, and which layer it is.
        strength: what p means for this noise, and its λ where it has one.
        make: builds the module from p and the options.
        more: layers to which ``make`` hands options on: their keyword-only arguments are options too.
        unbiased: whether E[x̃ | x] = x; for Shake-Shake, whether E[x̃] is the mean of the two branches.
        matched: whether noises of equal p are equally strong: the noise acts on features, and E|x̃ − x|² = λ·|x − m|²
            with λ = p / (1 − p) and m the mean about which it acts, or the origin.

    >>> KINDS["dropblock"].options["block_size"].default, KINDS["dropblock"].matched, KINDS["weight-drop"].required
    (7, False, ['module'])
    """

    summary: str
    strength: str
    make: Callable[..., nn.Module]
    more: tuple[Callable[..., nn.Module], ...] = ()
    unbiased: bool = True
    matched: bool = True

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options of the noise by name: the keyword-only arguments of ``make`` and of ``more``."""
        functions = (*self.more[::-1], self.make)  # the last one wins: `make` overrides defaults
        found = [parameter for f in functions for parameter in inspect.signature(f).parameters.values()]
        return {parameter.name: parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY}

    @property
    def required(self) -> list[str]:
        """The names of the options that must be given."""
        return [name for name, option in self.options.items() if option.default is option.empty]


def listed(names: Iterable[object], word: str = "and") -> str:
    """Join names for a sentence: a, b and c."""
    *others, last = map(str, names)
    return f"{', '.join(others)} {word} {last}" if others else last


def _check_dims(dims: int, allowed: Iterable[int]) -> int:
    counts, number = tuple(allowed), strength.check_integer("dims, the number of axes after the features,", dims)
    if number not in counts:
        raise ValueError(
            f"dims, the number of axes after the features, must be {listed(counts, 'or')} here, got {number}"
        )
    return number


def _none(p: float, *, dims: int = 0) -> nn.Module:
    _check_dims(dims, range(4))
    return nn.Identity()


def _on_axis(
    layer: Callable[..., nn.Module],
    p: float,
    *,
    center: str | None = None,
    dims: int | None = None,
    dim: int | None = None,
    **mean: Any,
) -> nn.Module:
    if dim is not None and dims is not None:
        raise ValueError(f"dim = {dim!r} and dims = {dims!r} both say where the features are: give one of them")
    axis = -1 - _check_dims(0 if dims is None else dims, range(4)) if dim is None else dim
    if center is None and layer is CentredDropout:  # about the origin: torch's own
        if mean:
            raise ValueError(f"{listed(mean)} needs Dropout about a mean: give center='batch' or 'running' too")
        return nn.Dropout(p)
    return layer(p, center=center, dim=axis, **mean)


def _spatial(p: float, *, dims: int = 2) -> nn.Module:
    return (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)[_check_dims(dims, (1, 2, 3)) - 1](p)


def _rotation(p: float, *, dims: int = 0, **choices: Any) -> nn.Module:
    layer = (RotationOut, RotationOut1d, RotationOut2d, RotationOut3d)[_check_dims(dims, range(4))]
    if dims == 0:
        check_blocks(choices.pop("block_size", None), choices.pop("coverage", None), spatial=0)
    return layer(p, **choices)


def _weight_drop(variational: bool, p: float, *, module: nn.RNNBase) -> nn.Module:
    return WeightDrop(module, p, variational=variational)


def _cutout(p: float, *, dims: int = 2) -> nn.Module:
    _check_dims(dims, (2,))
    return Cutout(p)


def _dropblock(p: float, *, dims: int = 2, block_size: int = 7) -> nn.Module:
    axes, size = _check_dims(dims, (2, 3)), strength.check_integer("block_size", block_size, 1)
    if size % 2 == 0:
        raise ValueError(f"block_size must be an odd integer for torchvision's DropBlock, got {size}")
    return _torchvision(f"DropBlock{axes}d")(p, size)


def _droppath(p: float, *, dims: int = 0, mode: str = "row") -> nn.Module:
    _check_dims(dims, range(4))
    return _torchvision("StochasticDepth")(p, strength.check_choice("mode", mode, ("row", "batch")))


def _torchvision(name: str) -> Callable[..., nn.Module]:
    """A layer of torchvision, imported only when needed: the import is slow, and torchvision may be absent."""
    try:
        from torchvision import ops
    except ImportError as error:
        raise ImportError(
            f"this noise is torchvision's {name}, but torchvision cannot be imported: pip install 'rotationout[vision]'"
        ) from error
    layer: Callable[..., nn.Module] = getattr(ops, name)
    return layer


KINDS: dict[str, Kind] = {
    "none": Kind(
        summary="the identity",
        strength="λ = 0 whatever p is",
        make=_none,
        matched=False,
    ),
    "dropout": Kind(
        summary="zeroes every element with probability p (Srivastava et al. 2014): torch.nn.Dropout, or CentredDropout",
        strength="exact: λ = p / (1 − p) is the variance of every element's multiplier",
        make=partial(_on_axis, CentredDropout),
        more=(CentredDropout,),
    ),
    "gaussian": Kind(
        summary="multiplies every element by 1 + σ·N(0, 1) (Wang and Manning 2013): GaussianDropout",
        strength="exact: σ² = λ = p / (1 − p)",
        make=partial(_on_axis, GaussianDropout),
        more=(GaussianDropout,),
    ),
    "uout": Kind(
        summary="multiplies every element by 1 + Unif(−β, β) (Li et al. 2019): Uout",
        strength="exact: β² / 3 = λ = p / (1 − p)",
        make=partial(_on_axis, Uout),
        more=(Uout,),
    ),
    "centred-dropout": Kind(
        summary="Dropout of the zero-centred features, x̃ = m + Dropout(x − m) (section 3.2): CentredDropout",
        strength="exact about the mean: Var[x̃ | x] = λ·(x − m)²",
        make=partial(_on_axis, CentredDropout, center="batch"),
        more=(CentredDropout,),
    ),
    "centred-gaussian": Kind(
        summary="Gaussian dropout of the zero-centred features: GaussianDropout",
        strength="exact about the mean: Var[x̃ | x] = λ·(x − m)²",
        make=partial(_on_axis, GaussianDropout, center="batch"),
        more=(GaussianDropout,),
    ),
    "centred-uout": Kind(
        summary="Uout of the zero-centred features: Uout",
        strength="exact about the mean: Var[x̃ | x] = λ·(x − m)²",
        make=partial(_on_axis, Uout, center="batch"),
        more=(Uout,),
    ),
    "spatial": Kind(
        summary="zeroes whole channels of an example (Tompson et al. 2015): torch.nn.Dropout1d, 2d, 3d",
        strength="exact: λ = p / (1 − p) is the variance of the multiplier, the same for all positions of a channel",
        make=_spatial,
    ),
    "locked": Kind(
        summary="Dropout with one mask for all steps of a sequence (Gal and Ghahramani 2016): LockedDropout",
        strength="exact: λ = p / (1 − p) is the variance of the multiplier, the same for all steps of a sequence",
        make=LockedDropout,
    ),
    "rotation": Kind(
        summary="pairs features at random and rotates all pairs by one angle (eq6, eq13): RotationOut, 1d, 2d, 3d",
        strength="exact: E tan²θ = λ = p / (1 − p), so E|x̃ − x|² = λ·|x − m|² (Lemma 1); with blocks, only inside them",
        make=_rotation,
        more=(RotationOut, RotationOut2d),
    ),
    "rotation-sequence": Kind(
        summary="rotates all steps of a sequence in one direction, each by its own angle (eq13): RotationOutSequence",
        strength="exact: E tan²θ = λ = p / (1 − p), so E|x̃ − x|² = λ·|x − m|² (Lemma 1)",
        make=RotationOutSequence,
        more=(RotationOut,),
    ),
    "isotropic": Kind(
        summary="turns features by a random angle in any direction, without pairs (ours, to compare): IsotropicNoise",
        strength="exact: E tan²θ = λ = p / (1 − p), so E|x̃ − x|² = λ·|x − m|² (Lemma 1)",
        make=partial(_on_axis, IsotropicNoise),
        more=(IsotropicNoise,),
    ),
    "dropblock": Kind(
        summary="zeroes blocks of every channel (Ghiasi et al. 2018): torchvision.ops.DropBlock2d, 3d",
        strength=(
            "no exact λ: p is the nominal share of a map that is zeroed. The actual share is smaller, as blocks "
            "overlap, and smaller at the border than in the middle. What is left is rescaled by its share of the whole "
            "batch, so E[x̃ | x] is not x. A block larger than the map is clipped to its shortest side; "
            "torchvision refuses it if that is even"
        ),
        make=_dropblock,
        unbiased=False,
        matched=False,
    ),
    "droppath": Kind(
        summary="zeroes the whole residual branch of an example (Huang et al. 2016): torchvision.ops.StochasticDepth",
        strength="no exact match: λ = p / (1 − p) is the variance of the multiplier of a whole branch",
        make=_droppath,
        matched=False,
    ),
    "shake-shake": Kind(
        summary="mixes two residual branches, α·first + (1 − α)·second (Gastaldi 2017): ShakeShake",
        strength=(
            "no exact match: λ = p / (1 − p) is the variance of the multiplier 2α of a whole branch. At most p = 0.25, "
            "where α is uniform between 0 and 1"
        ),
        make=ShakeShake,
        matched=False,
    ),
    "cutout": Kind(
        summary="zeroes a square of every input image (DeVries and Taylor 2017): Cutout",
        strength=(
            "no λ: p is the area of the square as a share of the image, before it is clipped at the border. Nothing is "
            "rescaled, so E[x̃ | x] is not x"
        ),
        make=_cutout,
        unbiased=False,
        matched=False,
    ),
    "weight-drop": Kind(
        summary="zeroes hidden-to-hidden weights of a recurrent module (Merity et al. 2018): WeightDrop",
        strength="no exact match: λ = p / (1 − p) is the variance of every weight's multiplier",
        make=partial(_weight_drop, False),
        unbiased=False,
        matched=False,
    ),
    "variational-weight-drop": Kind(
        summary="zeroes whole rows of hidden-to-hidden weights: WeightDrop(variational=True)",
        strength="no exact match: λ = p / (1 − p) is the variance of every weight's multiplier",
        make=partial(_weight_drop, True),
        unbiased=False,
        matched=False,
    ),
}
