"""BatchNorm over ghost batches, and the base class of the layers of this package.

All of them are subclasses of torch's BatchNorm, with its parameters, buffers and keys, so that a checkpoint of one can
be loaded into another. They differ in this:

===============  =========================================  ==========================================================
layer            training                                   evaluation
===============  =========================================  ==========================================================
GhostBatchNorm   statistics of a chunk of the batch         as BatchNorm
CrossNorm        statistics of the *other* examples         as BatchNorm, with a running mean of 1/σ instead of σ²
PolyBatchNorm    as BatchNorm                               BatchNorm's x̂, then f_poly(x̂)
===============  =========================================  ==========================================================
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.modules.batchnorm import _BatchNorm

from ... import strength
from ..arguments import checked
from ..base import recorded
from .statistics import Examples, chunk_moments, chunks, example_moments

__all__ = ["ChunkedNorm", "GhostBatchNorm1d", "GhostBatchNorm2d", "GhostBatchNorm3d"]


class ChunkedNorm(_BatchNorm):
    """The base of the layers: statistics over chunks of the batch, and their running means."""

    num_batches_tracked: Tensor

    @checked({})
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        ghost_batch: int | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if ghost_batch is not None:
            ghost_batch = strength.check_integer("ghost_batch", ghost_batch, 2, also="None")
        self.ghost_batch = ghost_batch

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input``, (N, C, …), in training with statistics of the batch, in evaluation with running ones."""
        if isinstance(input, Proxy):
            return cast(Tensor, recorded(self, input))
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        if not input.is_floating_point() or input.size(1) != self.num_features:
            raise ValueError(
                f"{type(self).__name__} has num_features = {self.num_features}: it takes floating-point tensors "
                f"(N, {self.num_features}, …), got {tuple(input.shape)}, {input.dtype}"
            )
        if self.training or self.running_mean is None:
            return self._normalize(input)
        return self._evaluate(input)

    def _normalize(self, input: Tensor) -> Tensor:
        if self.ghost_batch is None or input.size(0) < 2 * self.ghost_batch or input.numel() == 0:
            return super().forward(input)  # one chunk, or no data: torch's own
        return self._normalize_in_chunks(input)

    def _evaluate(self, input: Tensor) -> Tensor:
        return super().forward(input)

    def _normalize_in_chunks(self, input: Tensor) -> Tensor:
        x = input if input.dtype == torch.float64 else input.float()
        examples = example_moments(x)
        parts = [self._moments(chunk) for chunk in chunks(examples, self.ghost_batch)]
        mean, inverse, seen = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*parts, strict=True))
        if self.training and self.running_mean is not None:
            self._track(examples.mean.detach().mean(0), seen.detach().mean(0))
        return self._affine(x, mean, inverse).to(input.dtype)

    def _moments(self, chunk: Examples) -> tuple[Tensor, Tensor, Tensor]:
        """For every example, (n, C): the mean, the inverse deviation, and the quantity whose running mean is kept."""
        mean, variance = chunk_moments(chunk)
        values = chunk.mean.size(1) * chunk.positions
        inverse, unbiased = (variance + self.eps).rsqrt(), variance.detach() * (values / (values - 1))
        each = chunk.mean.shape
        return mean.expand(each).flatten(0, 1), inverse.expand(each).flatten(0, 1), unbiased.expand(each).flatten(0, 1)

    def _affine(self, x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        """γ·(x − mean)·inverse + β, for (N, C) statistics, as one multiplication and addition."""
        scale = inverse if self.weight is None else inverse * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (-1, x.size(1)) + (1,) * (x.ndim - 2)
        return x * scale.to(x.dtype).view(shape) + shift.to(x.dtype).view(shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, seen: Tensor) -> None:
        assert self.running_mean is not None
        self.num_batches_tracked.add_(1)
        kept = self.running_mean.dtype
        weight = 1 / self.num_batches_tracked.to(kept) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(kept), weight)
        self._track_spread(seen, weight)

    def _track_spread(self, seen: Tensor, weight: Tensor | float) -> None:
        assert self.running_var is not None
        self.running_var.lerp_(seen.to(self.running_var.dtype), weight)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        ghost = "" if self.ghost_batch is None else f", ghost_batch={self.ghost_batch}"
        return f"{super().extra_repr()}{ghost}"  # type: ignore[no-untyped-call]


class GhostBatchNorm1d(ChunkedNorm, nn.BatchNorm1d):
    """BatchNorm on (N, C) or (N, C, L), statistics over chunks of the batch; see `GhostBatchNorm2d`.

    >>> GhostBatchNorm1d(3, ghost_batch=8)(torch.randn(32, 3)).view(4, 8, 3).mean(1).abs().max().item() < 1e-5
    True
    """


class GhostBatchNorm2d(ChunkedNorm, nn.BatchNorm2d):
    """BatchNorm whose training statistics are those of chunks of the batch (Hoffer et al. 2017, "ghost batches").

    With ``ghost_batch=8`` a batch of 128 is normalised as 16 batches of 8 would be, at the speed of a batch of 128. The
    running statistics take one step for a batch, towards the mean over its chunks.

    Args:
        num_features: C; this and the next six are those of `torch.nn.BatchNorm2d`.
        eps: added to variances.
        momentum: the weight of a new batch in the running statistics; None: all batches count the same.
        affine: learn γ and β.
        track_running_stats: if False, evaluation uses statistics of the batch too.
        device: the device of parameters and buffers.
        dtype: their dtype.
        ghost_batch: examples in a chunk, at least 2; None for the whole batch. The examples that are left over join the
            last chunk, and a batch that is smaller is one chunk.

    >>> layer = GhostBatchNorm2d(3, ghost_batch=8)
    >>> layer(torch.randn(32, 3, 4, 4)).view(4, 8, 3, 16).mean((1, 3)).abs().max().item() < 1e-5
    True
    """


class GhostBatchNorm3d(ChunkedNorm, nn.BatchNorm3d):
    """BatchNorm on (N, C, D, H, W), statistics over chunks of the batch; see `GhostBatchNorm2d`.

    >>> GhostBatchNorm3d(3, ghost_batch=8)(torch.randn(16, 3, 2, 2, 2)).shape
    torch.Size([16, 3, 2, 2, 2])
    """
