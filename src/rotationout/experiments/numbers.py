"""Random numbers of its own for every run, though layers draw from torch's default generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["SEED_STRIDE", "Numbers"]

SEED_STRIDE = 1_000_003
"""From a process's seed to the next one's: more than anyone has seeds. It could not be 2³²: torch's generator on a CPU
sees no more bits than that."""


class Numbers:
    """A stream of random numbers that takes the place of torch's default one while a run is at work.

    So runs that share a process do not disturb each other, and what a run draws depends on its seed alone. Processes
    that share a run draw the same initial weights, and each its own noise: theirs starts at another seed.

    Args:
        seed: where it starts.
        device: whose default generator is replaced.
        rank: which of the processes that share a run this is.
    """

    def __init__(self, seed: int, device: torch.device, rank: int = 0) -> None:
        self.device, self.rank = device, rank
        self.seed = seed + SEED_STRIDE * rank
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._cuda = torch.Generator(device).manual_seed(self.seed) if device.type == "cuda" else None

    @contextmanager
    def initial(self) -> Iterator[None]:
        """Draw on the CPU, whatever the device: initial weights are the same everywhere."""
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
    def used(self) -> Iterator[None]:
        """Draw on the device."""
        if self._cuda is None:
            with self._on_cpu():
                yield
            return
        default = torch.cuda.default_generators[self.device.index or 0]
        outer = default.graphsafe_get_state()
        default.graphsafe_set_state(self._cuda.graphsafe_get_state())  # a CUDA graph keeps the one it was captured with
        try:
            yield
        finally:
            default.graphsafe_set_state(outer)

    def state(self) -> Tensor:
        """Where the stream is."""
        return self._cpu if self._cuda is None else self._cuda.get_state()

    def restore(self, state: Tensor) -> None:
        """Go on from a `state`; one of another kind of device does not fit, and the stream stays where it is."""
        if state.numel() != self.state().numel():
            return
        if self._cuda is None:
            self._cpu = state
        else:
            self._cuda.set_state(state)
