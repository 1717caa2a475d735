"""CUDA graphs for work whose shapes depend on one number, such as the length that a batch is padded to."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import processes

__all__ = ["ByLength"]


class ByLength:
    """Work that is given a length: done as it is on a CPU, and on a GPU replayed from a graph for each length.

    The first time a length comes the work is done as it is, which also makes kernels ready; the second time a graph is
    captured, and replayed from then on. So nothing is done twice, and nothing has to be put back. The work must take
    what it needs from, and leave what it finds in, tensors that stay where they are: the graphs share their memory, and
    what one leaves in its own the next overwrites. It must be called on the stream that ``stream`` is, if there is one.

    Args:
        work: what to do.
        stream: that of the run on a GPU, None on a CPU.
        longest: lengths above this are not captured: a graph is as large as the work is long.

    >>> done = []
    >>> listen = ByLength(done.append, None)
    >>> listen(64), listen(128), done
    (None, None, [64, 128])
    """

    def __init__(self, work: Callable[[int], None], stream: torch.cuda.Stream | None, longest: int = 1024) -> None:
        self._work, self._stream, self._longest = work, stream, longest
        self._pool = None if stream is None else torch.cuda.graph_pool_handle()
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, length: int) -> None:
        """Do it for this length."""
        if self._stream is None or length > self._longest:
            self._work(length)
            return
        if length not in self._graphs:
            self._graphs[length] = None
            self._work(length)
            return
        graph = self._graphs[length]
        if graph is None:
            graph = self._graphs[length] = torch.cuda.CUDAGraph()
            mode = processes.capture_mode()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                self._work(length)
        graph.replay()
