"""Images that are too many to be held, decoded and cropped by other processes: `rotationout.experiments.streamed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..pixels import Normalize, to_tensor
from ..problems import Problem
from ..sources import NOBODY
from ..streamed import Reader, Streamed
from .crops import draw_boxes
from .files import Files

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LoadedImages", "LoadedSource"]

STILL = -1
"""In the place of the number that a crop is drawn from: the middle of the image."""


@dataclass(frozen=True)
class LoadedImages:
    """Images that stay where they are until they are wanted.

    Attributes:
        files: where they are.
        size: pixels of a crop.
        short: to test, pixels of the short side before the middle is cut out.
        problems: none are known before they are read.
        converted: likewise.
    """

    files: Files
    size: int
    short: int
    problems: tuple[Problem, ...] = ()
    converted: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def source(self, rows: int, device: torch.device) -> LoadedSource:
        """Batches of so many."""
        return LoadedSource(self, rows, device)


class _Crops(Reader):
    """Crops of images, and their labels. A row of a plan is a number and what the crop is drawn from."""

    def __init__(self, images: LoadedImages) -> None:
        self.images = images
        self.split, self.names = images.files.split, images.files.names
        blank = torch.zeros(3, images.size, images.size, dtype=torch.uint8)
        self.nobody = blank, torch.tensor(NOBODY)

    def read(self, row: Sequence[int]) -> tuple[tuple[Tensor, ...], bool]:
        number, seed = row
        image, converted = self.images.files.decode(number)
        return (to_tensor(self._cut(image, seed)), torch.tensor(self.images.files.labels[number])), converted

    def _cut(self, image: Image, seed: int) -> Image:
        from torchvision.transforms.v2 import functional as V

        size = [self.images.size] * 2
        if seed == STILL:
            return V.center_crop(V.resize(image, [self.images.short]), size)  # type: ignore[no-any-return]
        box = draw_boxes(torch.tensor([[image.height, image.width]]), torch.Generator().manual_seed(seed))
        *place, mirrored = box[0].tolist()
        crop: Image = V.resized_crop(image, *place, size)
        return V.horizontal_flip(crop) if mirrored else crop


class LoadedSource(Streamed):
    """Batches of images that are read ahead.

    Args:
        images: where they are.
        rows: images of a batch.
        device: where batches go.
    """

    def __init__(self, images: LoadedImages, rows: int, device: torch.device) -> None:
        super().__init__(_Crops(images), rows, device)
        self._normalize = Normalize(device)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and the number that its crop is drawn from: (images, 2)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.stack([order, torch.randint(2**62, (len(self),), generator=generator)], dim=1)

    def still(self) -> Tensor:
        """The middle of each image."""
        return torch.stack([torch.arange(len(self)), torch.full((len(self),), STILL)], dim=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        """As it came."""
        pixels, labels = self.tensors
        return self._normalize(pixels), labels
