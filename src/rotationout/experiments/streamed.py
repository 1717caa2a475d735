"""Images that do not fit on the device: worker processes read them a few batches ahead, see `sources` for the plan.

The row of the plan alone decides how an image is cropped. So it does not matter which worker reads it, how many there
are, or whether the run was resumed. An image that turns out to be bad is reported when it is read. Its row of the batch
then shows another image of the split, cropped alike, because the network computes batch statistics from all rows. The
targets of that row are those of `NO_IMAGE`: it does not count in the loss. The row of the plan decides this, too.

If more than a tenth of a split is bad, the run ends as soon as so many have been read. Of the test split that would be
at the end of an epoch, so a run begins with a look at it: `Streamed.check`.
"""

from __future__ import annotations

import abc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .pixels import MOST_THREADS
from .problems import MOST_BAD, Problem, UnusableError, refuse_if_many, report, report_all
from .sources import NO_IMAGE, Source

__all__ = ["Reader", "Streamed", "workers"]

MOST_WORKERS = 16
SPREAD = 10
"""In the place of a bad image those are tried that come 1/10, 2/10, … of the split later: bad images are often side by
side. As a split with more than a tenth of bad images is refused, it is very unlikely that all of these are bad."""

SAMPLE = 200
"""How many images of a split are read, at most, to find out whether it is fit to be used."""
SUSPICIOUS = MOST_BAD / 2
"""The share of bad images in this sample from which all are read: so a split that is not fit is noticed almost surely,
and one that is fit is not refused for its sample."""

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
        self._note(problems, _report_each)
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

    def check(self) -> None:
        """Read a sample of the images, evenly spread; if many of these are bad, all; an error if too many are bad.

        All processes read the same images. What is bad is reported by the first of them, and not again later.
        """
        plan, left_out = self.fixed_plan(), len(self.reader.left_out)
        sample = plan[:: -(-len(plan) // SAMPLE)]
        self._try(sample)
        expected = left_out + len(plan) * len(self.problems) / len(sample)
        if len(sample) < len(plan) and expected > SUSPICIOUS * (left_out + len(plan)):
            self._try(plan)

    def _try(self, rows: Tensor) -> None:
        """Read the images of some rows of a plan, only to find out which are bad."""

        def attempt(row: Sequence[Any]) -> list[Problem]:
            number = int(row[0])
            try:
                self.reader.read([number, *row[1:]])
            except UnusableError as error:
                return [error.problem(self.split, self.reader.names[number])]
            return []

        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
            found = [problem for problems in pool.map(attempt, rows.tolist()) for problem in problems]
        self._note(found, report_all)

    def _note(self, problems: Sequence[Problem], tell: Callable[[Iterable[Problem]], None]) -> None:
        """Tell of problems that have not been told before, and end the run if they are too many now."""
        known = {problem.name for problem in self.problems}
        new = {problem.name: problem for problem in problems if problem.name not in known}
        if new:
            tell(new.values())
            self.problems += new.values()
            left_out = self.reader.left_out
            refuse_if_many([*left_out, *self.problems], {self.split: len(self) + len(left_out)}, "images")


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


def _report_each(problems: Iterable[Problem]) -> None:
    for problem in problems:
        report(problem)


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
