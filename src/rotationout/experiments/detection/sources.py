"""Windows on images with boxes: of images that are all held on the device, or read by other processes on the way.

Either way an image goes through `rotationout.experiments.detection.crops` as its row of the plan says: its number, and
the four numbers of what it goes through. Plans are in fp64, which holds any number of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import torch
from torch import Tensor

from ..pixels import Normalize, decode, read_all, to_tensor
from ..problems import UnusableError
from ..sources import NOBODY, Held
from ..streamed import Reader, Streamed
from . import crops
from .annotations import Split

__all__ = ["HeldSplit", "HeldWindows", "LoadedSplit", "LoadedWindows", "hold", "read_image"]

PLAN = torch.float64
Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Windows as the network is given them, (N, 3, window, window); boxes, (N, G, 4), and their labels, (N, G), −1 where
there is none; whether each is of an image that could be read, (N,)."""


def read_image(split: Split, index: int) -> tuple[Tensor, bool]:
    """An image, (3, H, W), uint8, and whether it was not in RGB; it must have the size that was annotated."""
    path, size = split.paths[index], tuple(split.sizes[index].tolist())
    image, converted = decode(path.name, path.read_bytes)
    if (image.height, image.width) != size:
        raise UnusableError(
            "image of another size",
            f"{path.name} must have {size[0]} rows of {size[1]} pixels, got {image.height} of {image.width}",
        )
    return to_tensor(image), converted


@dataclass(frozen=True)
class HeldSplit:
    """A split whose images are all on the device, as bytes.

    Attributes:
        split: without images that could not be read.
        window: pixels of a side of what is cut out.
        pixels: (images, 3, H, W), uint8, each image in the upper left corner of its place.
        sizes: height and width of each, (images, 2).
        boxes: (images, G, 4).
        labels: of the boxes, (images, G), −1 where there is none.
        converted: how many images were not in RGB.
    """

    split: Split
    window: int
    pixels: Tensor
    sizes: Tensor
    boxes: Tensor
    labels: Tensor
    converted: int = 0

    def __len__(self) -> int:
        return len(self.split)

    def source(self, rows: int, device: torch.device, scales: tuple[int, int]) -> HeldWindows:
        """Batches of so many; the device is where they are."""
        return HeldWindows(self, rows, scales)


def hold(split: Split, window: int, device: torch.device, *, out: TextIO | None = None) -> HeldSplit:
    """Read all images of a split, and put them on a device.

    Args:
        split: which images. Those that cannot be read are left out.
        window: pixels of a side of what will be cut out.
        device: where to keep them.
        out: where to report what is left out, stderr if not given.
    """
    found, bad = read_all(split.name, [path.name for path in split.paths], lambda index: read_image(split, index), out)
    if not found:
        raise ValueError(f"{split.source} has no images that can be used")
    kept = split.without(bad)
    pixels = torch.zeros(len(found), 3, *kept.sizes.amax(0).tolist(), dtype=torch.uint8)
    for place, (image, _) in zip(pixels, found, strict=True):
        place[:, : image.size(1), : image.size(2)] = image
    marked = [kept.marked(index) for index in range(len(kept))]
    boxes, labels = (torch.stack(column).to(device) for column in zip(*marked, strict=True))
    converted = sum(converted for _, converted in found)
    return HeldSplit(kept, window, pixels.to(device), kept.sizes.to(device), boxes, labels, converted)


class HeldWindows(Held):
    """Windows that are cut out on the device.

    Args:
        images: what is there.
        rows: images of a batch.
        scales: the least and the largest longer side to learn from.
    """

    def __init__(self, images: HeldSplit, rows: int, scales: tuple[int, int]) -> None:
        super().__init__(rows, 5, images.pixels.device, PLAN)
        self.images, self.scales, self.split = images, scales, images.split.name
        self._normalize = Normalize(self.device)

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and what it goes through: (images, 5)."""
        return _drawn(len(self), self.scales, generator)

    def still(self) -> Tensor:
        """Each image as large as the window."""
        return _still(len(self), self.images.window)

    def batch(self) -> Batch:
        """Cut out on the device."""
        images, numbers, plans = self.images, self.chosen[:, 0].long(), self.chosen[:, 1:].float()
        sizes = images.sizes[numbers]
        pixels = crops.cut(images.pixels[numbers], sizes, plans, images.window)
        boxes, labels = crops.move(images.boxes[numbers], images.labels[numbers], sizes, plans, images.window)
        return self._normalize(pixels), boxes, labels, numbers != NOBODY


@dataclass(frozen=True)
class LoadedSplit:
    """A split whose images stay where they are until they are wanted.

    Attributes:
        split: which images.
        window: pixels of a side of what is cut out.
        converted: of no image it is known before it is read.
    """

    split: Split
    window: int
    converted: int = 0

    def __len__(self) -> int:
        return len(self.split)

    def source(self, rows: int, device: torch.device, scales: tuple[int, int]) -> LoadedWindows:
        """Batches of so many."""
        return LoadedWindows(self, rows, device, scales)


class _Windows(Reader):
    """Windows as bytes, boxes, labels, and that the image could be read."""

    def __init__(self, images: LoadedSplit) -> None:
        self.images, self.split = images, images.split.name
        self.names = [path.name for path in images.split.paths]
        blank = torch.zeros(3, images.window, images.window, dtype=torch.uint8)
        most = images.split.most
        self.nobody = blank, torch.zeros(most, 4), torch.full((most,), -1), torch.tensor(False)

    def read(self, row: Sequence[Any]) -> tuple[tuple[Tensor, ...], bool]:
        split, window = self.images.split, self.images.window
        index, plan = int(row[0]), torch.tensor([row[1:]])
        pixels, converted = read_image(split, index)
        size = split.sizes[index : index + 1]
        boxes, labels = (column.unsqueeze(0) for column in split.marked(index))
        seen = crops.cut(pixels.unsqueeze(0), size, plan, window)
        boxes, labels = crops.move(boxes, labels, size, plan, window)
        return (seen[0], boxes[0], labels[0], torch.tensor(True)), converted


class LoadedWindows(Streamed):
    """Windows on images that are read ahead.

    Args:
        images: where they are.
        rows: images of a batch.
        device: where batches go.
        scales: the least and the largest longer side to learn from.
    """

    def __init__(self, images: LoadedSplit, rows: int, device: torch.device, scales: tuple[int, int]) -> None:
        super().__init__(_Windows(images), rows, device)
        self.images, self.scales = images, scales
        self._normalize = Normalize(device)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and what it goes through: (images, 5)."""
        return _drawn(len(self), self.scales, generator)

    def still(self) -> Tensor:
        """Each image as large as the window."""
        return _still(len(self), self.images.window)

    def batch(self) -> Batch:
        """As it came."""
        pixels, boxes, labels, usable = self.tensors
        return self._normalize(pixels), boxes, labels, usable


def _drawn(count: int, scales: tuple[int, int], generator: torch.Generator) -> Tensor:
    order = torch.randperm(count, generator=generator)
    return torch.column_stack([order.to(PLAN), crops.draw_plans(count, scales, generator).to(PLAN)])


def _still(count: int, window: int) -> Tensor:
    return torch.column_stack([torch.arange(count, dtype=PLAN), crops.still_plans(count, window).to(PLAN)])
