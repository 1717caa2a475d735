"""Images that are too many to be held: decoded and cropped by other processes, and sent to the device in batches.

Each image's crop is drawn from a number of its own, which the plan of the epoch has: so it does not matter which
process cuts it, how many there are, or whether the run was stopped in between.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..problems import Problem, refuse_if_many
from ..sources import NOBODY, Source
from .crops import draw_boxes
from .files import Files
from .pixels import ImageError, Normalize, decode, to_tensor

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LoadedImages", "LoadedSource", "workers"]

MOST_WORKERS = 16
STILL = -1
"""In the place of the number that a crop is drawn from: the middle of the image."""


def workers() -> int:
    """Processes that read images, for each process that learns."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // here))


def _context() -> BaseContext:
    """Processes that are no copies of this one, which has threads: of the GPU, of NCCL, of the progress shown."""
    context = multiprocessing.get_context("forkserver")
    # What takes its time to import is imported once for all of them.
    context.set_forkserver_preload(["__main__", __name__, "torchvision.transforms.v2.functional"])
    return context


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches these processes too, but the run wants to end its step, and tells them when it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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


@dataclass(frozen=True)
class _Item:
    """An image as it comes from the disk; without pixels if it is bad."""

    pixels: Tensor | None
    label: int
    number: int
    seed: int = STILL
    converted: bool = False
    reason: str = ""
    message: str = ""


class _Reader(Dataset[_Item]):
    """What processes that read images do; ``rows`` of a plan are a number and what its crop is drawn from."""

    def __init__(self, images: LoadedImages) -> None:
        self.images = images

    def __getitem__(self, row: Sequence[int]) -> _Item:
        number, seed = row
        if number == NOBODY:
            return _Item(None, NOBODY, NOBODY)
        try:
            image, converted = decode(self.images.files, number)
        except ImageError as error:
            return _Item(None, NOBODY, number, seed, reason=error.reason, message=str(error))
        return _Item(to_tensor(self._cut(image, seed)), self.images.files.labels[number], number, seed, converted)

    def _cut(self, image: Image, seed: int) -> Image:
        from torchvision.transforms.v2 import functional as V

        size = [self.images.size] * 2
        if seed == STILL:
            return V.center_crop(V.resize(image, [self.images.short]), size)  # type: ignore[no-any-return]
        box = draw_boxes(torch.tensor([[image.height, image.width]]), torch.Generator().manual_seed(seed))
        *place, mirrored = box[0].tolist()
        crop: Image = V.resized_crop(image, *place, size)
        return V.horizontal_flip(crop) if mirrored else crop


def _collate(size: int, items: Sequence[_Item]) -> tuple[Tensor, Tensor, list[_Item]]:
    """A batch, and what there is to say of its images. In training a bad image's place is taken by another one."""
    good = [item for item in items if item.pixels is not None]
    spare = iter(good * len(items))
    used = [next(spare, item) if item.pixels is None and item.seed != STILL else item for item in items]
    nothing = torch.zeros(3, size, size, dtype=torch.uint8)
    pixels = torch.stack([nothing if item.pixels is None else item.pixels for item in used])
    notes = [_without_pixels(item) for item in items if item.reason or item.converted]
    return pixels, torch.tensor([item.label for item in used]), notes


def _without_pixels(item: _Item) -> _Item:
    return _Item(None, item.label, item.number, item.seed, item.converted, item.reason, item.message)


class _Collate:
    """`_collate` for images of a size; other processes must be able to receive it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, items: Sequence[_Item]) -> tuple[Tensor, Tensor, list[_Item]]:
        return _collate(self.size, items)


class _Batches:
    """The batches that a loader is asked for."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, 0, 2, dtype=torch.int64)

    def __iter__(self) -> Iterator[list[list[int]]]:
        for rows in self.rows:
            yield rows.tolist()


class LoadedSource(Source):
    """Batches of images that are read ahead.

    Args:
        images: where they are.
        rows: images of a batch.
        device: where batches go.
    """

    def __init__(self, images: LoadedImages, rows: int, device: torch.device) -> None:
        super().__init__(rows, device)
        self.images = images
        count = workers()
        self._asked = _Batches()
        self._loader: DataLoader[Any] = DataLoader(
            _Reader(images),
            batch_sampler=self._asked,
            collate_fn=_Collate(images.size),
            num_workers=count,
            persistent_workers=count > 0,
            worker_init_fn=_ignore_interrupts,
            multiprocessing_context=_context() if count else None,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # it wants a seed for its workers, which must not come from the run's noise
        )
        self.pixels = torch.zeros(rows, 3, images.size, images.size, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(rows, dtype=torch.int64, device=device)
        self._normalize = Normalize(device)
        self._batches, self._next = self._asked.rows, 0
        self._arriving: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Which image, and the number that its crop is drawn from: (images, 2)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.stack([order, torch.randint(2**62, (len(self),), generator=generator)], dim=1)

    def still(self) -> Tensor:
        """The middle of each image."""
        return torch.stack([torch.arange(len(self)), torch.full((len(self),), STILL)], dim=1)

    def begin(self, batches: Tensor) -> None:
        """Reading begins when the first batch is taken."""
        self._batches, self._next = batches, -1

    def take(self, place: int) -> None:
        """Send a batch to the device; the ones after it are being read meanwhile."""
        if place == self._next - 1:  # it is there already
            return
        if place != self._next:
            self._asked.rows = self._batches[place:]
            self._arriving = iter(self._loader)
        self._next = place + 1
        pixels, labels, notes = next(self._arriving)
        self._note(notes)
        if bool((labels == NOBODY).all()) and bool((self._batches[place, :, 1] != STILL).all()):
            raise ValueError(f"not one image of a batch of {self.rows} can be used; the last: {notes[-1].message}")
        self.pixels.copy_(pixels, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def batch(self) -> tuple[Tensor, Tensor]:
        """As it came."""
        return self._normalize(self.pixels), self.labels

    def _note(self, items: Sequence[_Item]) -> None:
        """Report what is met for the first time."""
        files = self.images.files
        known = {problem.name for problem in self.problems}
        for item in items:
            name = files.names[item.number]
            if item.converted:
                self.converted.add(f"{files.split}/{name}")
            elif name not in known:
                print(f"{item.message}; it is left out", file=sys.stderr)
                self.problems.append(Problem(files.split, name, item.reason, item.message))
                refuse_if_many(self.problems, [files.split] * len(files), "images")
