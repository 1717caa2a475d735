"""Closed-form moments of x̃: given the features (Lemma 1), and over features of known moments (labels eq14, eq145).

All are in fp64. `rotationout.analysis.estimate_moments` measures the same by Monte Carlo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import strength
from ..functional.inputs import check_batch, check_features
from ..functional.sequences import sequence_axis
from ..nn import Cutout, LockedDropout, ShakeShake
from ..nn.base import CentredNoise
from ..nn.rotation import _RotationOutNd
from ..rotation import check_pairs, resolve_axis
from .law import NoiseLaw, layer_law, noise_law
from .sharing import cutout_chances, mask_of_element, tangent_products

__all__ = [
    "Moments",
    "check_covariance",
    "check_moments",
    "check_single",
    "conditional_moments",
    "correlation_of",
    "relu_moments",
    "total_moments",
]


@dataclass(frozen=True, eq=False)
class Moments:
    """A mean and a covariance.

    >>> Moments(torch.zeros(2), torch.tensor([[4.0, 1.0], [1.0, 1.0]])).correlation
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def correlation(self) -> Tensor:
        """The covariance of the features scaled to variance 1; NaN for one that does not vary."""
        return correlation_of(self.covariance)


def correlation_of(covariance: Tensor) -> Tensor:
    """The correlation of features with a covariance (…, D, D); NaN for one that does not vary."""
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return covariance / (deviation.unsqueeze(-1) * deviation.unsqueeze(-2))


def conditional_moments(
    noise: nn.Module, x: Tensor | tuple[Tensor, Tensor], *, dim: int | None = None, joint: bool = False
) -> Moments:
    """E[x̃ | x] and Var[x̃ | x] of a noise layer in train mode (Lemma 1), whatever mode it is in.

    The layer is not called and does not change. A batch mean is that of ``x``, and a running mean the one that the
    layer has now.

    Args:
        noise: a layer of the registry, except DropBlock and weight drop, which have no closed form.
        x: the input of the layer, a tensor; for Shake-Shake the two branches.
        dim: the feature axis, for noises that have none of their own: nn.Dropout, stochastic depth, Shake-Shake; the
            last one if not given.
        joint: return the covariance of all n elements of ``x``, in the order of ``x.flatten()``, instead of one for
            every feature vector. Only that shows which elements share a mask, a pairing or an angle. It takes n²
            numbers.

    Returns:
        The mean, of the shape of ``x``, and the covariance: (…, D, D), where … is the shape of ``x`` without its
        feature axis, or (n, n) with ``joint``.

    >>> import rotationout as ro
    >>> conditional_moments(ro.RotationOut(0.5), torch.tensor([1.0, 0.0, 2.0])).covariance
    tensor([[ 2.0000,  0.0000, -1.0000],
            [ 0.0000,  2.5000,  0.0000],
            [-1.0000,  0.0000,  0.5000]], dtype=torch.float64)
    """
    if isinstance(noise, ShakeShake):
        first, second = _check_branches(x)
        mean, disturbed, law = (first + second) / 2, (first - second) / 2, NoiseLaw("whole", noise.p / (1 - noise.p))
    elif not isinstance(x, Tensor):
        raise TypeError(f"x must be a Tensor, got {type(x).__name__}; only Shake-Shake takes a pair of them")
    elif isinstance(noise, Cutout):
        return _cutout(noise, x.detach().double(), joint)
    else:
        mean, disturbed, law = x, x, layer_law(noise)
    axis, batch_dim = _axes(noise, mean, dim)
    mean, disturbed = mean.detach().double(), disturbed.detach().double()
    if isinstance(law.center, Tensor):
        if law.center.numel() != mean.size(axis):
            raise ValueError(
                f"the noise is about a mean of {law.center.numel()} features, but x has {mean.size(axis)} on axis "
                f"{axis}: {tuple(mean.shape)}"
            )
        disturbed = disturbed - law.center.double().view(-1, *[1] * (mean.ndim - 1 - axis))
    elif law.center == "batch":
        check_batch(mean, None, axis, axis)
        disturbed = disturbed - disturbed.mean([a for a in range(mean.ndim) if a != axis], keepdim=True)
    keep_zeros = isinstance(noise, _RotationOutNd) and noise.keep_zeros
    if joint and isinstance(noise, CentredNoise) and noise._mixes:
        products = tangent_products(noise, mean.shape, axis, batch_dim).to(mean.device)
        together = _turned_together(disturbed, products, axis)
        return Moments(mean, _of_active(together, mean.flatten()) if keep_zeros else together)
    if joint:
        mask, flat = mask_of_element(noise, mean).flatten(), disturbed.flatten()
        return Moments(mean, law.lam * torch.outer(flat, flat) * (mask[:, None] == mask))
    rows = disturbed.movedim(axis, -1)
    covariance = law.covariance(rows.unsqueeze(-1) * rows.unsqueeze(-2))
    if keep_zeros:
        covariance = _of_active(covariance, mean.movedim(axis, -1))
    return Moments(mean, covariance)


