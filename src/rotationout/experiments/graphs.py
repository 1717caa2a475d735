"""Work that a run does again and again: on a GPU on a stream of its own, and captured in CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

__all__ = ["Action", "ByLength", "Graphs"]

TRIALS = 3
"""Before an action is captured it is done so often, for libraries to choose their algorithms and to allocate."""
LONGEST = 1024
"""Work that is longer than this is not captured: a graph is as large as the work is long."""


class Action:
    """Work that is done as it is or, once captured, replayed.

    It must take what it needs from, and leave what it finds in, tensors that stay where they are.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._do = work

    def __call__(self) -> None:
        """Do it."""
        self._do()

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Replay it from now on."""
        self._do = _captured(self._do, stream)


class ByLength:
    """Work that is given a length: on a GPU it is replayed from a graph for each, on a CPU done as it is.

    The first time a length comes the work is done as it is, which also makes libraries ready; the second time a graph
    is captured, and replayed from then on. So nothing is done in vain, and nothing has to be put back. The graphs share
    their memory: what one leaves there the next overwrites. It grows by what does not fit, and a graph's memory is
    never given back; so with a length all longer ones that have come are captured too, the longest first. Otherwise as
    for `Action`.

    Args:
        work: what to do.
        stream: that of the run, on which it is called; None on a CPU, or if nothing shall be captured.
        pool: the memory to share with other graphs of this run, see `torch.cuda.graph_pool_handle`; by default its own.
        patience: capture nothing in the first so many calls, so that most lengths have come by then.

    >>> done = []
    >>> listen = ByLength(done.append, None)
    >>> listen(64), listen(128), done
    (None, None, [64, 128])
    """

    def __init__(
        self, work: Callable[[int], None], stream: torch.cuda.Stream | None, pool: Any = None, *, patience: int = 0
    ) -> None:
        self._work, self._stream, self._patience = work, stream, patience
        self._pool = torch.cuda.graph_pool_handle() if stream is not None and pool is None else pool
        self._replays: dict[int, Callable[[], None] | None] = {}

    def __call__(self, length: int) -> None:
        """Do it for this length."""
        if self._stream is None or length > LONGEST:
            self._work(length)
            return
        self._patience -= 1
        if length in self._replays and self._patience < 0:
            self._capture_down_to(length, self._stream)
        replay = self._replays.setdefault(length, None)
        if replay is None:
            self._work(length)
        else:
            replay()

    def _capture_down_to(self, length: int, stream: torch.cuda.Stream) -> None:
        """Capture this length and all longer ones that have come, unless they are."""
        for known in sorted(self._replays, reverse=True):
            if known >= length and self._replays[known] is None:
                self._replays[known] = _captured(partial(self._work, known), stream, self._pool)


def _captured(work: Callable[[], None], stream: torch.cuda.Stream, pool: Any = None) -> Callable[[], None]:
    """What replays ``work``, which is looked at but not done."""
    graph = torch.cuda.CUDAGraph()
    # NCCL has a thread that looks after exchanges, and loaders one that pins memory; what these ask the driver must not
    # end the capture.
    with _no_garbage(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is collected inside: graphs of runs that have ended hang in cycles, and to free one may end a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Graphs:
    """The actions of one run.

    Args:
        device: where they happen. On a CPU all this changes nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = torch.cuda.graph_pool_handle() if self._stream is not None else None
        self._actions: list[Action] = []

    def add(self, work: Callable[[], None]) -> Action:
        """What does ``work`` when it is called."""
        self._actions.append(Action(work))
        return self._actions[-1]

    def by_length(self, work: Callable[[int], None], *, captured: bool = True, patience: int = 0) -> ByLength:
        """What does ``work`` for a length when it is called, see `ByLength`; the graphs of a run share their memory."""
        return ByLength(work, self._stream if captured else None, self._pool, patience=patience)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Work on the run's own stream, after what was begun outside."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Until all is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def capture(self, around: Callable[[Action], AbstractContextManager[None]]) -> None:
        """Capture every action, in the context that ``around`` gives for it. Trials come first, and change things."""
        if self._stream is None:
            return
        for action in self._actions:
            with around(action):
                with self.on_stream():
                    for _ in range(TRIALS):
                        action()
                torch.cuda.synchronize(self.device)
                action.capture(self._stream)
        self.captured = True
