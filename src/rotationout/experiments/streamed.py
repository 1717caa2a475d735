"""Images that are too many to be held: read by other processes, a few batches ahead, and sent to the device.

What becomes of an image is in the rows of the plan alone: so it does not matter which process reads it, how many there
are, or whether the run was stopped in between. An image that turns out to be bad is noted when it is its turn, and
leaves its place in the batch to nobody.
"""

from __future__ import annotations

import abc
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .problems import Problem, UnusableError, refuse_if_many, report
from .sources import NOBODY, Source

__all__ = ["Reader", "Streamed", "workers"]

MOST_WORKERS = 16

Tensors = tuple[Tensor, ...]
Made = tuple[Tensors, list[Problem], list[str]]
"""A batch, the images that could not be used, and the names of those that were not in RGB."""


def workers() -> int:
    """Processes that read images, for each process that learns."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // here))


class Reader(abc.ABC):
    """What the processes that read images know; it is sent to them.

    Attributes:
        split: the name of the split.
        names: of its images.
        nobody: what stands for no image in a batch, a tensor for each part of one.
    """

    split: str
    names: Sequence[str]
    nobody: Tensors

    @abc.abstractmethod
    def read(self, row: Sequence[Any]) -> tuple[Tensors, bool]:
        """What a row of a plan says, as ``nobody``, and whether the image was not in RGB.

        An image that cannot be used raises `rotationout.experiments.problems.UnusableError`.
        """


class Streamed(Source):
    """Batches that are read ahead.

    Args:
        reader: how.
        rows: images of a batch.
        device: where batches go.

    Attributes:
        tensors: the present batch: for each part of ``reader.nobody`` as many of it as there are rows.
    """

    def __init__(self, reader: Reader, rows: int, device: torch.device) -> None:
        super().__init__(rows, device)
        self.reader, self.split = reader, reader.split
        self.tensors = tuple(part.to(device).expand(rows, *part.shape).clone() for part in reader.nobody)
        self._asked = _Asked()
        count = workers()
        others: dict[str, Any] = {"multiprocessing_context": _context(), "persistent_workers": True} if count else {}
        self._loader = DataLoader(
            _Batches(reader),
            batch_size=None,
            sampler=self._asked,
            num_workers=count,
            collate_fn=_as_it_is,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # it wants a seed for its workers, which must not come from the run's noise
            **others,
        )
        self._batches = torch.empty(0)
        self._arriving: Iterator[Made] | None = None
        self._taken = -1

    def __len__(self) -> int:
        return len(self.reader.names)

    def begin(self, batches: Tensor) -> None:
        """Reading begins when the first batch is taken."""
        self._batches, self._arriving, self._taken = batches, None, -1

    def take(self, place: int) -> None:
        """Send a batch to the device; the ones after it are being read meanwhile."""
        if place == self._taken:  # it is there already
            return
        if self._arriving is None:
            self._asked.batches = self._batches[place:]
            self._arriving = iter(self._loader)
        made, problems, converted = next(self._arriving)
        self._taken = place
        self.converted.update(converted)
        self._note(problems)
        for mine, new in zip(self.tensors, made, strict=True):
            mine.copy_(new, non_blocking=True)

    def _note(self, problems: Sequence[Problem]) -> None:
        """Report what is met for the first time."""
        known = {problem.name for problem in self.problems}
        for problem in problems:
            if problem.name not in known:
                report(problem)
                self.problems.append(problem)
                refuse_if_many(self.problems, [self.reader.split] * len(self), "images")


class _Asked:
    """The batches that a loader is asked for: rows of a plan."""

    batches = torch.empty(0)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


class _Batches(Dataset[Made]):
    """What the other processes do."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, rows: Tensor) -> Made:
        reader = self.reader
        parts: list[Tensors] = []
        problems: list[Problem] = []
        converted: list[str] = []
        for row in rows.tolist():
            number, part = int(row[0]), reader.nobody
            if number != NOBODY:
                try:
                    part, other = reader.read(row)
                    converted += [f"{reader.split}/{reader.names[number]}"] if other else []
                except UnusableError as error:
                    problems.append(error.problem(reader.split, reader.names[number]))
            parts.append(part)
        return tuple(torch.stack(column) for column in zip(*parts, strict=True)), problems, converted


def _as_it_is(made: Any) -> Any:
    return made


def _context() -> BaseContext:
    """Processes that are no copies of this one, which has threads: of the GPU, of NCCL, of the progress shown."""
    context = multiprocessing.get_context("forkserver")
    # What takes its time to import is imported once for all of them.
    context.set_forkserver_preload(["__main__", __name__, "torchvision.transforms.v2.functional"])
    return context


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches these processes too, but the run wants to end its step, and tells them when it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
