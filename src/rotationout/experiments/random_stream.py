"""A random number stream for every run, which replaces torch's default generator while the run is at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["SEED_STRIDE", "RandomStream"]

SEED_STRIDE = 1_000_003
"""The distance between the seeds of two processes that share a run: larger than the seeds that people use, and not a
multiple of 2³², as torch's CPU generator uses only the low 32 bits of a seed."""


class RandomStream:
    """The random numbers of one run. They replace those of torch's default generator while the run is at work.

    So runs in one process do not affect each other, and what a run draws depends on its seed alone. Processes that
    share a run draw the same initial weights, but different noise: its seed depends on the rank.

    Args:
        seed: seed of the run.
        device: the device whose default generator is replaced.
        rank: the rank of this process among those that share the run.
    """

    def __init__(self, seed: int, device: torch.device, rank: int = 0) -> None:
        self.device, self.rank = device, rank
        self.seed = seed + SEED_STRIDE * rank
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._cuda = torch.Generator(device).manual_seed(self.seed) if device.type == "cuda" else None

    @contextmanager
    def initial_weights(self) -> Iterator[None]:
        """Draw initial weights: on the CPU, whatever the device, so that they are the same everywhere."""
        with self._on_cpu():
            yield
        if self.rank:
            self._cpu = torch.Generator().manual_seed(self.seed).get_state()

    @contextmanager
    def _on_cpu(self) -> Iterator[None]:
        outer = torch.get_rng_state()
        torch.set_rng_state(self._cpu)
        try:
            yield
        finally:
            self._cpu = torch.get_rng_state()
            torch.set_rng_state(outer)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw noise: from the device's default generator, set to this run's stream."""
        if self._cuda is None:
            with self._on_cpu():
                yield
            return
        default = torch.cuda.default_generators[self.device.index or 0]
        outer = default.graphsafe_get_state()
        default.graphsafe_set_state(self._cuda.graphsafe_get_state())  # a CUDA graph keeps the one it captured
        try:
            yield
        finally:
            default.graphsafe_set_state(outer)

    def state(self) -> Tensor:
        """The state of the generator."""
        return self._cpu if self._cuda is None else self._cuda.get_state()

    def restore(self, state: Tensor) -> None:
        """Continue from a `state`. One from another type of device does not fit and is ignored."""
        if state.numel() != self.state().numel():
            return
        if self._cuda is None:
            self._cpu = state
        else:
            self._cuda.set_state(state)
