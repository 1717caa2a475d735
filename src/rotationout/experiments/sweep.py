"""Several training runs side by side on one device, with checkpoints, records and a line of progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from . import results
from .config import Config
from .run import Run

__all__ = ["sweep"]

CHECKPOINT_SECONDS = 45.0
"""A kill loses less than a minute."""


def sweep(
    configs: Sequence[Config],
    make: Callable[[Config], Run],
    *,
    folder: Path,
    checkpoints: Path,
    together: int = 1,
    limit_seconds: float = float("inf"),
    out: TextIO | None = None,
) -> list[Config]:
    """Run every config that has no record yet, ``together`` at a time, and return those left when time is up.

    An interrupt waits for the end of a step, and checkpoints are written. A run whose loss is not a number is given up;
    that is an error, once the others are done.

    Args:
        configs: what to run.
        make: makes the run of a config, see `rotationout.experiments.tasks.maker`.
        folder: where records go.
        checkpoints: where runs are kept until they end.
        together: how many runs share the device.
        limit_seconds: stop, with checkpoints, after so long.
        out: where progress is printed, stderr if not given.
    """
    out = sys.stderr if out is None else out
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together!r}")
    begun = time.monotonic()
    waiting = results.missing(folder, configs)
    if len(waiting) < len(configs):
        print(f"{len(configs) - len(waiting)} of {len(configs)} runs have a record already", file=out)
    active: list[_Task] = []
    failed: list[str] = []
    saved = shown = begun
    # cuDNN's own choice of algorithms is slower by a quarter at these sizes (H200, ResNet110, 8 runs: 6.0 and 4.8 ms).
    with torch.backends.cudnn.flags(enabled=True, benchmark=True), _interrupts_wait() as check:
        try:
            while waiting or active:
                while waiting and len(active) < together:
                    active.append(_Task(waiting.pop(0), make, checkpoints, together))
                for task in active[:]:
                    if task.advance(failed, out):
                        continue
                    active.remove(task)
                    if task.run.finished:
                        task.finish(folder)
                        print(f"\r{task.name}: {task.run.summary}{' ' * 40}", file=out)
                now = time.monotonic()
                if now - saved > CHECKPOINT_SECONDS:
                    saved = now
                    for task in active:
                        task.save(out)
                if now - shown > 1.0:
                    shown = now
                    print(f"\r{_progress(active, len(waiting), now - begun)}", end="", file=out, flush=True)
                if now - begun > limit_seconds:
                    break
                check()
        finally:
            for task in active:
                task.save(out)
            if active:
                print(f"\n{len(active)} unfinished runs are kept in {checkpoints}", file=out)
    if failed:
        raise FloatingPointError("; ".join(failed))
    return [task.config for task in active] + waiting


@contextmanager
def _interrupts_wait() -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C and a polite kill until the function that this gives is called: between steps, not inside one.

    A second one is not held back.
    """
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield lambda: None
        return

    def hold(number: int, frame: Any) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(number)

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Task:
    """A run, its clock, and what its record will say of it."""

    def __init__(self, config: Config, make: Callable[[Config], Run], checkpoints: Path, together: int) -> None:
        self.config, self.together = config, together
        self.name = f"{config.recipe}, {config.row}, seed {config.seed}"
        self.checkpoint = results.record_path(checkpoints, config).with_suffix(".pt")
        self.run = make(config)
        self.history: dict[str, Any] = {"seconds": 0.0, "machines": []}
        if self.checkpoint.exists():
            state, self.history = results.load_checkpoint(self.checkpoint, config)
            self.run.restore(state)
        here = results.machine(self.run.device)
        if here not in self.history["machines"]:
            self.history["machines"].append(here)
        self.before, self.begun, self.first = self.history["seconds"], time.monotonic(), self.run.step

    def advance(self, failed: list[str], out: TextIO) -> bool:
        """One step; false if the run ended, and in ``failed`` why, if it had to."""
        if self.run.finished:  # it was, when it stopped, but its record could not be written
            return False
        try:
            self.run.advance()
        except FloatingPointError as error:
            print(f"\n{error}", file=out)
            failed.append(str(error))
            return False
        return not self.run.finished

    def save(self, out: TextIO) -> None:
        """Write a checkpoint; if the disk is full the last one stays, and the run goes on."""
        self.history["seconds"] = self.before + time.monotonic() - self.begun
        try:
            results.save_checkpoint(self.checkpoint, self.config, self.run.state(), self.history)
        except (OSError, RuntimeError) as error:
            print(f"\n{self.name}: no checkpoint at step {self.run.step}: {error}", file=out)

    def finish(self, folder: Path) -> None:
        """Write the record; the checkpoint is no longer needed. If it cannot be written the run is kept."""
        cuda = self.run.device.type == "cuda"
        measured: dict[str, Any] = {
            **self.run.result,
            "epochs": len(self.run.losses),
            **{name: [round(value, 5) for value in values] for name, values in self.run.curves.items()},
            "train_loss": [round(value, 5) for value in self.run.losses],
            **self.run.facts,
            "seconds": round(self.before + time.monotonic() - self.begun, 1),
            "together": self.together,  # runs that shared the device, its time and its memory
            "peak_bytes": torch.cuda.max_memory_allocated(self.run.device) if cuda else None,
            **self.history["machines"][-1],
            "machines": self.history["machines"],
        }
        try:
            results.write_record(results.record_path(folder, self.config), self.config, measured)
        except OSError:
            results.save_checkpoint(self.checkpoint, self.config, self.run.state(), self.history)
            raise
        self.checkpoint.unlink(missing_ok=True)


def _progress(active: Iterable[_Task], waiting: int, seconds: float) -> str:
    parts = []
    for task in active:
        run = task.run
        done = run.step - task.first
        left = (run.config.steps - run.step) * (time.monotonic() - task.begun) / max(done, 1)
        done_of = f"{run.step}/{run.config.steps}"
        parts.append(f"{run.config.row} {run.config.seed}: {done_of} {run.status} {left / 60:.1f} min")
    return f"[{seconds:.0f} s] {' | '.join(parts)}{f' | {waiting} waiting' if waiting else ''}"
