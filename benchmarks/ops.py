"""Time and memory of noise layers on the CPU, beside each other in one run: ``python -m benchmarks.ops``.

Machines are noisy, so every noise is timed in turn, round after round, and what counts is the ratio to nn.Dropout. With
``--out`` it is written as JSON too.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .noises import Noise, noises

SHAPES = [(128, 64, 8, 8), (128, 64, 16, 16), (128, 64, 32, 32), (4096, 1024), (64, 512, 128)]


def step(noise: Noise, x: Tensor, grad: Tensor) -> None:
    """Forward and backward, once."""
    noise(x).backward(grad)
    x.grad = None


def time_side_by_side(actions: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of each action, the actions taking turns: the 20th percentile, since other processes only add time."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 2):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if turn >= 2:  # the first two turns warm up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(values, n=5)[0] for name, values in times.items()}


def bytes_kept(noise: Noise, x: Tensor) -> int:
    """What autograd keeps alive between forward and backward."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = noise(x)
    kept.pop(x.untyped_storage().data_ptr(), None)
    del output
    return sum(kept.values())


def main() -> None:
    """Print one table per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--p", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="a file to write the record to")
    options = parser.parse_args()
    rows = []
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, fp32, forward + backward, p = {options.p}")
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        grad = torch.randn(shape)
        found = noises(shape, options.p)
        actions = {name: functools.partial(step, noise, x, grad) for name, noise in found.items()}
        seconds = time_side_by_side(actions, options.rounds)
        memory = {name: bytes_kept(noise, x) for name, noise in found.items()}
        print(f"\n{shape}\n{'noise':30} {'ms':>8} {'× Dropout':>10} {'kept kB':>10} {'% Dropout':>10}")
        for name in found:
            ratio = seconds[name] / seconds["nn.Dropout"]
            share = 100 * memory[name] / memory["nn.Dropout"]
            print(f"{name:30} {1e3 * seconds[name]:8.2f} {ratio:10.2f} {memory[name] / 1e3:10.1f} {share:10.2f}")
            rows.append({"tensor": str(shape), "noise": name, "ms": 1e3 * seconds[name], "bytes_kept": memory[name]})
    if options.out:
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
        options.out.write_text(json.dumps({**machine, "p": options.p, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
