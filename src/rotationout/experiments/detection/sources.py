"""Where a run gets its batches from: images that are all held on the device, or read again and again by workers.

Either way an image goes through `rotationout.experiments.detection.crops` as its plan says, and plans are the run's
own: what it learns from depends on its seed alone, and it goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..problems import Problem, refuse_if_many, report
from . import crops
from .annotations import Split

__all__ = ["Batch", "Held", "ImageError", "Source", "Streamed", "Visit", "read_image"]

WORKERS = 8
"""Processes that read images, of each process that learns; fewer where there are fewer cores."""

Visit = tuple[list[int], Tensor]
"""A batch to come: the numbers of its images, and the plan of each, (images, 4), on the CPU."""


class ImageError(ValueError):
    """An image that cannot be used; ``reason`` is what records count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Batch:
    """Windows on images and what they show.

    Attributes:
        indices: the numbers of the images.
        pixels: (N, 3, window, window), uint8.
        boxes: (N, G, 4), fp32.
        labels: (N, G), int64; −1 where there is no box.
        usable: whether the image could be read, (N,), bool.
        problems: why not.
    """

    indices: list[int]
    pixels: Tensor
    boxes: Tensor
    labels: Tensor
    usable: Tensor
    problems: tuple[Problem, ...] = ()


def read_image(path: Path, size: Sequence[int]) -> Tensor:
    """An image, (3, H, W), uint8, which must have the height and the width that were annotated."""
    from torchvision.io import ImageReadMode, decode_image, read_file

    if not path.is_file():
        raise ImageError("missing image", f"{path} is missing")
    try:
        pixels: Tensor = decode_image(read_file(str(path)), ImageReadMode.RGB)
    except RuntimeError as error:
        raise ImageError("damaged image", f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if list(pixels.shape) != [3, *size]:
        raise ImageError(
            "image of another size", f"{path} must have {size[0]} rows of {size[1]} pixels, got {tuple(pixels.shape)}"
        )
    return pixels


class Held:
    """A split whose images are all on the device, as bytes.

    Args:
        split: which images. Those that cannot be read are left out of it.
        window: pixels of a side of what is cut out.
        device: where to keep them.
        out: where to report what is left out, stderr if not given.

    Attributes:
        split: without those.
    """

    def __init__(self, split: Split, window: int, device: torch.device, *, out: TextIO | None = None) -> None:
        bad: dict[int, Problem] = {}
        images: list[Tensor] = []
        for index, (path, size) in enumerate(zip(split.paths, split.sizes.tolist(), strict=True)):
            try:
                images.append(read_image(path, size))
            except ImageError as error:
                bad[index] = Problem(split.name, path.name, error.reason, str(error))
                report(bad[index], out)
        refuse_if_many(bad.values(), [split.name] * len(split), "images")
        self.split, self.window, self.device = split.without(bad), window, device
        if not images:
            raise ValueError(f"{split.source} has no images that can be used")
        height, width = self.split.sizes.amax(0).tolist()
        self.pixels = torch.zeros(len(images), 3, height, width, dtype=torch.uint8, device=device)
        for place, image in enumerate(images):
            self.pixels[place, :, : image.size(1), : image.size(2)] = image.to(device)
        self.sizes = self.split.sizes.to(device)
        marked = [self.split.marked(index, self.split.most) for index in range(len(images))]
        self.boxes = torch.stack([boxes for boxes, _ in marked]).to(device)
        self.labels = torch.stack([labels for _, labels in marked]).to(device)

    def batches(self, visits: Sequence[Visit]) -> Iterator[Batch]:
        """A batch for each visit, cut out on the device when it is asked for.

        Numbers and plans of all visits go there at once: a copy from the host for each would wait for the device.
        """
        if not visits:
            return
        counts = [len(indices) for indices, _ in visits]
        numbers = torch.tensor([index for indices, _ in visits for index in indices]).to(self.device)
        every = torch.cat([plans for _, plans in visits]).to(self.device)
        parts = zip(visits, numbers.split(counts), every.split(counts), strict=True)
        for (indices, _), chosen, plans in parts:
            sizes = self.sizes[chosen]
            yield Batch(
                indices,
                crops.cut(self.pixels[chosen], sizes, plans, self.window),
                *crops.move(self.boxes[chosen], self.labels[chosen], sizes, plans, self.window),
                torch.ones(len(indices), dtype=torch.bool, device=self.device),
            )


class Streamed:
    """A split whose images are read when it is their turn, by worker processes.

    Args:
        split: which images.
        window: pixels of a side of what is cut out.
        pinned: keep batches where a GPU can fetch them by itself.
        workers: how many processes read; none if 0.
    """

    def __init__(self, split: Split, window: int, *, pinned: bool = False, workers: int | None = None) -> None:
        self.split, self.window, self.pinned = split, window, pinned
        self.workers = min(WORKERS, os.cpu_count() or 1) if workers is None else workers

    def batches(self, visits: Sequence[Visit]) -> Iterator[Batch]:
        """A batch for each visit, on the CPU."""
        workers = min(self.workers, len(visits))
        options: dict[str, Any] = {"multiprocessing_context": "forkserver", "prefetch_factor": 2} if workers else {}
        loader = DataLoader(
            _Windows(self.split, self.window, visits),
            batch_size=None,
            num_workers=workers,
            pin_memory=self.pinned,
            generator=torch.Generator(),  # it draws a seed, which must not be the run's
            **options,
        )
        yield from map(_batch, loader)


Source = Held | Streamed


class _Windows(Dataset[tuple[Any, ...]]):
    """The batches of some visits, as plain tuples, by their numbers."""

    def __init__(self, split: Split, window: int, visits: Sequence[Visit]) -> None:
        self.split, self.window, self.visits = split, window, visits

    def __len__(self) -> int:
        return len(self.visits)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        if place >= len(self):
            raise IndexError(place)
        indices, plans = self.visits[place]
        found = [self._window(index, plan.unsqueeze(0)) for index, plan in zip(indices, plans, strict=True)]
        pixels, boxes, labels, problems = zip(*found, strict=True)
        usable = torch.tensor([problem is None for problem in problems])
        named = [vars(problem) for problem in problems if problem is not None]
        return indices, torch.cat(pixels), torch.cat(boxes), torch.cat(labels), usable, named

    def _window(self, index: int, plan: Tensor) -> tuple[Tensor, Tensor, Tensor, Problem | None]:
        split, window = self.split, self.window
        size = split.sizes[index : index + 1]
        boxes, labels = split.marked(index, split.most)
        try:
            pixels = crops.cut(read_image(split.paths[index], size[0].tolist()).unsqueeze(0), size, plan, window)
        except ImageError as error:
            problem = Problem(split.name, split.paths[index].name, error.reason, str(error))
            blank = torch.zeros(1, 3, window, window, dtype=torch.uint8)
            return blank, boxes.unsqueeze(0) * 0, labels.unsqueeze(0) * 0 - 1, problem
        return pixels, *crops.move(boxes.unsqueeze(0), labels.unsqueeze(0), size, plan, window), None


def _batch(read: tuple[Any, ...]) -> Batch:
    indices, pixels, boxes, labels, usable, named = read
    return Batch(list(indices), pixels, boxes, labels, usable, tuple(Problem(**problem) for problem in named))
