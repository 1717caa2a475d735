"""One run of a sweep: restores its checkpoint, times it, saves it, and writes its record at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from . import processes, results
from .config import Config
from .run import Run
from .scalars import Scalars
from .snapshot import snapshot

__all__ = ["DeviceTime", "Job"]


class DeviceTime:
    """A clock that goes slower the more runs share the device: what it shows between two moments is the share of one.

    >>> clock = DeviceTime()
    >>> clock.set_runs(4)
    >>> began, start = time.monotonic(), clock.seconds
    >>> time.sleep(0.04)
    >>> 0.01 <= clock.seconds - start <= (time.monotonic() - began) / 4
    True
    """

    def __init__(self) -> None:
        self._runs, self._shown, self._last = 1, 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """What it shows."""
        now = time.monotonic()
        self._shown += (now - self._last) / self._runs
        self._last = now
        return self._shown

    def set_runs(self, runs: int) -> None:
        """From now on so many runs share the device; where there are none, the clock goes as with one."""
        self._shown, self._runs = self.seconds, max(1, runs)


class Job:
    """A run from its start, or its checkpoint, to its record.

    If several processes share the run, only the first of them reads and writes files.

    Args:
        config: what to run.
        make: makes the run of a config.
        checkpoints: the folder of its checkpoint, until it ends.
        together: how many runs share the device, for the record.
        tensorboard: the folder for TensorBoard's scalars, or None for none.
        device_time: the clock of all runs on this device.
        writer: writes checkpoints in the background, so that the run need not wait for the disk; None to wait for it.
    """

    def __init__(
        self,
        config: Config,
        make: Callable[[Config], Run],
        checkpoints: Path,
        together: int = 1,
        tensorboard: Path | None = None,
        device_time: DeviceTime | None = None,
        writer: Executor | None = None,
    ) -> None:
        self.config, self.together, self.writer = config, together, writer
        self.label = f"{config.row}, seed {config.seed}"
        self.checkpoint = results.record_path(checkpoints, config).with_suffix(".pt")
        self.run = make(config)
        self.history: dict[str, Any] = {"seconds": 0.0, "device_seconds": 0.0, "machines": []}
        kept = None
        if processes.rank() == 0 and self.checkpoint.exists():
            kept = results.load_checkpoint(self.checkpoint, config)
        kept = processes.from_first(kept)
        if kept is not None:
            self._restore(*kept)
        self.machine = {**results.machine(self.run.device), "processes": processes.size()}
        if self.machine not in self.history["machines"]:
            self.history["machines"].append(self.machine)
        self.step_complete = True
        self._writing: Future[str] | None = None
        self.scalars = None
        if tensorboard is not None and processes.rank() == 0:
            self.scalars = Scalars(results.record_path(tensorboard, config).with_suffix(""), self.run)
        self.earlier_seconds, self.started, self.first_step = self.history["seconds"], time.monotonic(), self.run.step
        self.device_time = device_time or DeviceTime()
        self.device_time_before: float = self.device_time.seconds - self.history["device_seconds"]

    @property
    def seconds(self) -> float:
        """Seconds of work so far, those before it was resumed included."""
        return float(self.earlier_seconds + time.monotonic() - self.started)

    @property
    def device_seconds(self) -> float:
        """This run's share of `seconds`: together with those of all others on the device, all of its time.

        If several processes share the device, each takes the others to have as many runs as it has itself.
        """
        return self.device_time.seconds - self.device_time_before

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to the end, at the speed since it was started or resumed; None before the first step."""
        done = self.run.step - self.first_step
        return (self.config.steps - self.run.step) * (time.monotonic() - self.started) / done if done else None

    def _restore(self, state: dict[str, Any], history: dict[str, Any]) -> None:
        """Continue from a checkpoint; if it does not fit this version of the code, an error names its file."""
        try:
            self.run.restore(state)
            self.history = {name: history[name] for name in self.history}
        except torch.cuda.OutOfMemoryError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(
                f"{self.checkpoint} is damaged, or from another version of this package, and does not fit the run "
                f"({' '.join(str(error).split()) or repr(error)}); move it away to start anew"
            ) from error

    def advance(self) -> str:
        """Do one step, if one is left: a run that was kept because its record could not be written has none.

        If its scalars cannot be written, the run goes on without, and the reason is returned. So is the reason why a
        checkpoint could not be written in the background.
        """
        if self.run.finished:
            return ""
        self.step_complete = False  # until the step is done: a step that breaks off leaves no state to continue from
        self.run.advance()
        self.step_complete = True
        try:
            if self.scalars is not None:
                self.scalars.write(self.run)
        except OSError as error:
            self.scalars = None
            return f"{self.config.recipe}, {self.label}: no more scalars from step {self.run.step} on: {error}"
        return self._written() if self._writing is not None and self._writing.done() else ""

    def save(self, *, wait: bool = True) -> str:
        """Write a checkpoint. If that fails, the last one stays, the run goes on, and the reason is returned.

        If not told to ``wait``, the writer writes it in the background, and `advance` returns the reason later.
        """
        failed = self._written()  # one at a time: memory holds one copy of the state
        if not self.step_complete:
            kept = "the last checkpoint is kept" if self.checkpoint.exists() else "there is no checkpoint of it yet"
            broken = f"{self.config.recipe}, {self.label}: step {self.run.step} broke off; {kept}"
            return f"{failed}\n{broken}" if failed else broken
        if self.run.step == self.first_step:  # nothing is new, and a run without a step may have no state yet
            return ""
        self.history |= {"seconds": self.seconds, "device_seconds": self.device_seconds}
        state = self.run.state()
        if processes.rank():
            return ""
        told = f"{self.config.recipe}, {self.label}: no checkpoint at step {self.run.step}: "
        if wait or self.writer is None:
            return _write(self.checkpoint, self.config, state, self.history, told)
        # Not a method: a run that is given up must not stay in memory until it is written.
        self._writing = self.writer.submit(
            _write, self.checkpoint, self.config, snapshot(state), dict(self.history), told
        )
        return failed

    def _written(self) -> str:
        """Wait for the checkpoint that is being written in the background, if there is one; the reason if it failed."""
        reason = "" if self._writing is None else self._writing.result()
        self._writing = None  # not before: if an interrupt ends the waiting, it is still being written
        return reason

    def finish(self, folder: Path) -> None:
        """Write the record, and delete the checkpoint. If the record cannot be written, the checkpoint is kept."""
        self.save(wait=False)  # before the facts, which take a while
        state, facts = snapshot(self.run.state()), self.run.facts  # before the return below: both need all processes
        self._written()  # or it would come back after it is deleted
        if processes.rank():
            return
        cuda = self.run.device.type == "cuda"
        measured: dict[str, Any] = {
            **self.run.result,
            "epochs": len(self.run.losses),
            **{name: [round(value, 5) for value in values] for name, values in self.run.curves.items()},
            "train_loss": [round(value, 5) for value in self.run.losses],
            **facts,
            "seconds": round(self.seconds, 1),
            "device_seconds": round(self.device_seconds, 1),
            "together": self.together,  # how many runs shared the device, its time and its memory; fewer at times
            "compiled": self.run.compiled,
            "peak_bytes": torch.cuda.max_memory_allocated(self.run.device) if cuda else None,
            **self.machine,
            "machines": self.history["machines"],
        }
        path = results.record_path(folder, self.config)
        try:
            results.refuse_if_recorded(path)  # before the files beside it are replaced
            for ending, content in self.run.files.items():
                results.write_beside(path, ending, content)
            results.write_record(path, self.config, measured)
        except OSError:
            with suppress(OSError, RuntimeError):  # the disk may be full: what matters is why there is no record
                results.save_checkpoint(self.checkpoint, self.config, state, self.history)
            raise
        results.delete_checkpoint(self.checkpoint)

    def close(self) -> None:
        """Close the run, and its TensorBoard scalars, if there are any. What cannot be written any more is lost."""
        self.run.close()
        if self.scalars is not None:
            with suppress(OSError):
                self.scalars.close()


def _write(path: Path, config: Config, state: dict[str, Any], history: dict[str, Any], told: str) -> str:
    """Write a checkpoint; if that fails, the reason, after what is ``told``."""
    try:
        results.save_checkpoint(path, config, state, history)
    except (OSError, RuntimeError) as error:
        # If there is no room, torch only says how many bytes of how many it has written.
        return f"{told}{'is the disk full? ' if isinstance(error, RuntimeError) else ''}{error}"
    return ""
