"""What inserting a noise costs, on the CPU: ``python -m benchmarks.placing``.

Seconds to insert into a ResNet-152, and a training step of ResNet-18 with noise inserted before the convolutions of its
last two stages, compared with the same network with the noise written into it by hand. Both take turns in one run.
"""

from __future__ import annotations

import argparse
import functools
import time

import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet152

import rotationout as ro
from rotationout.bench import time_side_by_side

P = 0.2
STAGES = ["layer3", "layer4"]


def inserted() -> nn.Module:
    """By one line."""
    model: nn.Module = resnet18()
    ro.insert(model, ro.RotationOut2d(P), before=nn.Conv2d, within=STAGES)
    return model


def by_hand() -> nn.Module:
    """The same places, each convolution replaced by the noise and itself."""
    model: nn.Module = resnet18()
    places = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    for name, module in places:
        if name.split(".")[0] in STAGES:
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, nn.Sequential(ro.RotationOut2d(P), module))
    return model


def step(model: nn.Module, x: Tensor) -> None:
    """Forward and backward, once."""
    model.zero_grad()
    model(x).square().mean().backward()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    model = resnet152()
    start = time.perf_counter()
    report = ro.insert(model, ro.RotationOut2d(P), before=nn.Conv2d)
    print(f"ResNet-152: {len(report)} places in {time.perf_counter() - start:.3f} s")
    x = torch.randn(8, 3, 64, 64)
    actions = {"by hand": by_hand(), "inserted": inserted(), "by hand again": by_hand()}
    seconds = time_side_by_side({k: functools.partial(step, model, x) for k, model in actions.items()}, options.rounds)
    for name, value in seconds.items():
        print(f"{name:16} {1e3 * value:8.2f} ms  {value / seconds['by hand']:.4f}×")


if __name__ == "__main__":
    main()
