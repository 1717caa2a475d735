"""Training steps of WideResNet28-10 on a GPU, eager and compiled: ``python -m benchmarks.wide``, a few minutes.

The network is compiled block by block, as ``--compile`` does it, or as a whole, which fuses more and takes longer to
compile. cuDNN times at most ten of its algorithms for a convolution, or all of them. Each way is in a process of its
own, since compiled code and cuDNN's choices outlive a run. Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rotationout.experiments.classification import Classification
from rotationout.recipes.cifar100 import TABLES

from .records import RESULTS, write
from .steps import milliseconds, runs_of

ROWS = ("none", "rotation default sigma 0.500")
WAYS = ("eager", "blocks", "blocks, all algorithms", "whole", "whole, all algorithms")


def prepare(way: str, run: Classification) -> None:
    """Before the first step of a run."""
    compiled, _, algorithms = way.partition(", ")
    torch.backends.cudnn.benchmark_limit = 0 if algorithms else 10
    if compiled == "whole":
        run.regions = lambda: [run.network]  # type: ignore[method-assign]
    if compiled != "eager":
        run.compile()


def measure(way: str, row: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The seconds until a run has done its first steps, and the milliseconds of a step, several times."""
    config = {config.row: config for config in TABLES["cifar100_wrn28_10_authors"]()}[row]
    (run,) = runs_of(config)
    begun = time.perf_counter()
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # as sweeps have it
        prepare(way, run)
        for _ in range(3):
            run.advance()
        torch.cuda.synchronize()
        started = time.perf_counter() - begun
        steps = [milliseconds([run], seconds) for _ in range(rounds)]
    return {"way": way, "row": row, "start_s": started, "ms": steps, "peak_bytes": torch.cuda.max_memory_allocated()}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    parser.add_argument("--here", action="store_true", help="measure one way and row in this process, print JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    if options.here:
        print(json.dumps(measure(options.ways[0], options.rows[0], options.seconds, options.rounds)))
        return
    steps = []
    for row in options.rows:
        for way in options.ways:
            numbers = ["--seconds", str(options.seconds), "--rounds", str(options.rounds)]
            command = [sys.executable, "-m", "benchmarks.wide", "--here", "--ways", way, "--rows", row, *numbers]
            steps.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
            found = steps[-1]
            shown = f"{min(found['ms']):6.2f} to {max(found['ms']):.2f} ms per step"
            print(f"{row:28} {way:24} {shown}, first steps after {found['start_s']:.0f} s", flush=True)
    print(f"\nwritten to {write(options.out, 'wide', options.commit, {'steps': steps})}")


if __name__ == "__main__":
    main()
