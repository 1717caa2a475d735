"""Cross-Normalization (appendix B): every example is normalised by the statistics of the others."""

from __future__ import annotations

import math

from torch import Tensor, nn

from .ghost import ChunkedNorm
from .statistics import Examples, cross_moments

__all__ = ["CrossNorm1d", "CrossNorm2d", "CrossNorm3d"]

FEWEST_OTHERS = 4
"""With three other Gaussian values E[1/σ²] is infinite, and so is the variance of CrossNorm's output."""


class _CrossNorm(ChunkedNorm):
    def _normalize(self, input: Tensor) -> Tensor:
        fewest = input.size(0) if self.ghost_batch is None else min(input.size(0), self.ghost_batch)
        positions = math.prod(input.shape[2:])
        if (fewest - 1) * positions < FEWEST_OTHERS:
            needed = math.ceil(FEWEST_OTHERS / positions) + 1 if positions else 0
            who = "the batch" if self.ghost_batch is None else "a ghost batch"
            raise ValueError(
                f"{type(self).__name__} leaves one of {fewest} examples of {positions} value(s) per channel out; the "
                f"variance of its output is finite only if the others have at least {FEWEST_OTHERS} values: "
                + (f"{who} needs at least {needed} examples" if needed else "maps need at least one position")
            )
        return self._normalize_in_chunks(input)

    def _moments(self, chunk: Examples) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = (moment.flatten(0, 1) for moment in cross_moments(chunk))
        inverse = (variance + self.eps).rsqrt()
        return mean, inverse, inverse

    def _track_spread(self, seen: Tensor, weight: Tensor | float) -> None:
        assert self.running_var is not None
        inverse = (self.running_var.to(seen.dtype) + self.eps).rsqrt()
        inverse = inverse.lerp(seen, weight.to(seen.dtype) if isinstance(weight, Tensor) else weight)
        self.running_var.copy_((inverse**-2 - self.eps).clamp_min(0))


class CrossNorm1d(_CrossNorm, nn.BatchNorm1d):
    """Cross-Normalization for (N, C) or (N, C, L); see `CrossNorm2d`. A batch of vectors needs at least five.

    >>> import torch
    >>> CrossNorm1d(3)(torch.randn(8, 3)).shape
    torch.Size([8, 3])
    """


class CrossNorm2d(_CrossNorm, nn.BatchNorm2d):
    """Cross-Normalization (appendix B): in training an example is normalised by the statistics of the others.

    Its own values have no part in its mean and variance, so that the expected output is linear in them, as test mode
    assumes; BatchNorm's is not. On maps the whole example is left out. The mean of the others is over all their values,
    and so is their variance, unbiased: for B vectors 1 / (B − 1) and 1 / (B − 2), where the paper prints 1 / B.

    The slope of the expected output is E[1/σ], which is more than 1 / √E[σ²]: by 15 % at B = 8. Training therefore
    keeps a running mean m of 1 / √(σ² + ε) over batches and examples, and stores it as ``running_var`` = 1 / m² − ε,
    which is less than the variance of the input; evaluation is then BatchNorm's own. The mean and the inverse deviation
    of the others are taken as uncorrelated, which they are for symmetric inputs.

    Two kinds of input do not suit this layer. Where a channel is constant over nearly all examples of most batches, the
    example that differs comes out of the order of 1 / √ε. And an example whose maps are s > 1 times as large as those
    of the other B − 1 comes out about s·√((s² + B − 2) / (B − 1)) times as large as they do. With small batches that
    grows without bound from layer to layer: a deep network needs branches that start at zero, or another normalisation.

    Args:
        num_features: C; this and the next six are those of `torch.nn.BatchNorm2d`.
        eps: added to variances.
        momentum: the weight of a new batch in the running statistics; None: all batches count the same.
        affine: learn γ and β.
        track_running_stats: if False, evaluation uses statistics of the batch too.
        device: the device of parameters and buffers.
        dtype: their dtype.
        ghost_batch: examples in a chunk, each normalised by the others of its chunk; None for the whole batch. The
            examples that are left over join the last chunk.

    Raises:
        ValueError: in training, if the others have fewer than 4 values per channel; the output's variance would be
            infinite.

    >>> import torch
    >>> layer = CrossNorm2d(3)
    >>> layer(torch.randn(8, 3, 4, 4)).shape
    torch.Size([8, 3, 4, 4])
    """


class CrossNorm3d(_CrossNorm, nn.BatchNorm3d):
    """Cross-Normalization for (N, C, D, H, W); see `CrossNorm2d`.

    >>> import torch
    >>> CrossNorm3d(3)(torch.randn(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    """
