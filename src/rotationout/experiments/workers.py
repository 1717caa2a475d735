"""A sweep that is shared out to several processes on one device, each with runs of its own.

One process launches the work of all its runs, one after the other; where that, and not the device, sets the pace,
several get more done. (Under torchrun, see `rotationout.experiments.processes`, several processes share every *run*.)
Kernels of different processes take turns on a GPU, unless NVIDIA's MPS is running; then they run side by side.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TextIO, cast

import torch
import torch.distributed as dist

from . import processes, results
from .config import Config
from .run import Run
from .sweep import sweep

__all__ = ["Share", "share_out"]

Maker = Callable[[Config], Run]


@dataclass(frozen=True)
class Share:
    """What one process does. It is sent to it, so all of it must be picklable.

    Args:
        configs: what to run.
        maker: makes, for a device, what makes the run of a config; a function at the top of a module.
        device: its name, see `rotationout.experiments.processes.joined`.
        folder: where records go.
        checkpoints: where runs are kept until they end.
        together: how many runs of a process share the device.
        ends: stop, with checkpoints, when `time.time` says so.
        tensorboard: where scalars for TensorBoard go, if there are to be any.
        place: which process this is, from 0.
        count: how many there are.

    >>> from functools import partial
    >>> from rotationout.recipes import TABLES
    >>> from rotationout.experiments.tasks import maker
    >>> data, folder, kept = Path("an4.pt"), Path("results"), Path("out/checkpoints")
    >>> work = Share(TABLES["an4"](), partial(maker, data), "cuda", folder, kept, together=3)
    >>> [len(share.configs) for share in work.split(3)]
    [3, 3, 2]
    """

    configs: Sequence[Config]
    maker: Callable[[torch.device], Maker]
    device: str | None
    folder: Path
    checkpoints: Path
    together: int = 1
    ends: float = float("inf")
    tensorboard: Path | None = None
    place: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """What its messages begin with."""
        return f"process {self.place + 1} of {self.count}"

    def split(self, count: int) -> list[Share]:
        """So many shares, no config in two of them; fewer if there are not as many configs."""
        count = min(count, len(self.configs))
        return [
            replace(self, configs=list(self.configs[place::count]), place=place, count=count) for place in range(count)
        ]


def share_out(work: Share, count: int, out: TextIO | None = None) -> list[Config]:
    """Run every config that has no record yet in ``count`` processes, and return those left when time is up.

    Each process runs every ``count``-th of them as `rotationout.experiments.sweep.sweep` does, so no run is in two. An
    interrupt or a polite kill is passed on: all write checkpoints, and a second one ends them at once. If this process
    dies the others stop likewise. A process that fails does not stop the others; once they are done it is an error.

    Args:
        work: all that there is to do.
        count: how many processes.
        out: where they say how far they are, a line now and then; stderr if not given.
    """
    if count < 1:
        raise ValueError(f"processes must be at least 1, got {count!r}")
    if dist.is_available() and dist.is_torchelastic_launched():
        raise ValueError(f"processes must be 1 under torchrun, whose processes share every run, got {count!r}")
    missing = results.missing(work.folder, work.configs)
    shares = replace(work, configs=missing).split(count)
    lines = sys.stderr if out is None else out
    if len(missing) < len(work.configs):
        done = len(work.configs) - len(missing)
        print(f"{done} of {len(work.configs)} runs have a record already", file=lines, flush=True)
    children: list[_Child] = []
    with _passed_on(children) as interrupts:
        try:
            with _deaf_to_the_terminal():
                for share in shares:
                    children.append(_Child(share))
            for child in children if interrupts else []:  # those that were not there yet to be told
                child.stop()
            _follow(children, lines)
        finally:
            for child in children:
                child.end()
    if interrupts:
        raise KeyboardInterrupt
    _raise_errors(children)
    return results.missing(work.folder, work.configs)


class _Child:
    """A process at work, seen from here: what it says, and how it ended."""

    def __init__(self, share: Share) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork could not use the GPU
        self.share = share
        self.ear, mouth = spawn.Pipe(duplex=False)
        self.error: Exception | None = None
        self.death: str | None = None
        self.process: SpawnProcess = spawn.Process(target=_work, args=(share, mouth), name=share.name)
        self.process.start()
        mouth.close()  # so that the pipe ends with the process

    def stop(self) -> None:
        """Ask it to write checkpoints and end; twice: to end."""
        if self.process.is_alive():
            self.process.terminate()

    def end(self) -> None:
        """It has ended, or is made to."""
        self.stop()
        self.process.join()
        self.ear.close()

    def listen(self) -> str | None:
        """A line that it says, or None if it says no more; the error that ended it is kept."""
        try:
            heard = self.ear.recv()
        except EOFError:
            self.process.join()
            if self.process.exitcode and self.error is None:
                self.death = f"ended with exit code {self.process.exitcode}"
                self.error = ChildProcessError(self.death)
            return None
        if isinstance(heard, Exception):
            self.error = heard
            return str(heard) or repr(heard)
        return str(heard)


def _follow(children: Sequence[_Child], out: TextIO) -> None:
    """Print what they say until all have ended."""
    speaking = {child.ear: child for child in children}
    while speaking:
        for ear in connection.wait(list(speaking)):
            child = speaking[ear]  # type: ignore[index]
            line = child.listen()
            if line is None:
                del speaking[ear]  # type: ignore[arg-type]
                line = child.death
            if line is not None:
                print(f"{child.share.name}: {line}", file=out, flush=True)


def _raise_errors(children: Sequence[_Child]) -> None:
    """One error for all processes that failed: of the type they agree in, if it can be told in a line."""
    failed = [child for child in children if child.error is not None]
    if not failed:
        return
    text = "; ".join(f"{child.share.name}: {child.error}" for child in failed)
    kinds = {type(child.error) for child in failed}
    kind = next((k for k in (FloatingPointError, ValueError) if kinds == {k}), ChildProcessError)
    raise kind(text) from failed[0].error


@contextmanager
def _passed_on(children: Sequence[_Child]) -> Iterator[list[int]]:
    """Pass Ctrl-C and a polite kill on to the children, and list them."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield received
        return

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        for child in children:
            child.stop()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deaf_to_the_terminal() -> Iterator[None]:
    """Processes that are started here do not hear Ctrl-C, which this one passes on to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(share: Share, mouth: connection.Connection) -> None:
    """What a process does."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C would reach it twice: from the terminal, and from the first process
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with processes.joined(share.device) as device:
            if device.type == "cpu":
                torch.set_num_threads(max(1, torch.get_num_threads() // share.count))
            sweep(
                share.configs,
                share.maker(device),
                folder=share.folder,
                checkpoints=share.checkpoints,
                together=share.together,
                siblings=share.count,
                limit_seconds=share.ends - time.time(),
                tensorboard=share.tensorboard,
                out=cast(TextIO, _Spoken(mouth)),
            )
    except KeyboardInterrupt:
        return  # checkpoints are written, and what is left is seen from the records
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        mouth.send(error if type(error).__module__ == "builtins" else ChildProcessError(str(error)))


def _stop_with_parent() -> None:
    """Stop when the process that started this one has died without saying so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class _Spoken(io.TextIOBase):
    """A text stream that sends every line through a pipe."""

    def __init__(self, mouth: connection.Connection) -> None:
        self._mouth, self._line = mouth, ""

    def write(self, text: str) -> int:
        """Send the lines that are whole."""
        *lines, self._line = f"{self._line}{text}".split("\n")
        for line in lines:
            try:
                self._mouth.send(line)
            except BrokenPipeError:  # nobody listens any more, and this process is about to be stopped
                break
        return len(text)
