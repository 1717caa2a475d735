"""LSTMs whose inputs are padded with zeros to a size for which cuDNN has its fast kernels.

In fp16 torch has cuDNN run a layer in one persistent kernel, which keeps the recurrent weights on the chip, instead of
some kernels for every frame, if the layer has one direction, and its hidden size, up to 1024, and its inputs are
multiples of 128 (``get_algo`` in torch's ``cudnn/RNN.cpp``). Speech has 40 features.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from ...nn import NoisyLSTM

__all__ = ["PaddedLSTM"]

TILE = 128
"""What sizes must be multiples of for a persistent kernel."""
LARGEST = 1024
"""The largest hidden size that has one."""


class _Padded(nn.LSTM):
    """A `torch.nn.LSTM` of one layer and one direction on padded inputs, where that is faster; weights as ever."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        missing = -self.input_size % TILE
        tiled = self.hidden_size % TILE == 0 and self.hidden_size <= LARGEST
        if not missing or not tiled or isinstance(input, PackedSequence) or input.ndim != 3 or not _in_fp16(input):
            return super().forward(input, hx)  # type: ignore[has-type]
        self._update_flat_weights()
        of_inputs, *others = cast(list[Tensor], self._flat_weights)
        start = input.new_zeros(1, input.size(1), self.hidden_size)
        # What torch.nn.LSTM calls; it would refuse inputs of another size than its own.
        output, *final = torch._VF.lstm(
            F.pad(input, (0, missing)),
            (start, start) if hx is None else hx,
            [F.pad(of_inputs, (0, missing)), *others],
            self.bias,
            1,  # layer
            0.0,
            self.training,
            False,
            False,
        )
        return output, tuple(final)


def _in_fp16(x: Tensor) -> bool:
    """Whether autocast has cuDNN work in fp16. It casts and gathers the weights at every call then, padded or not."""
    return x.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.float16


class PaddedLSTM(NoisyLSTM):
    """A `rotationout.nn.NoisyLSTM` of one layer and one direction that pads its inputs for cuDNN where that helps.

    Zeros times weights that are zero add nothing: it computes the same, and has the same parameters.

    Args:
        input_size: features of the input, (T, N, input_size).
        hidden_size: features of the hidden state.
        weight_drop: drop probability of the recurrent weights.
        variational: drop rows of them.

    >>> layer = PaddedLSTM(40, 128)
    >>> layer(torch.randn(7, 3, 40))[0].shape, layer.layers[0].module.weight_ih_l0.shape
    (torch.Size([7, 3, 128]), torch.Size([512, 40]))
    """

    _module = _Padded

    def __init__(
        self, input_size: int, hidden_size: int, *, weight_drop: float = 0.0, variational: bool = False
    ) -> None:
        super().__init__(input_size, hidden_size, weight_drop=weight_drop, variational=variational)
