"""Images that do not fit on the device: worker processes read them a few batches ahead, see `sources` for the plan.

The row of the plan alone decides how an image is cropped. So it does not matter which worker reads it, how many there
are, or whether the run was resumed. An image that turns out to be bad is reported when it is read. Its row of the batch
then shows another image of the split, cropped alike, because the network computes batch statistics from all rows. The
targets of that row are those of `NO_IMAGE`: it does not count in the loss. The row of the plan decides this, too.
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
from .sources import NO_IMAGE, Source

__all__ = ["Reader", "Streamed", "workers"]

MOST_WORKERS = 16
SPREAD = 10
"""In the place of a bad image those are tried that come 1/10, 2/10, … of the split later: bad images are often side by
side. As a split with more than a tenth of bad images is refused, it is very unlikely that all of these are bad."""

Tensors = tuple[Tensor, ...]
WorkerBatch = tuple[Tensors | None, list[Problem], list[str]]
"""What a worker returns: a batch, or None if a row of it found no image to show; the images that could not be used; and
the names of those that were not in RGB."""


def workers() -> int:
    """The number of worker processes that read images, for each training process."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // here))


class Reader(abc.ABC):
    """Reads single images in the worker processes. It is pickled and sent to them.

    Attributes:
        split: the name of the split.
        names: the names of its images.
        padding: the row that fills up a test batch where there is no image: a tensor for each part, as `read` returns
            them. All but the first, the pixels, are also the targets of a bad image.
        left_out: images of the split that were left out before, which count among those that are bad.
    """

    split: str
    names: Sequence[str]
    padding: Tensors
    left_out: Sequence[Problem] = ()

    @abc.abstractmethod
    def read(self, row: Sequence[Any]) -> tuple[Tensors, bool]:
        """Read the image of a row of a plan: its tensors, and whether it was not in RGB.

        An image that cannot be used raises `rotationout.experiments.problems.UnusableError`.
        """


class Streamed(Source):
    """A source whose batches are read ahead by worker processes.

    Args:
        reader: reads single images.
        rows: images per batch.
        device: the device of the batches.

    Attributes:
        tensors: the current batch: for each part of ``reader.padding`` a tensor with ``rows`` of it.
    """

    def __init__(self, reader: Reader, rows: int, device: torch.device) -> None:
        super().__init__(rows, device)
        self.reader, self.split = reader, reader.split
        self.tensors = tuple(part.to(device).expand(rows, *part.shape).clone() for part in reader.padding)
        self._sampler = _PlanSampler()
        count = workers()
        others: dict[str, Any] = {"multiprocessing_context": _context(), "persistent_workers": True} if count else {}
        self._loader = DataLoader(
            _Batches(reader),
            batch_size=None,
            sampler=self._sampler,
            num_workers=count,
            collate_fn=_identity,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # the seed of its workers must not come from the run's noise
            **others,
        )
        self._batches = torch.empty(0)
        self._iterator: Iterator[WorkerBatch] | None = None
        self._taken = -1

    def __len__(self) -> int:
        return len(self.reader.names)

    def begin(self, batches: Tensor) -> None:
        """Set the batches to read; reading begins when the first of them is taken."""
        self._batches, self._iterator, self._taken = batches, None, -1

    def take(self, place: int) -> None:
        """Copy a batch to the device, while the workers read the next ones."""
        if place == self._taken:  # it is the current batch already
            return
        if self._iterator is None:
            self._sampler.batches = self._batches[place:]
            self._iterator = iter(self._loader)
        made, problems, converted = next(self._iterator)
        self._taken = place
        self.converted.update(converted)
        self._note(problems)
        if made is None:
            raise ValueError(
                f"no image of {self.split!r} was found that can be used in the place of a bad one; the last that was "
                f"tried: {problems[-1].message}"
            )
        for mine, new in zip(self.tensors, made, strict=True):
            mine.copy_(new, non_blocking=True)

    def close(self) -> None:
        """Stop the workers.

        To drop the loader stops them in order. If the garbage collector found it, it could close their pipes first, and
        a thread would fail.
        """
        self._iterator = None
        vars(self).pop("_loader", None)

    def _note(self, problems: Sequence[Problem]) -> None:
        """Report problems that have not been reported before."""
        known = {problem.name for problem in self.problems}
        for problem in problems:
            if problem.name not in known:
                known.add(problem.name)
                report(problem)
                self.problems.append(problem)
                every = [*self.reader.left_out, *self.problems]
                refuse_if_many(every, [self.split] * (len(self) + len(self.reader.left_out)), "images")


class _PlanSampler:
    """The sampler of the loader: yields the batches of a plan."""

    batches = torch.empty(0)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


class _Batches(Dataset[WorkerBatch]):
    """The data set of the loader: reads whole batches, in the worker processes."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, rows: Tensor) -> WorkerBatch:
        parts: list[Tensors] = []
        problems: list[Problem] = []
        converted: list[str] = []
        for row in rows.tolist():
            part = self.reader.padding if int(row[0]) == NO_IMAGE else self._read(row, problems, converted)
            if part is None:
                return None, problems, converted
            parts.append(part)
        return tuple(torch.stack(column) for column in zip(*parts, strict=True)), problems, converted

    def _read(self, row: Sequence[Any], problems: list[Problem], converted: list[str]) -> Tensors | None:
        """Read the image of a row or, if it is bad, another one without its targets; None if all that are tried are."""
        reader, first, count = self.reader, int(row[0]), len(self.reader.names)
        for number in range(first, first + count, max(1, count // SPREAD)):
            name = reader.names[number % count]
            try:
                part, changed = reader.read([number % count, *row[1:]])
            except UnusableError as error:
                problems.append(error.problem(reader.split, name))
                continue
            converted += [f"{reader.split}/{name}"] if changed else []
            return part if number == first else (part[0], *reader.padding[1:])
        return None


def _identity(made: Any) -> Any:
    return made


def _context() -> BaseContext:
    """Start workers by forkserver: a fork of this process, which has threads (CUDA, NCCL, progress), could deadlock."""
    context = multiprocessing.get_context("forkserver")
    # Slow imports happen once, in the fork server, for all workers.
    context.set_forkserver_preload(["__main__", __name__, "torchvision.transforms.v2.functional"])
    return context


def _ignore_interrupts(worker: int) -> None:
    """Ignore Ctrl-C, which reaches workers too: the run finishes its step, and then stops them itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
