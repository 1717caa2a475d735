"""Run both directions of a bidirectional LSTM layer at once, frame by frame, instead of in cuDNN.

The result is the same. `rotationout.experiments.speech.step_kernels` has the Triton kernels, and says why they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ...kernels.dispatch import HAS_TRITON
from ...nn import NoisyLSTM, WeightDrop

__all__ = ["both_ways", "has_kernels", "recur"]

MULTIPLE = 64
"""The kernels need a hidden size that is a multiple of this."""


def has_kernels(device: torch.device, hidden: int) -> bool:
    """Whether the Triton kernels can run LSTMs of so many units; without them torch's own LSTM is faster.

    >>> has_kernels(torch.device("cpu"), 512), has_kernels(torch.device("cuda"), 500)
    (False, False)
    """
    return HAS_TRITON and device.type == "cuda" and hidden % MULTIPLE == 0


def both_ways(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of several one-layer `NoisyLSTM` of equal sizes, each on its own input, (T, N, features).

    >>> layers = NoisyLSTM(40, 8), NoisyLSTM(40, 8)
    >>> inputs = torch.randn(11, 2, 40), torch.randn(11, 2, 40)
    >>> torch.allclose(both_ways(layers, inputs)[1], layers[1](inputs[1])[0], atol=1e-6)
    True
    """
    drawn = [cast(WeightDrop, cast(NoisyLSTM, layer).layers[0]).draw() for layer in layers]
    of_inputs, of_states, *biases = (torch.stack(parts) for parts in zip(*drawn, strict=True))
    x = torch.stack(list(inputs))
    bias = torch.stack(biases).sum(0).unsqueeze(1)
    gates = torch.baddbmm(bias, x.flatten(1, 2), of_inputs.transpose(1, 2))
    return recur(gates.unflatten(1, x.shape[1:3]), of_states.to(gates.dtype)).unbind()


def recur(gates: Tensor, weight: Tensor) -> Tensor:
    """The states h of several LSTMs at all frames, (copies, T, N, hidden), from the initial state zero.

    Args:
        gates: (copies, T, N, 4·hidden), the contribution of inputs and biases to the gates i, f, g and o.
        weight: (copies, 4·hidden, hidden), the recurrent weights, as in torch's LSTM.

    >>> recur(torch.zeros(2, 5, 3, 32), torch.zeros(2, 32, 8)).shape
    torch.Size([2, 5, 3, 8])
    """
    if has_kernels(gates.device, weight.size(2)):
        from .step_kernels import Recurrence

        states: Tensor = Recurrence.apply(gates, weight)  # type: ignore[no-untyped-call]
        return states
    h = gates.new_zeros(gates.size(0), gates.size(2), weight.size(2))
    c, found = h, []
    for now in gates.unbind(1):
        i, f, g, o = torch.baddbmm(now, h, weight.transpose(1, 2)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        found.append(h)
    return torch.stack(found, 1)
