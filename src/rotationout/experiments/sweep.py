"""Run many configs until each has a record: side by side on one device, or each shared by the processes of torchrun."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from . import processes, progress, results
from .config import Config
from .job import DeviceTime, Job
from .run import Run
from .signals import handled

__all__ = ["sweep"]

CHECKPOINT_SECONDS = 45.0
"""Time from checkpoint to checkpoint: a kill loses less than a minute."""
ROUNDS_TO_AGREE = 10
"""Processes that share runs agree on whether to stop or save once in so many steps, not at every step."""


def sweep(
    configs: Sequence[Config],
    make: Callable[[Config], Run],
    *,
    folder: Path,
    checkpoints: Path,
    together: int = 1,
    siblings: int = 1,
    limit_seconds: float = float("inf"),
    tensorboard: Path | None = None,
    out: TextIO | None = None,
) -> list[Config]:
    """Run every config that has no record yet, ``together`` at a time; return those left over when time is up.

    After an interrupt the current step is finished and checkpoints are written. A run whose loss is NaN or infinite is
    given up. A run whose record another process has written meanwhile is kept as a checkpoint. Both are errors once the
    other runs are done.

    Args:
        configs: what to run.
        make: makes the run of a config, see `rotationout.experiments.tasks.maker`.
        folder: the folder of the records.
        checkpoints: the folder of the checkpoints of unfinished runs.
        together: how many runs this process does at the same time on the device.
        siblings: how many processes do so on the same device, see `rotationout.experiments.workers`; for the records.
        limit_seconds: stop, with checkpoints, after this time.
        tensorboard: the folder of TensorBoard scalars, or None for none.
        out: where to show progress, stderr by default.
    """
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together!r}")
    if together > 1 and processes.size() > 1:
        raise ValueError(f"together must be 1 where {processes.size()} processes share every run, got {together!r}")
    waiting = processes.from_first(_missing(folder, checkpoints, configs) if processes.rank() == 0 else [])
    active: list[Job] = []
    failed: list[FloatingPointError | FileExistsError] = []
    with (
        # Let cuDNN time its algorithms: its default choice is slower for networks with few channels.
        torch.backends.cudnn.flags(enabled=True, benchmark=True),
        progress.shown(sys.stderr if out is None else out, silent=processes.rank() > 0) as display,
        _deferred_interrupts(display) as interrupts,
        ThreadPoolExecutor(1, "checkpoints") as writer,
    ):
        if len(waiting) < len(configs):
            display.message(f"{len(configs) - len(waiting)} of {len(configs)} runs have a record already")
        clock, device_time = _Clock(limit_seconds, interrupts), DeviceTime()
        try:
            while (waiting or active) and not clock.should_stop:
                while waiting and len(active) < together:
                    config = waiting.pop(0)
                    if _recorded_meanwhile(folder, config):
                        display.message(f"{config.recipe}, {config.row}, seed {config.seed}: has a record by now")
                    else:
                        job = Job(config, make, checkpoints, together * siblings, tensorboard, device_time, writer)
                        active.append(job)
                        device_time.set_runs(len(active) * siblings)
                        display.update(active, len(waiting))  # its first step may take long
                ended = False
                for job in active[:]:
                    if not _advance(job, folder, failed, display):
                        active.remove(job)
                        job.close()
                        ended = True
                if ended:  # CUDA graphs are in reference cycles: free their memory
                    device_time.set_runs(len(active) * siblings)
                    del job
                    gc.collect()
                display.update(active, len(waiting))
                clock.tick()
                if clock.should_save and not clock.should_stop:
                    _save(active, display, wait=False)
        finally:
            if clock.should_stop or processes.size() == 1:  # saving needs all processes at the same step
                kept = _save(active, display)
                if kept:
                    display.message(f"{kept} unfinished run{'s are' if kept > 1 else ' is'} kept in {checkpoints}")
            for job in active:  # after saving: processes that read images may take seconds to end
                job.close()
    if clock.interrupted:
        raise KeyboardInterrupt
    if failed:
        raise type(failed[0])("; ".join(map(str, failed)))
    return [job.config for job in active] + waiting


def _advance(
    job: Job, folder: Path, failed: list[FloatingPointError | FileExistsError], display: progress.Display
) -> bool:
    """Do one step; whether the run goes on. If it ended, its record is written, or ``failed`` gets the reason."""
    try:
        trouble = job.advance()
        if trouble:
            display.message(trouble)
        if job.run.finished:
            job.finish(folder)
            display.message(f"{job.config.recipe}, {job.label}: {job.run.summary}")
    except (FloatingPointError, FileExistsError) as error:  # the other runs go on
        display.message(str(error))
        failed.append(type(error)(str(error)))  # a copy without a traceback, which would keep the run in memory
        return False
    return not job.run.finished


def _missing(folder: Path, checkpoints: Path, configs: Sequence[Config]) -> list[Config]:
    """The configs that have no record yet; also, check that records and checkpoints can be written."""
    found = results.missing(folder, configs)
    places = {results.record_path(place, config).parent for place in (folder, checkpoints) for config in found}
    results.check_folders(*places, create=False)  # the data may be missing, and then there is nothing to write
    return found


def _recorded_meanwhile(folder: Path, config: Config) -> bool:
    """Whether another sweep has written a record since this one looked."""
    return processes.from_first(processes.rank() == 0 and not results.missing(folder, [config]))


def _save(jobs: Sequence[Job], display: progress.Display, *, wait: bool = True) -> int:
    """Write checkpoints, or let them be written in the background; return how many runs have one."""
    for trouble in [job.save(wait=wait) for job in jobs]:
        if trouble:
            display.message(trouble)
    return sum(job.checkpoint.exists() for job in jobs)


class _Clock:
    """Decides when to save and when to stop. Processes that share runs decide together, every few ticks."""

    def __init__(self, limit_seconds: float, interrupts: Sequence[int]) -> None:
        self.limit_seconds, self.interrupts = limit_seconds, interrupts
        self.started = self.last_saved = time.monotonic()
        self.ticks, self.timed_out, self.interrupted, self.should_save = 0, False, False, False

    @property
    def should_stop(self) -> bool:
        """Whether it is time to stop."""
        return self.timed_out or self.interrupted

    def tick(self) -> None:
        """Check the time and interrupts; called between steps."""
        self.ticks += 1
        self.should_save = False
        if processes.size() > 1 and self.ticks % ROUNDS_TO_AGREE:
            return
        now = time.monotonic()
        self.timed_out, self.interrupted, self.should_save = processes.any_of(
            now - self.started > self.limit_seconds, bool(self.interrupts), now - self.last_saved > CHECKPOINT_SECONDS
        )
        if self.should_save:
            self.last_saved = now


@contextmanager
def _deferred_interrupts(display: progress.Display) -> Iterator[list[int]]:
    """Collect SIGINT (Ctrl-C) and SIGTERM in a list, so that runs stop between steps and not inside one.

    A second signal interrupts at once, unless several processes share the runs: torchrun sends a second one for each
    that the terminal sends, and itself kills processes that do not stop. The display says so: a step that ends with a
    test may take minutes on a CPU.
    """
    pending: list[int] = []

    def defer(number: int, frame: Any) -> None:
        pending.append(number)
        if len(pending) > 1:
            if processes.size() == 1:
                raise KeyboardInterrupt
            return
        again = "; interrupt again to stop at once" if processes.size() == 1 else ""
        # An error would break off the step: of a stream that was just being written to, or whose reader has gone.
        with suppress(RuntimeError, OSError, ValueError):
            display.message(f"stopping after this step, with a checkpoint{again}")

    with handled(defer, signal.SIGINT, signal.SIGTERM):
        yield pending
