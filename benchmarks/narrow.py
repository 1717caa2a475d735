"""Kernels for networks of few channels against torch's, on a GPU: ``python -m benchmarks.narrow``, about a minute.

First come single layers of ResNet110, in bf16 and channels_last, captured in CUDA graphs: convolution, gradients of its
input and its weight (torch gets weights that are rounded already), BatchNorm with a residual and a ReLU; and two
residual blocks, forward and backward. Then training steps of ResNet110 on random images, several runs side by side, and
a test on a thousand images. Written as JSON under benchmarks/results/.

``--search`` times other tiles of the kernels, ``--tiles`` the given ones, one at a time: ``convolved:16=256,3,8`` means
256 positions, 3 taps and 8 warps for 16 channels; see `rotationout.experiments.narrow.tiles`. ``--streams 8`` times
layers as in eight runs side by side, where the latency of a kernel matters less than the resources that it takes from
others: choose tiles by these times. ``--without`` turns off single optimisations by name. Give another ``--out`` with
any of these options.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from rotationout.experiments.classification import Classification
from rotationout.experiments.narrow import conditions, tiles
from rotationout.recipes.cifar100 import TABLES

from .narrow_layers import LAYERS, layers
from .narrow_tiles import SEARCHED, TOUCHED, parsed, set_to
from .records import RESULTS, write
from .steps import milliseconds, runs_of

ROWS = ("none", "rotation default sigma 0.500")
CALLS, REPLAYS = 20, 10
"""Of a layer in a graph, and of the graph."""


def _without_strips() -> None:
    tiles.CONVOLVED[16] = tiles.Tile(128, 1, 8)


def _without_nine() -> None:
    tiles.WEIGHED.update({16: tiles.Tile(128, 3, 8, 1, 264), 32: tiles.Tile(128, 3, 8, 1, 132)})


def _without_statistics() -> None:
    conditions.SUMMED = False


def _without_again() -> None:
    from rotationout.experiments.narrow import batchnorm

    batchnorm.AGAIN = False


def _without_handed() -> None:
    from rotationout.experiments.narrow import handing

    handing.HANDED = False


def _without_settled() -> None:
    conditions.SETTLED = False


def _without_images() -> None:
    conditions.COLOURS = 0


def _without_strides() -> None:
    conditions.STRIDES = False


def _without_registers() -> None:
    for table in (tiles.CONVOLVED, tiles.WEIGHED):
        table.update({channels: tile._replace(registers=0) for channels, tile in table.items()})


WITHOUT = {
    "strips": _without_strips,  # convolutions that go down the images
    "nine": _without_nine,  # gradients of a weight in one product
    "statistics": _without_statistics,  # those of BatchNorm, computed by the convolution before it
    "again": _without_again,  # the ReLU's mask found again from what it was given
    "handed": _without_handed,  # sums for the gradients of BatchNorm, taken by the convolution behind it
    "settled": _without_settled,  # in tests: BatchNorm done by the convolution before it
    "images": _without_images,  # the first convolution, of images
    "strides": _without_strides,  # convolutions that halve maps
    "registers": _without_registers,  # limits of what a thread may have
}
"""What can be turned off."""


def microseconds(works: list[Callable[[], object]]) -> float:
    """Of one call among many in a graph: maps are in the cache as far as they fit, as in a network.

    Several pieces of work, each with its own maps, run side by side on their own streams, as in several runs; the
    result is the time of all of them together per call.
    """
    streams = [torch.cuda.Stream() for _ in works]
    graphs = [_captured(work, stream) for work, stream in zip(works, streams, strict=True)]
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for replays in (1, REPLAYS):  # the first time to warm up
        torch.cuda.synchronize()
        begun.record()
        for stream in streams:
            stream.wait_event(begun)
        for _ in range(replays):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        ended.record()
    torch.cuda.synchronize()
    milliseconds: float = begun.elapsed_time(ended)
    return 1e3 * milliseconds / CALLS / REPLAYS / len(works)


def _captured(work: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            work()
    return graph


def time_layers(streams: int) -> list[dict[str, Any]]:
    """All of them, by torch and by us."""
    rows = []
    for channels, size in LAYERS.items():
        copies = [layers(channels) for _ in range(streams)]
        for name, ways in copies[0].items():
            found = {way: microseconds([copy[name][way] for copy in copies]) for way in ways}
            rows.append({"channels": channels, "layer": name, **found})
            shown = ", ".join(f"{way} {value:6.2f} µs" for way, value in found.items())
            print(f"{channels:2} × {size}²  {name:33} {shown}", flush=True)
    return rows


def time_tiles(chosen: Iterable[tuple[str, int, tuple[int, ...]]], streams: int) -> list[dict[str, Any]]:
    """Time what a tile affects, with that tile; if it does not fit on the GPU, the error instead of a time."""
    rows = []
    for kind, channels, numbers in chosen:
        for name in TOUCHED[kind]:
            with set_to(kind, channels, numbers):
                try:
                    found: float | str = microseconds([layers(channels)[name]["fused"] for _ in range(streams)])
                except Exception as error:
                    found = f"{type(error).__name__}: {error}"
            rows.append({"kind": kind, "channels": channels, "tile": numbers, "layer": name, "fused": found})
            shown = found if isinstance(found, str) else f"{found:6.2f} µs"
            print(f"{channels:2}  {kind:10} {numbers!s:22} {name:33} {shown}", flush=True)
    return rows


def time_steps(kernels: str, row: str, counts: list[int], seconds: float) -> tuple[list[dict[str, Any]], float]:
    """Milliseconds per run and step, with several numbers of runs side by side; and those of a test."""
    base = {config.row: config for config in TABLES["cifar100_resnet110_authors"]()}[row]
    runs = runs_of(base.replace(kernels=kernels), max(counts))
    for run in runs:
        for _ in range(3):
            run.advance()
    rows = []
    for count in counts:
        each = milliseconds(runs[:count], seconds)
        rows.append({"kernels": kernels, "row": row, "count": count, "ms": each})
        print(f"{count:2} × {kernels:6} {row:28} {each:6.2f} ms per run and step", flush=True)
    test = time_test(runs[0], seconds)
    print(f" 1 × {kernels:6} {row:28} {test:6.2f} ms for a test on {Classification.test_rows} images", flush=True)
    del runs, run
    gc.collect()
    torch.cuda.empty_cache()
    return rows, test


def time_test(run: Classification, seconds: float) -> float:
    """Milliseconds, with nothing beside it: as a sweep does it."""
    begun, tests = time.perf_counter(), 0
    with run.execution_context():
        while time.perf_counter() - begun < seconds:
            run.test()  # which waits for its end
            tests += 1
    return 1e3 * (time.perf_counter() - begun) / tests


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", nargs="*", type=int, default=[1, 4, 8], help="runs side by side; none for no steps")
    parser.add_argument("--kernels", nargs="+", choices=["torch", "fused"], default=["torch", "fused"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement of steps")
    parser.add_argument("--layers", action=argparse.BooleanOptionalAction, default=True, help="time layers too")
    parser.add_argument("--streams", type=int, default=1, help="layers are timed on so many at once")
    parser.add_argument("--search", action="store_true", help="time other tiles")
    parser.add_argument("--tiles", nargs="+", type=parsed, default=[], metavar="KIND:CHANNELS=NUMBERS")
    parser.add_argument("--without", nargs="+", choices=list(WITHOUT), default=[], help="turn this off")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    torch.backends.cudnn.benchmark = True  # as sweeps have it: cuDNN at its best
    for name in options.without:
        WITHOUT[name]()
    tried = list(options.tiles)
    if options.search:
        tried += [(kind, c, tile) for kind, table in SEARCHED.items() for c, some in table.items() for tile in some]
    record: dict[str, Any] = {"without": options.without, "streams": options.streams}
    record |= {
        "layers": time_layers(options.streams) if options.layers else [],
        "tiles": time_tiles(tried, options.streams),
    }
    record |= {"steps": [], "tests": []}
    for row in options.rows if options.counts else []:
        for kernels in options.kernels:
            steps, test = time_steps(kernels, row, options.counts, options.seconds)
            record["steps"] += steps
            record["tests"].append({"kernels": kernels, "row": row, "images": Classification.test_rows, "ms": test})
    print(f"\nwritten to {write(options.out, 'narrow', options.commit, record)}")


if __name__ == "__main__":
    main()
