"""Progress of a sweep: bars on a terminal, elsewhere a line every half minute, which does not fill a log."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from .job import Job

__all__ = ["Bars", "Display", "Lines", "shown"]


@contextmanager
def shown(out: TextIO | None, *, silent: bool = False) -> Iterator[Display]:
    """`Bars` if ``out`` is a terminal and rich is installed, else `Lines`; a mute display if ``silent``.

    So it is without ``out``: Python's stderr is None where the shell has closed it.
    """
    if silent or out is None:
        yield Display()
    elif out.isatty() and importlib.util.find_spec("rich"):
        with Bars(out) as bars:
            yield bars
    else:
        yield Lines(out)


class Display:
    """A display that shows nothing, for all processes but the first; the base of the others."""

    seconds = float("inf")
    """The time from one update to the next."""

    def __init__(self) -> None:
        self.begun, self._changed = time.monotonic(), float("-inf")

    def message(self, text: str) -> None:
        """Print a message that stays."""

    def update(self, jobs: Sequence[Job], waiting: int) -> None:
        """Show the progress of runs, at first and whenever enough time has passed since."""
        now = time.monotonic()
        if now - self._changed >= self.seconds:
            self._changed = now
            self.show(jobs, waiting)

    def show(self, jobs: Sequence[Job], waiting: int) -> None:
        """Show the progress of active runs, and how many are waiting."""


class Lines(Display):
    """A line for all runs, every half minute."""

    seconds = 30.0

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out

    def message(self, text: str) -> None:
        """Print a line. If the disk of a log is full, the line is lost and the runs go on."""
        try:
            print(text, file=self.out, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            pass

    def show(self, jobs: Sequence[Job], waiting: int) -> None:
        """Print one line: seconds since the start, then every run."""
        parts = [f"{job.label}: {job.run.step}/{job.config.steps} {_state(job)}".rstrip() for job in jobs]
        if waiting:
            parts.append(f"{waiting} waiting")
        if parts:
            self.message(f"[{time.monotonic() - self.begun:.0f} s] {' | '.join(parts)}")


class Bars(Display):
    """A bar for every run, with its loss, its score and the time it has left."""

    seconds = 0.5

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(file=out, highlight=False),
            auto_refresh=False,
        )
        self._bars: dict[Path, Any] = {}  # by their checkpoints: a job would keep a run that has ended in memory

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text, markup=False)

    def show(self, jobs: Sequence[Job], waiting: int) -> None:
        """Update the bars of active runs, and remove those of runs that have ended."""
        for ended in self._bars.keys() - {job.checkpoint for job in jobs}:
            self._progress.remove_task(self._bars.pop(ended))
        for job in jobs:
            if job.checkpoint not in self._bars:
                self._bars[job.checkpoint] = self._progress.add_task(job.label, total=job.config.steps, state="")
            more = f" (and {waiting} waiting)" if waiting and job is jobs[-1] else ""
            self._progress.update(self._bars[job.checkpoint], completed=job.run.step, state=f"{_state(job)}{more}")
        self._progress.refresh()


def _state(job: Job) -> str:
    """The loss and the score of the last epoch, and the time left."""
    parts = [f"loss {job.run.losses[-1]:.3f}"] if job.run.losses else []
    left = job.seconds_left
    if left is not None:
        parts += [job.run.status, f"{left / 60:.1f} min left"]
    return ", ".join(part for part in parts if part)
