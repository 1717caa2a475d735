"""Time of recurrent networks with noises, on a GPU if available: ``python -m benchmarks.recurrent``.

Forward + backward of `rotationout.nn.NoisyLSTM`, compared with what one would write by hand: one-layer nn.LSTMs with
nn.Dropout between them. Both take turns in one run; the result is the ratio. Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from rotationout.bench import time_side_by_side
from rotationout.nn import LockedDropout, NoisyLSTM, RotationOutSequence

from .records import RESULTS, write

P = 0.2
BASE = "nn.LSTMs, nn.Dropout"


@dataclass(frozen=True)
class Size:
    """A bidirectional network and what it is given."""

    layers: int
    inputs: int
    hidden: int
    batch: int
    steps: int


GPU = Size(layers=4, inputs=40, hidden=512, batch=32, steps=500)
CPU = Size(layers=4, inputs=40, hidden=128, batch=16, steps=100)


class ByHand(nn.Module):
    """One-layer nn.LSTMs with nn.Dropout between them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inputs = [size.inputs, *[2 * size.hidden] * (size.layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(n, size.hidden, bidirectional=True) for n in inputs)
        self.dropout = nn.Dropout(P)

    def forward(self, x: Tensor | PackedSequence) -> tuple[Tensor | PackedSequence, None]:
        """The output; the states are not collected."""
        for k, layer in enumerate(self.layers):
            if k > 0:
                x = PackedSequence(self.dropout(x.data), *x[1:]) if isinstance(x, PackedSequence) else self.dropout(x)
            x, _ = layer(x)
        return x, None


def networks(size: Size) -> dict[str, nn.Module]:
    """What is compared: the noises act between layers, those on weights in every layer."""
    noises: dict[str, dict[str, Any]] = {
        "NoisyLSTM, none": {},
        "NoisyLSTM, nn.Dropout": {"layer_noise": nn.Dropout(P)},
        "NoisyLSTM, LockedDropout": {"layer_noise": LockedDropout(P)},
        "NoisyLSTM, RotationOut": {"layer_noise": RotationOutSequence(P)},
        "NoisyLSTM, RotationOut structured": {"layer_noise": RotationOutSequence(P, pairing="structured")},
        "NoisyLSTM, weight drop": {"weight_drop": P},
        "NoisyLSTM, variational weight drop": {"weight_drop": P, "variational": True},
    }
    sizes = size.inputs, size.hidden, size.layers
    return {BASE: ByHand(size)} | {
        name: NoisyLSTM(*sizes, bidirectional=True, **choices) for name, choices in noises.items()
    }


def step(network: nn.Module, x: Tensor | PackedSequence) -> None:
    """Forward and backward, once, until the device has finished."""
    network.zero_grad()
    output, _ = network(x)
    (output.data if isinstance(output, PackedSequence) else output).sum().backward()
    if output.is_cuda:
        torch.cuda.synchronize()


def sequences(size: Size, dtype: torch.dtype, device: str, *, packed: bool) -> Tensor | PackedSequence:
    """Random features; packed ones are from half as long to as long as the others."""
    x = torch.randn(size.steps, size.batch, size.inputs, device=device, dtype=dtype)
    lengths = torch.linspace(size.steps, size.steps / 2, size.batch).long()
    return pack_padded_sequence(x, lengths) if packed else x


def cudnn_calls(network: nn.Module, x: Tensor | PackedSequence) -> int:
    """How many layers cuDNN runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        network(x)
    return sum(event.name == "aten::_cudnn_rnn" for event in profile.events())


def run(size: Size, dtype: torch.dtype, device: str, packed: bool, rounds: int) -> list[dict[str, Any]]:
    """All networks on one kind of input."""
    x = sequences(size, dtype, device, packed=packed)
    found = {name: network.to(device, dtype) for name, network in networks(size).items()}
    seconds = time_side_by_side({name: functools.partial(step, net, x) for name, net in found.items()}, rounds)
    kind = f"{str(dtype).removeprefix('torch.')}{', packed' if packed else ''}"
    print(f"\n{size}, {kind}: {BASE} {1e3 * seconds[BASE]:.1f} ms")
    rows = []
    for name, network in found.items():
        row = {**asdict(size), "input": kind, "network": name, "ms": 1e3 * seconds[name]}
        if device == "cuda":
            row["cudnn_calls"] = cudnn_calls(network, x)
        print(f"  {name:40} {seconds[name] / seconds[BASE]:6.3f}×", row.get("cudnn_calls", ""))
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    warnings.simplefilter("error", UserWarning)  # cuDNN warns if it has to gather weights
    # In bf16 torch does not lay out the weights of its own nn.LSTM for cuDNN, which then gathers them at every call.
    size, dtypes = (CPU, [torch.float32]) if device == "cpu" else (GPU, [torch.float32, torch.float16])
    cases = [(size, dtype, device, packed) for dtype in dtypes for packed in (False, True)]
    rows = [row for case in cases for row in run(*case, options.rounds)]
    path = write(options.out, "recurrent", options.commit, {"p": P, "rows": rows}, device)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
