"""Where the images of a run come from: batches of a fixed number of rows, always in the same tensors.

A *plan* is what an epoch will do, a row for every image: which one, and whatever says how it is cut. The run draws
plans with its own generator, and keeps the one of this epoch in its checkpoints: so a run that is resumed goes on as it
would have. A source turns the batches of a plan into images, from memory on the device (`Held`) or from a disk
(`rotationout.experiments.streamed`).
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from .problems import Problem

__all__ = ["NOBODY", "Held", "Source"]

NOBODY = -1
"""The number, and the label, of no image: it fills up a batch."""


class Source(abc.ABC):
    """Images to learn from or to test on.

    Args:
        rows: images of a batch.
        device: where batches are wanted.

    Attributes:
        split: the name of their split, if they have one.
        problems: images that could not be used, found on the way.
        converted: names of images that were not in RGB, likewise.
    """

    split = ""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.problems: list[Problem] = []
        self.converted: set[str] = set()

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    @abc.abstractmethod
    def draw(self, generator: torch.Generator) -> Tensor:
        """The plan of an epoch to learn from: all images in a random order, cut at random, (images, columns)."""

    @abc.abstractmethod
    def still(self) -> Tensor:
        """The plan of a test: all images in their order, each cut as it always is, (images, columns)."""

    @abc.abstractmethod
    def begin(self, batches: Tensor) -> None:
        """Make ready for these batches of a plan, (batches, rows, columns), on the CPU. `NOBODY` is no image."""

    @abc.abstractmethod
    def take(self, place: int) -> None:
        """Make a batch the present one, by its number. They come in order, from any of them on, some perhaps twice."""

    @abc.abstractmethod
    def batch(self) -> tuple[Tensor, ...]:
        """The present batch: images as the network is given them, and what is to be learnt. On a GPU it is captured."""


class Held(Source):
    """Images that are on the device: of a batch nothing has to come but the rows of the plan.

    Args:
        rows: images of a batch.
        columns: those of a plan.
        device: where the images are.
        dtype: of a plan.
    """

    def __init__(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.int64) -> None:
        super().__init__(rows, device)
        self.chosen = torch.zeros(rows, columns, dtype=dtype, device=device)
        self._batches = self.chosen.unsqueeze(0)

    def begin(self, batches: Tensor) -> None:
        """All batches go to the device at once."""
        self._batches = batches.to(self.device)

    def take(self, place: int) -> None:
        """Which images are next; they are on the device already."""
        self.chosen.copy_(self._batches[place])

    def labels_of(self, labels: Tensor) -> Tensor:
        """The labels of the present batch, out of those of all images."""
        numbers = self.chosen[:, 0]
        return labels[numbers].masked_fill(numbers == NOBODY, NOBODY)
