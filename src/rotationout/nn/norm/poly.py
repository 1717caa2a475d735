"""BatchNorm whose test mode applies f_poly, which approximates the mean output of training (appendix B)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import checked
from . import expectation
from .ghost import ChunkedNorm

__all__ = ["PolyBatchNorm1d", "PolyBatchNorm2d", "PolyBatchNorm3d"]


class _PolyBatchNorm(ChunkedNorm):
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
        batch_size: float | None = None,
        ghost_batch: int | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, ghost_batch=ghost_batch
        )
        size = ghost_batch if batch_size is None else batch_size
        if size is None:
            raise ValueError(
                f"{type(self).__name__} needs batch_size, how many independent values are normalised together in "
                "training (for vectors the batch size), or ghost_batch"
            )
        self.batch_size = size

    @property
    def batch_size(self) -> float:
        """How many independent values per channel were normalised together in training; it may be changed."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: float) -> None:
        expectation.check_batch_size(value)
        self._batch_size = value
        self.coefficients = expectation.poly_coefficients(float(value))
        self.limit = expectation.turning_point(self.coefficients)

    def _evaluate(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        x = input if input.dtype == torch.float64 else input.float()
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean, variance = (t.to(x.dtype).view(shape) for t in (self.running_mean, self.running_var))
        y = expectation.evaluate((x - mean) * (variance + self.eps).rsqrt(), self.coefficients, self.limit)
        if self.weight is not None:
            y = y * self.weight.to(x.dtype).view(shape)
        if self.bias is not None:
            y = y + self.bias.to(x.dtype).view(shape)
        return y.to(input.dtype)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{super().extra_repr()}, batch_size={self.batch_size:g}"


class PolyBatchNorm1d(_PolyBatchNorm, nn.BatchNorm1d):
    """BatchNorm on (N, C) or (N, C, L) whose test mode applies f_poly; see `PolyBatchNorm2d`.

    >>> PolyBatchNorm1d(2, batch_size=8).eval()(torch.tensor([[1.0, 3.0]]))  # BatchNorm: 1 and 3
    tensor([[1.0094, 2.0345]], grad_fn=<AddBackward0>)
    """


class PolyBatchNorm2d(_PolyBatchNorm, nn.BatchNorm2d):
    """BatchNorm whose test mode is y = γ·f_poly(x̂) + β (appendix B): the mean output of training instead of x̂.

    Training is BatchNorm's. f_poly is fitted for Gaussian inputs (`rotationout.nn.norm.f_poly`) and held constant
    beyond its turning points.

    Args:
        num_features: C; this and the next six are those of `torch.nn.BatchNorm2d`.
        eps: added to variances.
        momentum: the weight of a new batch in the running statistics; None: all batches count the same.
        affine: learn γ and β.
        track_running_stats: if False, f_poly is never applied: evaluation uses statistics of the batch too.
        device: the device of parameters and buffers.
        dtype: their dtype.
        batch_size: how many *independent* values per channel are normalised together in training, at least 2, not
            necessarily whole. For vectors that is the batch size (of a process), or ``ghost_batch``, its default. On
            maps statistics are taken over N·H·W values, which is the answer if all positions are independent; where
            the positions of an example are all alike it is N. The truth lies between:
            `rotationout.analysis.batchnorm.effective_batch_size` measures it. At 128 the polynomial is nearly the
            identity.
        ghost_batch: examples in a chunk, as in `GhostBatchNorm2d`.

    >>> layer = PolyBatchNorm2d(3, batch_size=8)
    >>> [round(a, 4) for a in layer.coefficients], round(layer.limit, 2)
    ([1.0918, -0.0886, 0.0064, -0.0002], 3.8)
    """


class PolyBatchNorm3d(_PolyBatchNorm, nn.BatchNorm3d):
    """BatchNorm on (N, C, D, H, W) whose test mode applies f_poly; see `PolyBatchNorm2d`.

    >>> PolyBatchNorm3d(3, batch_size=8)(torch.randn(8, 3, 2, 2, 2)).shape
    torch.Size([8, 3, 2, 2, 2])
    """
