"""Small runs on a CPU, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .threads import one_thread

__all__ = ["in_order"]

T = TypeVar("T")


def in_order(work: Callable[..., T], runs: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """What ``work`` returns for the arguments of each run, in their order, with a progress bar on stderr.

    Every run has one thread: for many small operations more threads are slower, as they wait.

    Args:
        work: a function of a module, which other processes can import.
        runs: the arguments of each run.
        jobs: runs at a time, each in a process of its own.
    """
    from joblib import Parallel, delayed
    from rich.console import Console
    from rich.progress import track

    results = Parallel(n_jobs=jobs, return_as="generator")(delayed(_alone)(work, each) for each in runs)
    yield from track(results, "Training", total=len(runs), console=Console(stderr=True))


def _alone(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with one_thread():
        return work(*arguments)
