"""The gradient of a rotation in one plane: what is left of a random rotation's once it is known where x has gone.

RotationOut turns all pairs of features (label eq6): x̃ = x + tan θ · Az, with z = x − m. Its gradient turns all pairs
back, g − tan θ · Ag, and so has as much noise as the features. But only Az shows in x̃. Of all rotations that take z to
z + Δ, with Δ = tan θ · Az, the one in the plane of z and Δ leaves all other directions alone: I + (Δzᵀ − zΔᵀ) / |z|².
For a uniformly random rotation it is the mean of all of them. So its gradient has the same mean, and less noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["turn_in_plane"]


def turn_in_plane(x: Tensor, z: Tensor, added: Tensor, axis: int) -> Tensor:
    """Return x + Δ, with the derivative of the rotation in the plane of z and Δ, held constant as eq6 holds R.

    Args:
        x: features.
        z: x − m, as it depends on what is differentiated.
        added: Δ, perpendicular to z.
        axis: the feature axis.

    >>> z = torch.tensor([3.0, 0.0, 0.0], requires_grad=True)
    >>> turn_in_plane(z, z, torch.tensor([0.0, 3.0, 0.0]), 0) @ torch.tensor([1.0, 10.0, 100.0])
    tensor(33., grad_fn=<DotBackward0>)
    >>> torch.autograd.grad(_, z)  # by 45° in the plane of the first two, and longer by 1 / cos θ
    (tensor([ 11.,   9., 100.]),)
    """
    fixed, added = z.detach(), added.detach()
    moved = z - fixed  # zero, but it has a derivative
    square = fixed.square().sum(axis, keepdim=True).clamp_min(torch.finfo(fixed.dtype).tiny)
    along = (fixed * moved).sum(axis, keepdim=True) / square
    across = (added * moved).sum(axis, keepdim=True) / square
    return x + added + (added * along - fixed * across)