def total_moments(noise: nn.Module | NoiseLaw, mean: Tensor, covariance: Tensor, *, rows: int | None = None) -> Moments:
    """E[x̃] and Var[x̃] of feature vectors with mean c and covariance Σ (labels eq14 and eq145).

    The mean stays c, and Var[x̃] = Σ + E[Var[x̃ | x]], where the second term follows from E[z zᵀ] of z = x − m. That is
    Σ + c cᵀ for noise about the origin, Σ·(n − 1) / n about the mean of n independent rows, and
    Σ + (c − m)(c − m)ᵀ about any other point m.

    Args:
        noise: a noise layer or its law.
        mean: c, (…, D).
        covariance: Σ, (…, D, D).
        rows: n, the number of rows in a batch mean, for ``center="batch"``; if not given, the mean is c itself.

    >>> import rotationout as ro
    >>> c, sigma = torch.ones(4), torch.eye(4)
    >>> total_moments(ro.noise("dropout", 0.2), c, sigma).variance  # 1 + λ·(1 + c²)
    tensor([1.5000, 1.5000, 1.5000, 1.5000], dtype=torch.float64)
    >>> total_moments(ro.noise("centred-dropout", 0.2), c, sigma).variance
    tensor([1.2500, 1.2500, 1.2500, 1.2500], dtype=torch.float64)
    """
    law = noise_law(noise)
    c, sigma = check_moments(mean, covariance)
    if rows is not None:
        rows = strength.check_integer("rows, over which a batch mean is taken,", rows, 2, also="None")
    if law.center == "batch":
        return Moments(c, sigma + law.covariance(sigma if rows is None else sigma * ((rows - 1) / rows)))
    off = c
    if isinstance(law.center, Tensor):
        if law.center.numel() != c.size(-1):
            raise ValueError(f"the noise is about a mean of {law.center.numel()} features, but mean has {c.size(-1)}")
        off = c - law.center.to(c)
    return Moments(c, sigma + law.covariance(sigma + off.unsqueeze(-1) * off.unsqueeze(-2)))


def relu_moments(covariance: Tensor) -> Moments:
    """The moments of ReLU(g) for a Gaussian g with mean zero and this covariance, (…, D, D): features with c > 0.

    E[ReLU(u)·ReLU(v)] = (√(1 − ρ²) + ρ·(π − arccos ρ)) / 2π for deviations 1 (Cho and Saul 2009).

    >>> relu_moments(torch.eye(1)).mean  # 1 / √2π
    tensor([0.3989], dtype=torch.float64)
    """
    _, sigma = check_covariance(covariance)
    deviation = sigma.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = deviation.unsqueeze(-1) * deviation.unsqueeze(-2)
    rho = (sigma / torch.where(scale == 0, 1.0, scale)).clamp(-1, 1)
    products = scale * ((1 - rho**2).sqrt() + rho * (math.pi - rho.arccos())) / (2 * math.pi)
    mean = deviation / math.sqrt(2 * math.pi)
    return Moments(mean, products - mean.unsqueeze(-1) * mean.unsqueeze(-2))


