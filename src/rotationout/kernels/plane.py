"""The operator with another gradient: that of a turn in one plane.

The operator turns all pairs of features, z + Δ with Δ = tan θ · Az (label eq6), and its gradient turns all pairs back,
g − tan θ · Ag: as much noise on the gradient as on the features. But of A only Az shows in the features. Of all I + K
that take z to z + Δ, with K skew-symmetric as tan θ · A is, the one with K = (Δzᵀ − zΔᵀ) / |z|² leaves all directions
but those two alone. Its gradient is g − Kg. K is the linear regression of tan θ · A on Δ: the mean of the gradient is
the same to second order in tan θ, and of all with that mean this one has the least noise. For that, what rows are
turned by must be uncorrelated: with a pairing for every row, or a symmetric angle for every row. Where it is not, as on
maps that share a pairing and one-sided angles, the mean is another one.

K is held constant in all derivatives, as the operator holds tan θ · A. Of rows so short or so long that fp32 cannot
hold |z|², shorter than 1e-19 or longer than 1e19, the gradient is left as it is.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from . import reference, small
from .autograd import in_plain_torch, is_tracked, is_transformed, rotate
from .dispatch import implementation

__all__ = ["rotate_in_plane", "turn_in_plane"]


def rotate_in_plane(
    z: Tensor, tan: Tensor, index: Tensor, seed: Tensor | None, dim: int, *, backend: str | None = None
) -> Tensor:
    """The operator z + Δ about the origin, with the derivative I + K in ``z``.

    It keeps z for backward, as the ReLU before it does, and what was drawn.
    """
    draws = tan, index, seed, dim
    if not in_plain_torch(tan, backend, z) and not is_transformed():
        kernels = implementation(z, backend)
        if not is_tracked(z):
            return cast(Tensor, kernels.rotate(z, None, *draws, False))
        if kernels is not small:
            return _InPlane.apply(z, *draws, backend)  # type: ignore[no-any-return, no-untyped-call]
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    with torch.no_grad():
        added = rotate(wide, None, *draws, backend=backend) - wide
    return turn_in_plane(wide, added, dim).to(z.dtype)


def turn_in_plane(z: Tensor, added: Tensor, dim: int) -> Tensor:
    """Return z + Δ, with the derivative I + K: the definition, in steps that autograd and torch.func follow.

    Args:
        z: features.
        added: Δ, perpendicular to z.
        dim: the feature axis.

    >>> z = torch.tensor([3.0, 0.0, 0.0], requires_grad=True)
    >>> turn_in_plane(z, torch.tensor([0.0, 3.0, 0.0]), 0) @ torch.tensor([1.0, 10.0, 100.0])
    tensor(33., grad_fn=<DotBackward0>)
    >>> torch.autograd.grad(_, z)  # by 45° in the plane of the first two, and longer by 1 / cos θ
    (tensor([ 11.,   9., 100.]),)
    """
    fixed, added = z.detach(), added.detach()
    moved = z - fixed  # zero, but it has a derivative
    square = fixed.square().sum(dim, keepdim=True).clamp_min(torch.finfo(fixed.dtype).tiny)
    along = (fixed * moved).sum(dim, keepdim=True) / square
    across = (added * moved).sum(dim, keepdim=True) / square
    return z + added + (added * along - fixed * across)


class _InPlane(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        z, tan, index, seed, ctx.dim, ctx.backend = inputs
        ctx.save_for_backward(z, tan, index, seed)
        kernels = implementation(z, ctx.backend)
        return cast(Tensor, kernels.rotate(z, None, tan, index, seed, ctx.dim, False).data)  # no view, see `autograd`

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        z, tan, index, seed = ctx.saved_tensors
        # What is differentiated again must be torch's own steps: the result is linear in the gradient.
        plain = in_plain_torch(tan, ctx.backend, grad) or is_tracked(grad)
        kernels = reference if plain else implementation(z, ctx.backend)
        turned = kernels.turn_back(grad, z.detach(), tan, index, seed, ctx.dim)
        return turned, None, None, None, None, None
