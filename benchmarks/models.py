"""What a noise costs a whole network on a GPU: ``python -m benchmarks.models``.

A training step of ResNet-50 (bf16, channels_last, noise before every 3×3 convolution of the last two stages), of a
transformer block (noise on its three hidden states) and of conv–BN–ReLU–noise–conv, eager and compiled. For the last,
torch.compile also fuses the plain expression, to compare with calling the kernels. The last two are small, so their
steps are captured in CUDA graphs, which measures GPU time only. Variants take turns, a few steps each; medians with the
20th and 80th percentile in ms. Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rotationout as ro

from .records import RESULTS, write

P = 0.2
Step = Callable[[], None]


def resnet50(noise: Callable[[], nn.Module] | None) -> nn.Module:
    """ResNet-50 with a noise before every 3×3 convolution of its last two stages."""
    from torchvision.models import resnet50 as plain

    model: nn.Module = plain()
    if noise is not None:
        for stage in ("layer3", "layer4"):
            for bottleneck in model.get_submodule(stage).children():
                bottleneck.conv2 = nn.Sequential(noise(), bottleneck.get_submodule("conv2"))
    return model


def transformer(noise: Callable[[], nn.Module] | None) -> nn.Module:
    """A pre-norm transformer block with a noise on its three hidden states; none on the attention weights."""
    block = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    if noise is not None:
        for name in ("dropout", "dropout1", "dropout2"):
            setattr(block, name, noise())
    return block


def block(noise: Callable[[], nn.Module] | None, channels: int) -> nn.Module:
    """Convolution, BatchNorm, ReLU, noise, convolution."""
    convolutions = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
    noisy = [] if noise is None else [noise()]
    return nn.Sequential(convolutions[0], nn.BatchNorm2d(channels), nn.ReLU(), *noisy, convolutions[1])


def training_step(model: nn.Module, x: Tensor, compiled: bool) -> Step:
    """Forward and backward in bf16, and an update."""
    model = model.cuda()
    if x.ndim == 4:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=True)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def captured(step: Step) -> Step:
    """The same step as a CUDA graph."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(4):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def in_turn(steps: dict[str, Step], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Median, 20th and 80th percentile of a step in ms, the variants taking turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            step()  # the first after another network finds cold caches
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end) / repeats)
    deciles = {name: statistics.quantiles(values, n=10) for name, values in times.items()}
    return {name: [statistics.median(times[name]), cut[1], cut[7]] for name, cut in deciles.items()}


def compare(case: str, compiled: bool) -> list[dict[str, Any]]:
    """All variants of one network."""
    maps = not case.startswith("transformer")
    layer: Callable[..., nn.Module] = ro.RotationOut2d if maps else ro.RotationOut
    variants: dict[str, Callable[[], nn.Module] | None] = {
        "none": None,
        "nn.Dropout": lambda: nn.Dropout(P),
        "RotationOut (default)": lambda: layer(P),
    }
    if maps:
        variants["nn.Dropout2d"] = lambda: nn.Dropout2d(P)
        variants["un-centred, structured"] = lambda: layer(P, center=None, pairing="structured")
    if compiled and case.startswith("block"):
        variants["default, fused by the compiler"] = lambda: layer(P, backend="reference")
    images = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    maps_in = torch.randn(256, 256, 14, 14, device="cuda").to(memory_format=torch.channels_last)
    builders: dict[str, tuple[Callable[[Any], nn.Module], Tensor]] = {
        "ResNet-50, batch 256": (resnet50, images),
        "transformer block, 32 × 512 × 1024": (transformer, torch.randn(32, 512, 1024, device="cuda")),
        "block of 256 channels, 14²": (lambda noise: block(noise, 256), maps_in),
    }
    build, x = builders[case]
    whole = case.startswith("ResNet")
    steps = {name: training_step(build(noise), x, compiled) for name, noise in variants.items()}
    if not whole:
        steps = {name: captured(step) for name, step in steps.items()}
    times = in_turn(steps, rounds=8 if whole else 20, repeats=3 if whole else 10)
    settings = {"network": case, "compiled": compiled, "captured": not whole}
    return [{**settings, "noise": name, "step_ms": value} for name, value in times.items()]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    parser.add_argument("--no-resnet-compile", action="store_true", help="compiling ResNet-50 takes minutes")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in ("ResNet-50, batch 256", "block of 256 channels, 14²", "transformer block, 32 × 512 × 1024"):
        for compiled in (False, True):
            if compiled and options.no_resnet_compile and case.startswith("ResNet"):
                continue
            found = compare(case, compiled)
            base = found[0]["step_ms"][0]
            print(f"\n{case}, {'compiled' if compiled else 'eager'}")
            for row in found:
                print(f"  {row['noise']:34} {row['step_ms'][0]:8.3f} ms  {row['step_ms'][0] / base:6.3f}×", flush=True)
            rows += found
            torch.cuda.empty_cache()
            torch._dynamo.reset()
            write(options.out, "models", options.commit, {"p": P, "rows": rows})


if __name__ == "__main__":
    main()