def check_moments(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Check that a mean (…, D) and a covariance (…, D, D) fit each other; return both in fp64."""
    for name, value in (("covariance", covariance), ("mean", mean)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")
    features = mean.shape[-1:]
    if mean.ndim == 0 or covariance.shape[-2:] != (*features, *features):
        raise ValueError(
            f"mean must have shape (…, D) and covariance (…, D, D), got {tuple(mean.shape)} and "
            f"{tuple(covariance.shape)}"
        )
    return mean.detach().double(), covariance.detach().double()


def check_covariance(covariance: Tensor, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`check_moments` of a covariance and a mean, which is zero if not given."""
    zero = covariance.new_zeros(covariance.shape[:-1]) if isinstance(covariance, Tensor) else torch.zeros(())
    return check_moments(zero if mean is None else mean, covariance)


def check_single(mean: Tensor, covariance: Tensor) -> None:
    """Raise a ValueError for several means or covariances, where one number is made of them."""
    if mean.ndim > 1 or covariance.ndim > 2:
        raise ValueError(
            f"mean must have shape (D,) and covariance (D, D) here, got {tuple(mean.shape)} and "
            f"{tuple(covariance.shape)}"
        )


def _check_branches(x: object) -> tuple[Tensor, Tensor]:
    pair = x if isinstance(x, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(b, Tensor) for b in pair) or pair[0].shape != pair[1].shape:
        raise TypeError("x must be the two branches that Shake-Shake mixes, a pair of tensors of one shape")
    return pair[0], pair[1]


def _axes(noise: nn.Module, x: Tensor, dim: int | None) -> tuple[int, int | None]:
    """The feature axis, and for rotations the batch axis."""
    own, batch_dim = None, None
    if isinstance(noise, CentredNoise):
        own, batch_dim = noise._axes(x)
        if noise.center is None and not noise._mixes and dim is not None:
            own = None  # about the origin any axis may be that of features
    elif isinstance(noise, LockedDropout):
        sequence_axis(x, noise.batch_first)  # raises an error if x is no sequence
        own = x.ndim - 1
    elif isinstance(noise, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        alone = x.ndim == (2 if isinstance(noise, nn.Dropout1d) else 4 if isinstance(noise, nn.Dropout3d) else 0)
        own = 0 if alone else 1
    if own is not None and dim is not None and resolve_axis("dim", dim, x.ndim) != own:
        raise ValueError(f"{type(noise).__name__} has its features on axis {own} of {tuple(x.shape)}, got dim = {dim}")
    axis = check_features(x, (-1 if dim is None else dim) if own is None else own)
    if isinstance(noise, CentredNoise) and noise._mixes:
        check_pairs(x.size(axis), axis)
    return axis, batch_dim


def _of_active(covariance: Tensor, x: Tensor) -> Tensor:
    """The covariance of a noise that leaves the features of ``x`` alone that are zero."""
    active = x != 0
    return covariance * (active.unsqueeze(-1) & active.unsqueeze(-2))


def _turned_together(disturbed: Tensor, products: Tensor, axis: int) -> Tensor:
    """The covariance between all elements: with one pairing A, E[A z_a z_bᵀ Aᵀ] = (z_aᵀz_b I − z_b z_aᵀ) / (D − 1)."""
    rows = disturbed.movedim(axis, -1)
    z, features = rows.flatten(0, -2) if rows.ndim > 1 else rows.unsqueeze(0), rows.size(-1)
    inner = torch.einsum("ab,ij->aibj", products * (z @ z.mT), torch.eye(features).to(z))
    swapped = torch.einsum("ab,bi,aj->aibj", products, z, z)
    covariance = ((inner - swapped) / (features - 1)).view(*rows.shape, *rows.shape)
    back = covariance.movedim((rows.ndim - 1, -1), (axis, rows.ndim + axis))
    return back.reshape(rows.numel(), rows.numel())


def _cutout(noise: Cutout, x: Tensor, joint: bool) -> Moments:
    """The moments of Cutout: all channels of an image are hidden in the same square, and nothing is rescaled."""
    if x.ndim not in (3, 4):
        raise ValueError(f"Cutout takes images, (N, C, H, W) or (C, H, W), got shape {tuple(x.shape)}")
    one, both = (chance.to(x.device) for chance in cutout_chances(noise.p, x.size(-2), x.size(-1)))
    mean = x * (1 - one)
    if not joint:
        rows = x.movedim(-3, -1)
        return Moments(mean, (one * (1 - one))[..., None, None] * rows.unsqueeze(-1) * rows.unsqueeze(-2))
    images = x.reshape(-1, *x.shape[-3:])
    multiplier = both - torch.einsum("ij,kl->ijkl", one, one)
    covariance = x.new_zeros(len(images), images[0].numel(), len(images), images[0].numel())
    for n, image in enumerate(images):
        block = torch.einsum("cij,dkl,ijkl->cijdkl", image, image, multiplier)
        covariance[n, :, n] = block.reshape(image.numel(), image.numel())
    return Moments(mean, covariance.view(x.numel(), x.numel()))
