"""Images that are held on the device: all decoded once, then cropped and mirrored on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..pixels import Normalize, read_all, to_tensor
from ..problems import Problem
from ..sources import Held
from .crops import centre_boxes, draw_boxes, resample
from .files import Files

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LONGEST", "HeldImages", "HeldSource", "fit", "hold"]

LONGEST = 4 / 3
"""The longest side that is kept, as a multiple of the short side; the rest is cut off at both ends."""


@dataclass(frozen=True)
class HeldImages:
    """Decoded images.

    Attributes:
        pixels: (N, 3, H, W), uint8; each image is in the upper left corner, the rest is zero.
        sizes: height and width of each image, (N, 2), int64, on the CPU.
        labels: (N,), int64.
        size: side of a crop in pixels.
        problems: images that were left out.
        converted: the number of images that were not in RGB.
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
        """The source of batches of ``rows`` images, on the device that holds them."""
        return HeldSource(self, rows)


def hold(files: Files, size: int, short: int, device: torch.device) -> HeldImages:
    """Decode all images of a split and move them to a device.

    Args:
        files: the image files. Those that cannot be read are reported and left out.
        size: side in pixels of the crops that will be taken.
        short: short side in pixels to which all images are resized.
        device: the device that holds the images.
    """

    def read(index: int) -> tuple[Tensor, bool]:
        image, converted = files.decode(index)
        return to_tensor(fit(image, short)), converted

    found, bad = read_all(files.split, files.names, read)
    labels = torch.tensor([label for index, label in enumerate(files.labels) if index not in bad])
    gone = sorted(set(range(len(files.classes))) - set(labels.tolist()))
    if gone:
        raise ValueError(f"no image of {files.split}/{files.classes[gone[0]]} can be used: every class needs one")
    sizes = torch.tensor([image.shape[1:] for image, _ in found])
    pixels = torch.zeros(len(found), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)
    for place, (image, _) in zip(pixels, found, strict=True):
        place[:, : image.size(1), : image.size(2)] = image
    converted = sum(converted for _, converted in found)
    return HeldImages(pixels.to(device), sizes, labels.to(device), size, tuple(bad.values()), converted)


def fit(image: Image, size: int) -> Image:
    """Resize an image to a short side of ``size`` pixels, and cut its long side to at most `LONGEST` times that.

    >>> from PIL import Image
    >>> fit(Image.new("RGB", (500, 100)), 128).size, fit(Image.new("RGB", (128, 150)), 128).size
    ((170, 128), (128, 150))
    """
    from PIL.Image import Resampling

    short, long = sorted(image.size)
    longest = int(LONGEST * size)
    if short == size and long <= longest:
        return image
    kept = min(float(long), short * longest / size)
    shape = size, max(size, round(kept * size / short))
    start = (long - kept) / 2
    if image.width <= image.height:
        return image.resize(shape, box=(0, start, short, start + kept), resample=Resampling.BILINEAR)
    return image.resize(shape[::-1], box=(start, 0, start + kept, short), resample=Resampling.BILINEAR)


class HeldSource(Held):
    """Batches of images that are held on the device.

    Args:
        images: all images.
        rows: images per batch.
    """

    def __init__(self, images: HeldImages, rows: int) -> None:
        super().__init__(rows, 6, images.pixels.device)
        self.images = images
        self._normalize = Normalize(self.device)

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, generator: torch.Generator) -> Tensor:
        """The number of each image and its random box, (images, 6)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.cat([order.unsqueeze(1), draw_boxes(self.images.sizes[order], generator)], dim=1)

    def fixed_plan(self) -> Tensor:
        """The number of each image and the square in its middle, (images, 6)."""
        numbers = torch.arange(len(self)).unsqueeze(1)
        return torch.cat([numbers, centre_boxes(self.images.sizes, self.images.size)], dim=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The current batch, cropped on the device, and its labels."""
        crops = resample(self.images.pixels[self.chosen[:, 0]], self.chosen[:, 1:], self.images.size)
        return self._normalize(crops), self.labels_of(self.images.labels)
