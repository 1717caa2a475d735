"""Images that fit on the device: all decoded once, cropped and mirrored there."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TextIO

import torch
from torch import Tensor

from ..problems import Problem, refuse_if_many
from ..sources import Held
from .crops import centre_boxes, draw_boxes, resample
from .files import Files
from .pixels import ImageError, Normalize, decode, fit, to_tensor

__all__ = ["HeldImages", "HeldSource", "hold"]


@dataclass(frozen=True)
class HeldImages:
    """Decoded images.

    Attributes:
        pixels: (N, 3, H, W), uint8, each in the upper left corner of its place.
        sizes: height and width of each, (N, 2), int64, on the CPU.
        labels: (N,), int64.
        size: pixels of a crop.
        problems: images that were left out.
        converted: how many were not in RGB.
    """

    pixels: Tensor
    sizes: Tensor
    labels: Tensor
    size: int
    problems: tuple[Problem, ...] = ()
    converted: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def source(self, rows: int, device: torch.device) -> HeldSource:
        """Batches of so many; the device is where they are."""
        return HeldSource(self, rows)


def hold(files: Files, size: int, short: int, device: torch.device, out: TextIO | None = None) -> HeldImages:
    """Decode all images of a split in as many threads as there are processors, and put them on a device.

    Args:
        files: where they are.
        size: pixels of the crops that will be taken of them.
        short: pixels of their short sides; images that differ are resized.
        device: where to keep them.
        out: where to report what is left out, stderr if not given.
    """

    def read(index: int) -> tuple[Tensor, bool] | ImageError:
        try:
            image, converted = decode(files, index)
            return to_tensor(fit(image, short)), converted
        except ImageError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(read, range(len(files))))
    problems = []
    for name, image in zip(files.names, found, strict=True):
        if isinstance(image, ImageError):
            print(f"{image}; it is left out", file=out or sys.stderr)
            problems.append(Problem(files.split, name, image.reason, str(image)))
    refuse_if_many(problems, [files.split] * len(files), "images")
    kept = [(image, label) for image, label in zip(found, files.labels, strict=True) if isinstance(image, tuple)]
    labels = torch.tensor([label for _, label in kept])
    gone = sorted(set(range(len(files.classes))) - set(labels.tolist()))
    if gone:
        raise ValueError(f"no image of {files.split}/{files.classes[gone[0]]} can be used: every class needs one")
    sizes = torch.tensor([image.shape[1:] for (image, _), _ in kept])
    pixels = torch.zeros(len(kept), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)
    for place, ((whole, _), _) in zip(pixels, kept, strict=True):
        place[:, : whole.size(1), : whole.size(2)] = whole
    converted = sum(converted for (_, converted), _ in kept)
    return HeldImages(pixels.to(device), sizes, labels.to(device), size, tuple(problems), converted)


class HeldSource(Held):
    """Batches of images on the device.

    Args:
        images: all of them.
        rows: images of a batch.
    """

    def __init__(self, images: HeldImages, rows: int) -> None:
        super().__init__(rows, 6, images.pixels.device)
        self.images = images
        self._normalize = Normalize(self.device)

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and its box: (images, 6)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.cat([order.unsqueeze(1), draw_boxes(self.images.sizes[order], generator)], dim=1)

    def still(self) -> Tensor:
        """The square in the middle of each image."""
        numbers = torch.arange(len(self)).unsqueeze(1)
        return torch.cat([numbers, centre_boxes(self.images.sizes, self.images.size)], dim=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Cropped on the device."""
        crops = resample(self.images.pixels[self.chosen[:, 0]], self.chosen[:, 1:], self.images.size)
        return self._normalize(crops), self.labels_of(self.images.labels)
