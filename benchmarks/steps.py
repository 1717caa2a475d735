"""Training steps of the recipes on CIFAR-100, on random images: runs to time, and the time of their steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rotationout.experiments.cifar import Images
from rotationout.experiments.classification import Classification, ClassificationConfig

__all__ = ["milliseconds", "runs_of"]

STEPS = 2000
"""Of an epoch: enough that none ends while steps are timed."""


def runs_of(config: ClassificationConfig, count: int = 1, device: str = "cuda") -> list[Classification]:
    """Runs of a config that share their images and differ in their seeds."""
    endless = config.replace(steps=1_000_000, milestones=(), studies=())

    def images(number: int) -> Images:
        pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8, device=device)
        return Images(pixels, torch.randint(100, (number,), device=device))

    both = images(STEPS * config.batch), images(Classification.test_rows)
    return [Classification(endless.replace(seed=seed), both, torch.device(device)) for seed in range(count)]


def milliseconds(runs: Sequence[Classification], seconds: float) -> float:
    """Per run and step, of runs side by side that have done a few steps already."""
    torch.cuda.synchronize()
    begun, rounds = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for run in runs:
            run.advance()
        rounds += 1
        if rounds % 20 == 0:  # the host must not run far ahead
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun) / rounds / len(runs)
