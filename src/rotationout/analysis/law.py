"""What a noise adds to the second moments of a feature vector (Lemma 1): all that section 3 needs of it.

A noise makes x̃ = x + ε(z), where z = x − m is what it disturbs: the features themselves, or the features about a mean
m. If ε is linear in z and E[ε | x] = 0, as for all noises here, then E[ε εᵀ] is a linear function of E[z zᵀ]: one of
three, by the source of the noise (`SOURCES`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import strength
from ..nn import Cutout, LockedDropout, ShakeShake, WeightDrop
from ..nn.base import _AxisNoise
from ..nn.rotation import _RotationOutNd
from ..registry import is_stochastic_depth

__all__ = ["SOURCES", "NoiseLaw", "layer_law", "noise_law"]

SOURCES = ("itself", "others", "whole")
"""Where the noise of a feature comes from: itself, as in Dropout and all noises that multiply features one by one; the
other features, as in RotationOut (section 2.1); or the whole vector, by one multiplier, as in stochastic depth."""


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """The second moments of a noise.

    Args:
        source: where the noise of a feature comes from, one of `SOURCES`.
        lam: its strength λ, E|ε|² = λ·E|z|².
        center: the mean m about which features are disturbed: None, the origin; ``"batch"``, the mean of the batch; or
            a tensor (D,).

    >>> NoiseLaw("others", 0.25).covariance(torch.eye(3))  # Lemma 1
    tensor([[0.2500, 0.0000, 0.0000],
            [0.0000, 0.2500, 0.0000],
            [0.0000, 0.0000, 0.2500]])
    """

    source: str
    lam: float
    center: str | Tensor | None = None

    def __post_init__(self) -> None:
        strength.check_choice("source", self.source, SOURCES)
        lam = strength.check_number("lam", self.lam)
        if not 0.0 <= lam < math.inf:
            raise ValueError(f"lam must be finite and not negative, got {lam!r}")
        if isinstance(self.center, Tensor):
            if self.center.ndim != 1:
                raise ValueError(f"center must have shape (D,), got {tuple(self.center.shape)}")
        elif self.center is not None:
            strength.check_choice("center", self.center, ("batch",), also="None or a tensor with the mean")

    def covariance(self, second: Tensor) -> Tensor:
        """E[ε εᵀ] for E[z zᵀ] = ``second``, both (…, D, D). With ``second`` = z zᵀ this is Lemma 1."""
        if second.ndim < 2 or second.size(-1) != second.size(-2):
            raise ValueError(f"second must have shape (…, D, D), got {tuple(second.shape)}")
        if self.source == "whole":
            return self.lam * second
        diagonal = second.diagonal(dim1=-2, dim2=-1)
        if self.source == "itself":
            return self.lam * torch.diag_embed(diagonal)
        features = second.size(-1)
        if features < 2:
            raise ValueError("a rotation needs at least 2 features to pair, got second of shape (…, 1, 1)")
        trace = torch.diag_embed(diagonal.sum(-1, keepdim=True).expand_as(diagonal))
        return self.lam / (features - 1) * (trace - second)

    def variance(self, squares: Tensor) -> Tensor:
        """E[ε²] for E[z²] = ``squares``, both (…, D): the diagonal of `covariance`, which needs only these."""
        if self.source != "others":
            return self.lam * squares
        if squares.size(-1) < 2:
            raise ValueError("a rotation needs at least 2 features to pair, got squares of shape (…, 1)")
        return self.lam / (squares.size(-1) - 1) * (squares.sum(-1, keepdim=True) - squares)


def noise_law(noise: nn.Module | NoiseLaw) -> NoiseLaw:
    """The second moments of a noise layer in train mode, whatever mode it is in.

    At equal λ all rotations have the same moments, whatever their pairing, law and side; blocks scale them by their
    coverage. Likewise Dropout, Gaussian dropout, Uout and the Dropouts whose masks are shared by positions or time
    steps are all alike.

    Args:
        noise: a layer of the registry, or a law, which is returned as it is.

    Raises:
        TypeError: if the noise has no such law; the message says why.

    >>> import rotationout as ro
    >>> noise_law(ro.noise("rotation", 0.2, dims=2, block_size=3, coverage=0.4))
    NoiseLaw(source='others', lam=0.1, center='batch')
    """
    if isinstance(noise, NoiseLaw):
        return noise
    if isinstance(noise, _RotationOutNd) and noise.keep_zeros:
        raise TypeError(f"{_why_not(noise)}; rotationout.analysis.estimate_moments measures any module")
    return layer_law(noise)


def layer_law(noise: nn.Module) -> NoiseLaw:
    """`noise_law` of a layer; one with ``keep_zeros`` has this law on the features that are not zero."""
    if isinstance(noise, nn.Identity):
        return NoiseLaw("itself", 0.0)
    if isinstance(noise, _RotationOutNd | _AxisNoise):
        share = noise.coverage if isinstance(noise, _RotationOutNd) and noise.coverage is not None else 1.0
        center = noise.center if noise.running_mean is None else noise.running_mean.detach().clone()
        return NoiseLaw("others" if noise._mixes else "itself", _lam(noise.p) * share, center)
    if isinstance(noise, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | LockedDropout):
        return NoiseLaw("itself", _lam(noise.p))
    if is_stochastic_depth(noise) and getattr(noise, "scale_by_keep", True):
        rate = getattr(noise, "p", getattr(noise, "drop_prob", 0.0))
        return NoiseLaw("whole", _lam(rate or 0.0))  # timm's may be None
    raise TypeError(f"{_why_not(noise)}; rotationout.analysis.estimate_moments measures any module")


def _lam(p: float) -> float:
    return strength.to_lam("dropout", p)


def _why_not(noise: object) -> str:
    """Why something has no `NoiseLaw`, for an error message."""
    if not isinstance(noise, nn.Module):
        return f"noise must be a noise layer or a NoiseLaw, got {type(noise).__name__} {noise!r}"
    if isinstance(noise, Cutout):
        return "Cutout hides pixels by where they are and rescales nothing, so there is no one law of a feature vector"
    if isinstance(noise, ShakeShake):
        return "Shake-Shake mixes two vectors, so its noise is no function of the moments of one"
    if isinstance(noise, _RotationOutNd):
        return "with keep_zeros=True the noise depends on which features are zero, not only on their second moments"
    if isinstance(noise, WeightDrop):
        return "the output of a recurrent module is no linear function of the weights that are dropped"
    if is_stochastic_depth(noise):
        return "with scale_by_keep=False the mean of the output is not the input"
    if type(noise).__name__.startswith("DropBlock"):
        return "DropBlock rescales by what is left of the whole batch, for which there is no closed form"
    return f"{type(noise).__name__} is no noise whose second moments are known"
