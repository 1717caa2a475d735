"""Whether LSTMs overlap on a GPU: ``python -m benchmarks.lstm``, half a minute.

Several LSTMs of one layer and one direction, forward + backward in fp16, each captured in a CUDA graph on a stream of
its own: with cuDNN, and with kernels that go frame by frame; the latter also with all LSTMs in one launch. If LSTMs
overlap, the time per LSTM falls as their number grows, which explains the results of `benchmarks.speech`. Written as
JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rotationout.experiments.speech.stepped import both_ways
from rotationout.nn import NoisyLSTM

from .records import RESULTS, write

BATCH, INPUTS, HIDDEN = 32, 1024, 512
REPLAYS = 20


@dataclass
class Captured:
    """A graph, and what must stay alive for as long as it is replayed."""

    stream: torch.cuda.Stream
    graph: torch.cuda.CUDAGraph
    layers: Sequence[NoisyLSTM]
    inputs: Sequence[Tensor]

    def replay(self) -> None:
        """On its stream."""
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def in_cudnn(layers: Sequence[NoisyLSTM], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One after the other."""
    return tuple(layer(x)[0] for layer, x in zip(layers, inputs, strict=True))


def captured(
    run: Callable[[Sequence[NoisyLSTM], Sequence[Tensor]], tuple[Tensor, ...]], count: int, frames: int, inputs: int
) -> Captured:
    """``count`` LSTMs, forward and backward, in one graph."""
    layers = [NoisyLSTM(inputs, HIDDEN).cuda() for _ in range(count)]
    x = [torch.randn(frames, BATCH, inputs, device="cuda", requires_grad=True) for _ in layers]
    leaves = [*x, *(parameter for layer in layers for parameter in layer.parameters())]
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)
    stream = torch.cuda.Stream()

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            outputs = run(layers, x)
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return Captured(stream, graph, layers, x)


def milliseconds(work: Sequence[Captured]) -> float:
    """Of all of it at once."""
    for part in work:
        part.replay()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(REPLAYS):
        for part in work:
            part.replay()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun) / REPLAYS


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--frames", type=int, default=320)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    sizes = options.frames, options.inputs
    rows = []
    for count in options.counts:
        ways = {"cudnn": (in_cudnn, count, 1), "stepped": (both_ways, count, 1)}
        ways["stepped in one launch"] = (both_ways, 1, count)
        for name, (run, graphs, members) in ways.items():
            work = [captured(run, members, *sizes) for _ in range(graphs)]
            each = milliseconds(work) / count
            del work
            gc.collect()
            torch.cuda.empty_cache()
            rows.append({"way": name, "count": count, "frames": options.frames, "inputs": options.inputs, "ms": each})
            frame = 1e3 * each / options.frames
            print(f"{count:2} × {name:22} {each:6.2f} ms each, {frame:5.2f} µs a frame", flush=True)
    print(f"\nwritten to {write(options.out, 'lstm', options.commit, {'rows': rows})}")


if __name__ == "__main__":
    main()
