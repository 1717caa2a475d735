"""Sources of images: batches with a fixed number of rows, always in the same tensors, so that CUDA graphs can use them.

The *plan* of an epoch has a row for every image: its number, and columns that describe its crop. The run draws plans
with its own generator, and keeps the current one in its checkpoints, so that a resumed run sees the same images. A
source turns the batches of a plan into images, from memory on the device (`Held`) or from a disk
(`rotationout.experiments.streamed`).
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from .problems import Problem

__all__ = ["NO_IMAGE", "Held", "Source"]

NO_IMAGE = -1
"""The number, and the label, of a row that is no image: such rows fill up the last batch of a test. Training has no
such rows, but this is also the label of an image that cannot be read."""


class Source(abc.ABC):
    """The training images or the test images of a run, in batches.

    Args:
        rows: images per batch.
        device: the device of the batches.

    Attributes:
        split: the name of the split, if it has one.
        problems: images that turned out to be unusable when they were read.
        converted: names of images that turned out not to be in RGB.
    """

    split = ""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.problems: list[Problem] = []
        self.converted: set[str] = set()

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abc.abstractmethod
    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw the plan of a training epoch: all images in random order with random crops, (images, columns)."""

    @abc.abstractmethod
    def fixed_plan(self) -> Tensor:
        """The plan of a test: all images in their order, with fixed crops, (images, columns)."""

    def check(self) -> None:  # noqa: B027 - images that are held have been read
        """An error if more than a tenth of the images are bad, as far as a quick look at some of them can tell."""

    @abc.abstractmethod
    def begin(self, batches: Tensor) -> None:
        """Prepare for these batches of a plan, (batches, rows, columns), on the CPU. Rows may be `NO_IMAGE`."""

    @abc.abstractmethod
    def take(self, place: int) -> None:
        """Make batch number ``place`` the current one.

        Numbers increase by one from any first one; the same one may come twice in a row.
        """

    @abc.abstractmethod
    def batch(self) -> tuple[Tensor, ...]:
        """The current batch: the network's input, and the targets. On a GPU this is captured in a CUDA graph."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what reads ahead, if anything does: no more batches are taken."""


class Held(Source):
    """A source whose images are all on the device. For a batch only its rows of the plan have to be copied.

    Args:
        rows: images per batch.
        columns: columns of a plan.
        device: the device of the images.
        dtype: the dtype of a plan.
    """

    def __init__(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.int64) -> None:
        super().__init__(rows, device)
        self.chosen = torch.zeros(rows, columns, dtype=dtype, device=device)
        self._batches = self.chosen.unsqueeze(0)

    def begin(self, batches: Tensor) -> None:
        """Copy all batches of the plan to the device."""
        self._batches = batches.to(self.device)

    def take(self, place: int) -> None:
        """Copy the rows of a batch to ``chosen``; the images are on the device already."""
        self.chosen.copy_(self._batches[place])

    def labels_of(self, labels: Tensor) -> Tensor:
        """The labels of the current batch, given those of all images."""
        numbers = self.chosen[:, 0]
        return labels[numbers].masked_fill(numbers == NO_IMAGE, NO_IMAGE)
