"""CUDA graphs of a training run: repeated work is captured once and replayed, on a stream of the run's own.

On a CPU the same classes just call the work.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

__all__ = ["Action", "ByLength", "Graphs"]

TRIALS = 3
"""An action is run so often before it is captured, for libraries to choose their algorithms and to allocate."""
LONGEST = 1024
"""`ByLength` captures no length above this: the size of a graph grows with the length."""


class Action:
    """A function without arguments that is called or, once captured, replayed.

    It must read its inputs from, and write its results to, tensors that keep their address.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._do = work

    def __call__(self) -> None:
        """Call the work, or replay its graph."""
        self._do()

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Capture the work; calls replay the graph from now on."""
        self._do = _captured(self._do, stream)


class ByLength:
    """Work whose tensors depend on a length: on a GPU each length has a graph of its own, on a CPU it is just called.

    The first call with a length runs the work itself, which also warms libraries up. The second call captures a graph
    and replays it, as all later ones do. So there are no trial runs whose effects must be undone. The graphs share one
    memory pool, and each overwrites what the one before left there. The pool grows by what does not fit, and never
    shrinks: therefore capturing a length also captures all longer ones seen so far, the longest first. As for `Action`,
    the work reads from and writes to tensors that keep their address.

    Args:
        work: the function, given the length.
        stream: the stream of the run, on which it is called; None on a CPU, or to capture nothing.
        pool: the memory pool to share with other graphs of this run, see `torch.cuda.graph_pool_handle`; by default a
            new one.
        patience: capture nothing in this many first calls: by then most lengths have been seen.

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
        """Do the work for this length, by its graph if there is one."""
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
        """Capture this length and all longer ones seen so far that have no graph yet."""
        for known in sorted(self._replays, reverse=True):
            if known >= length and self._replays[known] is None:
                self._replays[known] = _captured(partial(self._work, known), stream, self._pool)


def _captured(work: Callable[[], None], stream: torch.cuda.Stream, pool: Any = None) -> Callable[[], None]:
    """A function that replays ``work``. Capturing records the work without doing it."""
    graph = torch.cuda.CUDAGraph()
    # NCCL has a thread that watches collectives, and data loaders one that pins memory: their calls to the driver must
    # not invalidate the capture.
    with _no_garbage(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Turn garbage collection off: it could free the graphs of a run that has ended, which may break a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Graphs:
    """The stream, the memory pool and the actions of one run.

    Args:
        device: the device of the run. On a CPU nothing is captured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = torch.cuda.graph_pool_handle() if self._stream is not None else None
        self._actions: list[Action] = []

    def add(self, work: Callable[[], None]) -> Action:
        """An `Action` of ``work``, which `capture` will capture."""
        self._actions.append(Action(work))
        return self._actions[-1]

    def by_length(self, work: Callable[[int], None], *, captured: bool = True, patience: int = 0) -> ByLength:
        """A `ByLength` of ``work``, which shares the memory pool of the run."""
        return ByLength(work, self._stream if captured else None, self._pool, patience=patience)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Work on the run's own stream, after what was launched before on the current one."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Wait until all work on the stream is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def capture(self, around: Callable[[Action], AbstractContextManager[None]]) -> None:
        """Capture every action, within the context ``around(action)``.

        Each is first run `TRIALS` times: the caller must undo what that changes.
        """
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
