"""What noises along any axis share: checks, an early return, the mean that they are about, padding passed through."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import inputs

__all__ = ["disturb_about"]


def disturb_about(
    x: Tensor,
    noise: Callable[[Tensor, Tensor | None, int], Tensor],
    active: bool,
    *,
    dim: int,
    center: str | Tensor | None,
    mask: Tensor | None,
    sync: bool,
) -> Tensor:
    """x̃ = ``noise(x, m, axis)``, rounded once to the dtype of ``x``; ``x`` itself if the noise is not active.

    m is a mean that was given or is taken here, in fp32 at least, or None for the origin. Rows that ``mask`` calls
    padding take no part in a mean and are passed through; the noise sees zeros there.
    """
    axis = inputs.check_features(x, dim)
    inputs.check_center(center, x, axis)
    weight = None if mask is None else inputs.mask_weight(mask, x, axis)
    together = sync and inputs.processes() > 1
    if not active or (x.numel() == 0 and not together):  # with sync others wait for it
        return x

    mean = center
    if isinstance(mean, str):
        if not together:
            inputs.check_batch(x, weight, axis, dim)
        mean, _ = inputs.feature_mean(x, weight, axis, sync=sync)
    if mean is not None:
        mean = mean.to(torch.promote_types(x.dtype, torch.float32))
        mean = mean.view(*(1,) * (x.ndim - mean.ndim), *mean.shape).movedim(-1, axis)
    if weight is None:
        return noise(x, mean, axis).to(x.dtype)
    real = (weight != 0).unsqueeze(-1).movedim(-1, axis)
    noisy = noise(torch.where(real, x, 0.0), mean, axis).to(x.dtype)  # padding may be NaN, and so its gradient
    return torch.where(real, noisy, x)
