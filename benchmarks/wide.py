"""Training steps of WideResNet28-10 on a GPU, eager and compiled: ``python -m benchmarks.wide``, a few minutes.

The network is compiled block by block, as ``--compile`` does it, or as a whole, which fuses more and takes longer to
compile. ``--compile`` lets cuDNN time all of its algorithms for a convolution; with "ten algorithms" it times at most
ten, its default. "tuned" lets the compiler time the sizes of its own kernels. After one run, several are timed side by
side. Each way is in a process of its own, since compiled code and cuDNN's choices outlive a run. Written as JSON under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor

from rotationout.experiments import run as experiment
from rotationout.experiments.classification import Classification
from rotationout.recipes.cifar100 import TABLES

from .records import RESULTS, write
from .steps import milliseconds, runs_of

ROWS = ("none", "rotation default sigma 0.500")
WAYS = ("eager", "blocks", "blocks, ten algorithms", "blocks, tuned", "whole")


def prepare(way: str, run: Classification) -> None:
    """Before the first step of a run."""
    compiled, _, changed = way.partition(", ")
    if changed == "ten algorithms":
        experiment.ALGORITHMS = 10
    if changed == "tuned":
        inductor.coordinate_descent_tuning = True
    if compiled == "whole":
        run.regions = lambda: [run.network]  # type: ignore[method-assign]
    if compiled != "eager":
        run.compile()


def measure(way: str, row: str, together: Sequence[int], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """For one run and for several, the milliseconds of a run and step, several times.

    ``start_s`` is the time until the runs had done their first steps; it is shorter if torch.compile finds its cache.
    """
    config = {config.row: config for config in TABLES["cifar100_wrn28_10_authors"]()}[row]
    found = []
    for count in together:
        runs = runs_of(config, count)
        begun = time.perf_counter()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # as sweeps have it
            for run in runs:
                prepare(way, run)
                for _ in range(3):
                    run.advance()
            torch.cuda.synchronize()
            started = time.perf_counter() - begun
            steps = [milliseconds(runs, seconds) for _ in range(rounds)]
        peak = torch.cuda.max_memory_allocated()
        found.append({"way": way, "row": row, "together": count, "start_s": started, "ms": steps, "peak_bytes": peak})
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--together", nargs="+", type=int, default=[1, 2], help="runs side by side")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    parser.add_argument("--here", action="store_true", help="measure one way and row in this process, print JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    if options.here:
        way, row = options.ways[0], options.rows[0]
        print(json.dumps(measure(way, row, options.together, options.seconds, options.rounds)))
        return
    steps: list[dict[str, Any]] = []
    for row in options.rows:
        for way in options.ways:
            numbers = ["--seconds", options.seconds, "--rounds", options.rounds, "--together", *options.together]
            command = ["-m", "benchmarks.wide", "--here", "--ways", way, "--rows", row, *map(str, numbers)]
            done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
            for found in json.loads(done.stdout):
                steps.append(found)
                shown = f"{min(found['ms']):6.2f} to {max(found['ms']):.2f} ms per run and step"
                label = f"{row:28} {way:24} {found['together']} at a time"
                print(f"{label} {shown}, first steps after {found['start_s']:.0f} s", flush=True)
    print(f"\nwritten to {write(options.out, 'wide', options.commit, {'steps': steps})}")


if __name__ == "__main__":
    main()
