"""Time and memory of noise layers on a GPU: ``python -m benchmarks.gpu``.

Medians with the 20th and 80th percentile, in µs, compared with a device-to-device copy of the same tensor: one read and
one write, the minimum for any out-of-place layer. Written as JSON under benchmarks/results/, named by GPU and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from triton.testing import do_bench

import rotationout as ro
from rotationout.bench import authors_formula, bytes_kept, gaussian_dropout
from rotationout.bench.noises import Noise

from .records import RESULTS, write

P = 0.2
SHAPES: list[tuple[torch.dtype, tuple[int, ...], bool]] = [
    (torch.float32, (256, 256, 56, 56), False),
    (torch.bfloat16, (256, 256, 56, 56), False),
    (torch.bfloat16, (256, 256, 56, 56), True),
    (torch.bfloat16, (802816, 256), False),
    (torch.bfloat16, (65536, 4096), False),
    (torch.float32, (65536, 4096), False),
]
SMALL: list[tuple[torch.dtype, tuple[int, ...], bool]] = [
    (torch.bfloat16, (128, 64, 8, 8), False),
    (torch.bfloat16, (128, 640, 8, 8), False),
    (torch.bfloat16, (128, 640, 8, 8), True),
]


def noises(shape: tuple[int, ...]) -> dict[str, Noise]:
    """The noises to compare on features of this shape."""
    maps = len(shape) == 4
    layer = ro.RotationOut2d if maps else ro.RotationOut
    features = shape[1]
    found: dict[str, Noise] = {
        "nn.Dropout": nn.Dropout(P),
        "Gaussian dropout": gaussian_dropout(P),
        "authors' formula": authors_formula(P),
        "RotationOut (default)": layer(P),
        "permutation per batch": layer(P, center=None, pairing="permutation", pairing_per="batch"),
        "structured per row": layer(P, center=None, pairing="structured", pairing_per="row"),
        "batch mean": layer(P, center="batch"),
        "running mean": layer(P, center="running", num_features=features),
    }
    if maps:
        from torchvision.ops import drop_block2d

        found["nn.Dropout2d"] = nn.Dropout2d(P)
        found["DropBlock"] = lambda x: drop_block2d(x, 0.1, 7)
        found["permutation per example"] = layer(P, center=None)
        found["structured per example"] = layer(P, center=None, pairing="structured")
        found["block 7"] = ro.RotationOut2d(P, block_size=7)
        found["batch mean, P per batch"] = layer(P, pairing_per="batch")
    else:
        found["gradient in the plane"] = layer(P, gradient="plane")
    return {name: noise.cuda() if isinstance(noise, nn.Module) else noise for name, noise in found.items()}


def features_of(dtype: torch.dtype, shape: tuple[int, ...], channels_last: bool) -> Tensor:
    """Random features; never zeros, on which a GPU runs faster."""
    x = torch.randn(shape, device="cuda", dtype=dtype)
    return x.to(memory_format=torch.channels_last) if channels_last else x


def quantiles(action: Callable[[], Any]) -> list[float]:
    """Median, 20th and 80th percentile in µs."""
    return [1e3 * value for value in do_bench(action, warmup=15, rep=50, quantiles=[0.5, 0.2, 0.8])]


def measure(noise: Noise, x: Tensor) -> dict[str, Any]:
    """One noise, called as a user calls it."""
    x = x.detach().requires_grad_()
    grad = torch.randn_like(x)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = noise(x)
    torch.autograd.grad(y, x, grad)
    peak = torch.cuda.max_memory_allocated() - before
    y = noise(x)
    return {
        **measure_captured(noise, x),
        "forward_us": quantiles(lambda: noise(x)),
        "backward_us": quantiles(lambda: torch.autograd.grad(y, x, grad, retain_graph=True)),
        "both_us": quantiles(lambda: torch.autograd.grad(noise(x), x, grad)),
        "bytes_kept": bytes_kept(noise, x),
        "peak_bytes": peak,
    }


def measure_captured(noise: Noise, x: Tensor) -> dict[str, Any]:
    """Forward and backward in a CUDA graph: GPU time only."""
    x = x.detach().requires_grad_()
    grad = torch.randn_like(x)

    def step() -> None:
        torch.autograd.grad(noise(x), x, grad)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeats = 20 if x.numel() < 10**7 else 3
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            step()
    return {"captured_us": [value / repeats for value in quantiles(graph.replay)]}


def label(dtype: torch.dtype, shape: tuple[int, ...], channels_last: bool) -> str:
    """How a record names a tensor."""
    return f"{str(dtype).removeprefix('torch.')} {shape}{' channels_last' if channels_last else ''}"


def run(case: tuple[torch.dtype, tuple[int, ...], bool], how: Callable[[Noise, Tensor], dict[str, Any]]) -> list[Any]:
    """All noises on one tensor."""
    x = features_of(*case)
    target = torch.empty_like(x)
    copy = quantiles(lambda: target.copy_(x))
    rows = []
    for name, noise in noises(case[1]).items():
        rows.append({"tensor": label(*case), "noise": name, "copy_us": copy, **how(noise, x)})
        torch.cuda.empty_cache()
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print what was measured, relative to nn.Dropout and to a copy."""
    for tensor in dict.fromkeys(row["tensor"] for row in rows):
        mine = [row for row in rows if row["tensor"] == tensor]
        base = next(row for row in mine if row["noise"] == "nn.Dropout")
        print(f"\n{tensor}: copy {mine[0]['copy_us'][0]:.0f} µs")
        for row in mine:
            ratio = row["captured_us"][0] / base["captured_us"][0]
            line = f"  {row['noise']:24} captured {row['captured_us'][0]:8.1f} (× Dropout {ratio:5.2f})"
            if "both_us" in row:
                forward, backward, both = (row[key][0] for key in ("forward_us", "backward_us", "both_us"))
                line += f"  eager fwd {forward:6.0f} bwd {backward:6.0f} both {both:6.0f} "
                line += f"(× Dropout {both / base['both_us'][0]:5.2f})  kept {row['bytes_kept'] / 1e6:7.3f} MB"
            print(line)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    options = parser.parse_args()
    rows = [row for case in SHAPES for row in run(case, measure)]
    rows += [row for case in SMALL for row in run(case, measure_captured)]
    show(rows)
    path = write(options.out, "ops", options.commit, {"p": P, "rows": rows})
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
