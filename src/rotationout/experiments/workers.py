"""Share a sweep among several processes on one device, each with runs of its own.

A process launches the kernels of all its runs one after the other; where this is the bottleneck, and not the device,
several processes get more done. (Under torchrun, see `rotationout.experiments.processes`, several processes share every
*run*.) Kernels of different processes take turns on a GPU, unless NVIDIA's MPS is running; then they run side by side.
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

from . import processes, progress, results
from .config import Config
from .run import Run
from .signals import handled
from .sweep import sweep

__all__ = ["Share", "share_out"]

Maker = Callable[[Config], Run]


@dataclass(frozen=True)
class Share:
    """The work of one process. It is pickled and sent to the process.

    Args:
        configs: what to run.
        maker: given a device, returns the function that makes the run of a config; it must be picklable, a function at
            the top of a module for example.
        device: the name of the device, see `rotationout.experiments.processes.joined`.
        folder: the folder of the records.
        checkpoints: the folder of the checkpoints of unfinished runs.
        together: how many runs each process does at the same time.
        deadline: stop, with checkpoints, at this `time.time`.
        tensorboard: the folder of TensorBoard scalars, or None for none.
        place: the number of this process, from 0.
        count: the number of processes.

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
    deadline: float = float("inf")
    tensorboard: Path | None = None
    place: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """The name of the process, which its messages begin with."""
        return f"process {self.place + 1} of {self.count}"

    def split(self, count: int) -> list[Share]:
        """Split the configs into ``count`` disjoint shares; fewer if there are not as many configs."""
        count = min(count, len(self.configs))
        return [
            replace(self, configs=list(self.configs[place::count]), place=place, count=count) for place in range(count)
        ]


def share_out(work: Share, count: int) -> list[Config]:
    """Run every config that has no record yet in ``count`` processes; return those left over when time is up.

    Each process runs every ``count``-th config, with `rotationout.experiments.sweep.sweep`; lines on stderr show how
    far they are. SIGINT (Ctrl-C) and SIGTERM are passed on to the processes: all write checkpoints and end, and a
    second signal ends them at once. If this process dies, the others write checkpoints and end, too. A process that
    fails does not stop the others; it is an error once they are done.

    Args:
        work: all configs, and how to run them.
        count: the number of processes.
    """
    if count < 1:
        raise ValueError(f"processes must be at least 1, got {count!r}")
    if processes.launched():
        raise ValueError(f"processes must be 1 under torchrun, whose processes share every run, got {count!r}")
    missing = results.missing(work.folder, work.configs)
    shares = replace(work, configs=missing).split(count)
    lines = progress.Lines(sys.stderr)
    if len(missing) < len(work.configs):
        done = len(work.configs) - len(missing)
        lines.message(f"{done} of {len(work.configs)} runs have a record already")
    children: list[_Child] = []
    with _forwarded_signals(children) as interrupts:
        try:
            with handled(signal.SIG_IGN, signal.SIGINT):  # the children too, to which this process passes it on
                for share in shares:
                    children.append(_Child(share))
            for child in children if interrupts else []:  # those that had not started when the signal came
                child.stop()
            _print_lines(children, lines)
        finally:
            for child in children:
                child.end()
    if interrupts:
        raise KeyboardInterrupt
    _raise_errors(children)
    return results.missing(work.folder, work.configs)


class _Child:
    """A worker process, seen from its parent: the lines that it sends, and how it ended."""

    def __init__(self, share: Share) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork could not use the GPU
        self.share = share
        self.receiver, sender = spawn.Pipe(duplex=False)
        self.error: Exception | None = None
        self.exit_message: str | None = None
        self.process: SpawnProcess = spawn.Process(target=_worker_main, args=(share, sender), name=share.name)
        self.process.start()
        sender.close()  # so that the pipe ends with the process

    def stop(self) -> None:
        """Ask it to write checkpoints and end; called again, to end at once."""
        if self.process.is_alive():
            self.process.terminate()

    def end(self) -> None:
        """Stop it if it is still running, and wait for its end."""
        self.stop()
        self.process.join()
        self.receiver.close()

    def receive(self) -> str | None:
        """The next line that it sends, or None if it has ended; the error that ended it is kept in ``error``."""
        try:
            message = self.receiver.recv()
        except EOFError:
            self.process.join()
            if self.process.exitcode and self.error is None:
                self.exit_message = f"ended with exit code {self.process.exitcode}"
                self.error = ChildProcessError(self.exit_message)
            return None
        if isinstance(message, Exception):
            self.error = message
            return str(message) or repr(message)
        return str(message)


def _print_lines(children: Sequence[_Child], lines: progress.Lines) -> None:
    """Print the lines that the children send, until all have ended."""
    by_receiver = {child.receiver: child for child in children}
    while by_receiver:
        for receiver in connection.wait(list(by_receiver)):
            child = by_receiver[receiver]  # type: ignore[index]
            line = child.receive()
            if line is None:
                del by_receiver[receiver]  # type: ignore[arg-type]
                line = child.exit_message
            if line is not None:
                lines.message(f"{child.share.name}: {line}")


def _raise_errors(children: Sequence[_Child]) -> None:
    """Raise one error for all processes that failed: of their common type, if that is reported in a line."""
    failed = [child for child in children if child.error is not None]
    if not failed:
        return
    text = "; ".join(f"{child.share.name}: {child.error}" for child in failed)
    kinds = {type(child.error) for child in failed}
    kind = next((k for k in (FloatingPointError, ValueError) if kinds == {k}), ChildProcessError)
    raise kind(text) from failed[0].error


@contextmanager
def _forwarded_signals(children: Sequence[_Child]) -> Iterator[list[int]]:
    """Pass SIGINT (Ctrl-C) and SIGTERM on to the children, and collect them in a list."""
    received: list[int] = []

    def forward(number: int, frame: Any) -> None:
        received.append(number)
        for child in children:
            child.stop()

    with handled(forward, signal.SIGINT, signal.SIGTERM):
        yield received


def _worker_main(share: Share, sender: connection.Connection) -> None:
    """The main function of a worker process."""
    if hasattr(os, "setsid"):
        os.setsid()  # else Ctrl-C would reach it twice: from the terminal, and from its parent
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
                limit_seconds=share.deadline - time.time(),
                tensorboard=share.tensorboard,
                out=cast(TextIO, _LineSender(sender)),
            )
    except KeyboardInterrupt:
        return  # checkpoints are written; the parent sees from the records what is left
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        sender.send(error if type(error).__module__ == "builtins" else ChildProcessError(str(error)))


def _stop_with_parent() -> None:
    """Stop this process when its parent has died."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class _LineSender(io.TextIOBase):
    """A text stream that sends every line through a pipe."""

    def __init__(self, sender: connection.Connection) -> None:
        self._sender, self._line = sender, ""

    def write(self, text: str) -> int:
        """Send all complete lines."""
        *lines, self._line = f"{self._line}{text}".split("\n")
        for line in lines:
            try:
                self._sender.send(line)
            except BrokenPipeError:  # the parent has died, and this process is about to be stopped
                break
        return len(text)
