"""Work that a run does again and again: on a GPU on a stream of its own, and captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from . import processes

__all__ = ["Action", "Graphs"]

TRIALS = 3
"""Before an action is captured it is done so often, for libraries to choose their algorithms and to allocate."""


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
        graph = torch.cuda.CUDAGraph()
        # NCCL has a thread that looks after exchanges; what it asks the driver must not end the capture.
        mode = "thread_local" if processes.size() > 1 else "global"
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            self._do()
        self._do = graph.replay


class Graphs:
    """The actions of one run.

    Args:
        device: where they happen. On a CPU all this changes nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._actions: list[Action] = []

    def add(self, work: Callable[[], None]) -> Action:
        """What does ``work`` when it is called."""
        self._actions.append(Action(work))
        return self._actions[-1]

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
