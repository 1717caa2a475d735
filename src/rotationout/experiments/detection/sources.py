"""Sources of windows on images with their boxes: from images held on the device, or read by worker processes.

In both cases `rotationout.experiments.detection.crops` cuts the windows. A row of the plan has the number of the image,
and the four numbers of its crop. Plans are in fp64, in which the numbers of images are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..pixels import Normalize, decode, read_all, to_tensor
from ..problems import UnusableError
from ..sources import NO_IMAGE, Held, Source
from ..streamed import Reader, Streamed
from . import crops
from .annotations import Split

__all__ = ["HeldSplit", "HeldWindows", "LoadedSplit", "LoadedWindows", "hold", "read_image"]

PLAN = torch.float64
Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""The network's input, (N, 3, window, window); boxes, (N, G, 4), and their labels, (N, G), −1 where there is no box;
whether each image could be read, (N,)."""


def read_image(split: Split, index: int) -> tuple[Tensor, bool]:
    """Read an image, (3, H, W), uint8, of the annotated size; also, whether it was not in RGB."""
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
        split: the split, without images that could not be read.
        window: side of the window in pixels.
        pixels: (images, 3, H, W), uint8; each image is in the upper left corner, the rest is zero.
        sizes: height and width of each image, (images, 2).
        boxes: (images, G, 4).
        labels: labels of the boxes, (images, G), −1 where there is no box.
        converted: the number of images that were not in RGB.
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
        """The source of batches of ``rows`` windows, on the device that holds the images."""
        return HeldWindows(self, rows, scales)


def hold(split: Split, window: int, device: torch.device) -> HeldSplit:
    """Read all images of a split and move them to a device.

    Args:
        split: the split. Images that cannot be read are reported and left out.
        window: side in pixels of the windows that will be cut out.
        device: the device that holds the images.
    """
    found, bad = read_all(split.name, [path.name for path in split.paths], lambda index: read_image(split, index))
    kept = split.without(bad)
    pixels = torch.zeros(len(found), 3, *kept.sizes.amax(0).tolist(), dtype=torch.uint8)
    for place, (image, _) in zip(pixels, found, strict=True):
        place[:, : image.size(1), : image.size(2)] = image
    padded = [kept.padded_boxes(index) for index in range(len(kept))]
    boxes, labels = (torch.stack(column).to(device) for column in zip(*padded, strict=True))
    converted = sum(converted for _, converted in found)
    return HeldSplit(kept, window, pixels.to(device), kept.sizes.to(device), boxes, labels, converted)


class _PlannedWindows(Source):
    """The plans of windows on images, wherever the images are: `HeldWindows` and `LoadedWindows`."""

    window: int
    scales: tuple[int, int]

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and what it goes through: (images, 5)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.column_stack([order.to(PLAN), crops.draw_plans(len(self), self.scales, generator).to(PLAN)])

    def fixed_plan(self) -> Tensor:
        """Each image as large as the window."""
        numbers = torch.arange(len(self), dtype=PLAN)
        return torch.column_stack([numbers, crops.fixed_plans(len(self), self.window).to(PLAN)])


class HeldWindows(_PlannedWindows, Held):
    """Batches of windows that are cut out on the device.

    Args:
        images: all images.
        rows: images per batch.
        scales: the smallest and the largest longer side of training images.
    """

    def __init__(self, images: HeldSplit, rows: int, scales: tuple[int, int]) -> None:
        super().__init__(rows, 5, images.pixels.device, PLAN)
        self.images, self.split = images, images.split.name
        self.window, self.scales = images.window, scales
        self._normalize = Normalize(self.device)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self) -> Batch:
        """The current batch, cut out on the device."""
        images, numbers, plans = self.images, self.chosen[:, 0].long(), self.chosen[:, 1:].float()
        sizes = images.sizes[numbers]
        pixels = crops.cut(images.pixels[numbers], sizes, plans, self.window)
        boxes, labels = crops.move(images.boxes[numbers], images.labels[numbers], sizes, plans, self.window)
        return self._normalize(pixels), boxes, labels, numbers != NO_IMAGE


@dataclass(frozen=True)
class LoadedSplit:
    """A split whose images are read when they are needed.

    Attributes:
        split: the split.
        window: side of the window in pixels.
        converted: zero, as this is found out when images are read.
    """

    split: Split
    window: int
    converted: int = 0

    def __len__(self) -> int:
        return len(self.split)

    def source(self, rows: int, device: torch.device, scales: tuple[int, int]) -> LoadedWindows:
        """The source of batches of ``rows`` windows."""
        return LoadedWindows(self, rows, device, scales)


class _Windows(Reader):
    """Reads windows as bytes, boxes, labels, and True: the image could be read."""

    def __init__(self, images: LoadedSplit) -> None:
        self.images, self.split = images, images.split.name
        self.names = [path.name for path in images.split.paths]
        self.left_out = images.split.bad_images
        blank = torch.zeros(3, images.window, images.window, dtype=torch.uint8)
        max_boxes = images.split.max_boxes
        self.padding = blank, torch.zeros(max_boxes, 4), torch.full((max_boxes,), -1), torch.tensor(False)

    def read(self, row: Sequence[Any]) -> tuple[tuple[Tensor, ...], bool]:
        split, window = self.images.split, self.images.window
        index, plan = int(row[0]), torch.tensor([row[1:]])
        pixels, converted = read_image(split, index)
        size = split.sizes[index : index + 1]
        boxes, labels = (column.unsqueeze(0) for column in split.padded_boxes(index))
        seen = crops.cut(pixels.unsqueeze(0), size, plan, window)
        boxes, labels = crops.move(boxes, labels, size, plan, window)
        return (seen[0], boxes[0], labels[0], torch.tensor(True)), converted


class LoadedWindows(_PlannedWindows, Streamed):
    """Batches of windows on images that worker processes read ahead.

    Args:
        images: the images.
        rows: images per batch.
        device: the device of the batches.
        scales: the smallest and the largest longer side of training images.
    """

    def __init__(self, images: LoadedSplit, rows: int, device: torch.device, scales: tuple[int, int]) -> None:
        super().__init__(_Windows(images), rows, device)
        self.window, self.scales = images.window, scales
        self._normalize = Normalize(device)

    def batch(self) -> Batch:
        """The current batch, normalised."""
        pixels, boxes, labels, usable = self.tensors
        return self._normalize(pixels), boxes, labels, usable
