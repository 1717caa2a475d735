"""Images that do not fit on the device: worker processes decode and crop them (`rotationout.experiments.streamed`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..pixels import Normalize, to_tensor
from ..problems import Problem
from ..sources import NO_IMAGE
from ..streamed import Reader, Streamed
from .crops import draw_boxes
from .files import Files

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LoadedImages", "LoadedSource"]

CENTRE_CROP = -1
"""In the plan, instead of the seed of a random crop: take the middle of the image."""


@dataclass(frozen=True)
class LoadedImages:
    """Image files of a split that are read when they are needed.

    Attributes:
        files: the image files.
        size: side of a crop in pixels.
        short: for tests, the short side to which an image is resized before its middle is cut out.
        problems: empty, as problems are found when images are read.
        converted: zero, likewise.
    """

    files: Files
    size: int
    short: int
    problems: tuple[Problem, ...] = ()
    converted: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def source(self, rows: int, device: torch.device) -> LoadedSource:
        """The source of batches of ``rows`` images."""
        return LoadedSource(self, rows, device)


class _Crops(Reader):
    """Reads crops of images and their labels. A row of a plan is the number of an image and the seed of its crop."""

    def __init__(self, images: LoadedImages) -> None:
        self.images = images
        self.split, self.names = images.files.split, images.files.names
        blank = torch.zeros(3, images.size, images.size, dtype=torch.uint8)
        self.padding = blank, torch.tensor(NO_IMAGE)

    def read(self, row: Sequence[int]) -> tuple[tuple[Tensor, ...], bool]:
        number, seed = row
        image, converted = self.images.files.decode(number)
        return (to_tensor(self._cut(image, seed)), torch.tensor(self.images.files.labels[number])), converted

    def _cut(self, image: Image, seed: int) -> Image:
        from torchvision.transforms.v2 import functional as V

        size = [self.images.size] * 2
        if seed == CENTRE_CROP:
            return V.center_crop(V.resize(image, [self.images.short]), size)  # type: ignore[no-any-return]
        box = draw_boxes(torch.tensor([[image.height, image.width]]), torch.Generator().manual_seed(seed))
        *place, mirrored = box[0].tolist()
        crop: Image = V.resized_crop(image, *place, size)
        return V.horizontal_flip(crop) if mirrored else crop


class LoadedSource(Streamed):
    """Batches of images that worker processes read ahead.

    Args:
        images: the images.
        rows: images per batch.
        device: the device of the batches.
    """

    def __init__(self, images: LoadedImages, rows: int, device: torch.device) -> None:
        super().__init__(_Crops(images), rows, device)
        self._normalize = Normalize(device)

    def draw(self, generator: torch.Generator) -> Tensor:
        """The number of each image and the seed of its crop, (images, 2)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.stack([order, torch.randint(2**62, (len(self),), generator=generator)], dim=1)

    def fixed_plan(self) -> Tensor:
        """The number of each image, and `CENTRE_CROP`, (images, 2)."""
        return torch.stack([torch.arange(len(self)), torch.full((len(self),), CENTRE_CROP)], dim=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The current batch, normalised, and its labels."""
        pixels, labels = self.tensors
        return self._normalize(pixels), labels
