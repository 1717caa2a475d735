"""``rotationout train`` and ``rotationout sweep``: run a row of a table, or all rows that have no record."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, Json, Recipe, rows_of, some_rows
from .output import print_json
from .trouble import INTERRUPTED, UNFINISHED, chosen, misuse, say

if TYPE_CHECKING:
    import torch

    from ..experiments.config import Config
    from ..experiments.run import Run

__all__ = ["numbers", "sweep", "train"]

MOST_SEED = 2**32 - 1
"""Torch's CPU generator ignores the higher bits of a seed."""
MOST_SEEDS = 10_000
"""More runs of each row are a slip of the hand, whose list could fill the memory."""

Data = Annotated[Path, typer.Option("--data", metavar="PATH", exists=True, help="The data set, as described above.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write records to.")]
Checkpoints = Annotated[
    Path, typer.Option("--checkpoints", metavar="DIR", help="Folder for checkpoints of unfinished runs.")
]
Compile = Annotated[bool, typer.Option("--compile", help="Use torch.compile: faster steps, after a longer start.")]
Tensorboard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="Write scalars for TensorBoard here.")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0, help="Stop after this time, with checkpoints and exit code 3.")
]


@dataclass(frozen=True)
class Way:
    """How runs are made: everything but their configs."""

    data: Path
    out: Path
    checkpoints: Path
    device: str | None
    compile: bool
    tensorboard: Path | None
    minutes: float | None
    together: int = 1
    processes: int = 1

    @property
    def seconds(self) -> float:
        """How long it may take."""
        return float("inf") if self.minutes is None else 60 * self.minutes


def train(
    recipe: Recipe,
    data: Data,
    row: Annotated[
        str | None,
        typer.Option(
            "--row", metavar="NAME", help="Row of the table; the first if not given.", autocompletion=some_rows
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, data order and noise.")] = 0,
    out: Out = Path("results"),
    checkpoints: Checkpoints = Path("out/checkpoints"),
    device: Device = None,
    compile: Compile = False,  # the name of the option
    tensorboard: Tensorboard = None,
    minutes: Minutes = None,
    json: Json = False,
    **fields: str | None,
) -> None:
    """Run one row of a table and write its record.

    A run that was stopped continues from its checkpoint, and one that has a record is not run again. The options listed
    as fields change the config of the row; the record then gets a name that says what was changed. With --json the
    record is printed. Under torchrun several processes share the run.

    Example:
        rotationout train an4 --row rotation --seed 0 --data an4.pt
        rotationout train an4 --row rotation --p 0.1 --data an4.pt
    """
    if seed < 0:
        misuse(f"must not be negative, got {seed}", "--seed")
    if seed > MOST_SEED:
        misuse(f"must be at most {MOST_SEED}, got {seed}", "--seed")
    way = Way(data, out, checkpoints, device, compile, tensorboard, minutes)
    records, code = _run(recipe, [row] if row is not None else rows_of(recipe)[:1], [seed], way, fields)
    if json and records:
        print_json(records[0])
    raise typer.Exit(code)


def sweep(
    recipe: Recipe,
    data: Data,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", metavar="NAME", help="Only this row. Repeat for several.", autocompletion=some_rows),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="LIST", help="Seeds to run, as in 0,1,2 or 0-4.")] = "0-2",
    together: Annotated[int, typer.Option("--together", min=1, help="Runs that train side by side on the device.")] = 1,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes on the device, each with --together runs.")
    ] = 1,
    out: Out = Path("results"),
    checkpoints: Checkpoints = Path("out/checkpoints"),
    device: Device = None,
    compile: Compile = False,
    tensorboard: Tensorboard = None,
    minutes: Minutes = None,
    json: Json = False,
    **fields: str | None,
) -> None:
    """Run every row and seed of a table that has no record yet.

    Runs that were stopped continue from their checkpoints. With --json all records of these rows and seeds are printed.
    If one run does not keep the GPU busy, let several share it with --together, and use several --processes if a single
    one cannot launch work fast enough. Processes gain most under NVIDIA's MPS (nvidia-cuda-mps-control -d), which lets
    them use the GPU at the same time.

    Example:
        rotationout sweep an4 --seeds 0-4 --together 5 --data an4.pt
        rotationout sweep an4 --seeds 0-4 --together 3 --processes 4 --data an4.pt
        rotationout sweep an4 --row none --row rotation --data an4.pt
    """
    way = Way(data, out, checkpoints, device, compile, tensorboard, minutes, together, processes)
    records, code = _run(recipe, row, numbers(seeds), way, fields)
    if json and records is not None:
        print_json(records)
    raise typer.Exit(code)


def numbers(text: str) -> list[int]:
    """The seeds of a list, each once.

    >>> numbers("0,2"), numbers("0-2"), numbers("7,1-2,2")
    ([0, 2], [0, 1, 2], [7, 1, 2])
    """
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            misuse(f"must be numbers and ranges, as in 0,1,2 or 0-4, got {text!r}", "--seeds")
        if int(match[2] or match[1]) > MOST_SEED:
            misuse(f"must be at most {MOST_SEED}, got {text!r}", "--seeds")
        seeds = range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(seeds) > MOST_SEEDS:
            misuse(f"must be at most {MOST_SEEDS} in a range, got {text!r}", "--seeds")
        found += seeds
    return list(dict.fromkeys(found))


def _run(
    recipe: str, rows: Sequence[str] | None, seeds: Sequence[int], way: Way, fields: dict[str, str | None]
) -> tuple[list[dict[str, Any]] | None, int]:
    """Run what has no record. Returns all records (in the first process only, else None) and the exit code."""
    from ..experiments.results import read_record, record_path
    from ..recipes import TABLES
    from .fields import changed, changes, check_noises

    table = {config.row: config for config in TABLES[chosen("TABLE", recipe, TABLES)]()}
    picked = [table[chosen("--row", row, table)] for row in dict.fromkeys(rows or table)]
    values = changes(fields, recipe, type(picked[0]))
    wanted = [changed(config, values) for config in picked]
    check_noises(wanted, values)
    configs = [config.replace(seed=seed) for seed in seeds for config in wanted]
    first, alone, left = _run_all(configs, way, functools.partial(_maker, way, values))
    if left and first:
        runs = "1 run is" if len(left) == 1 else f"{len(left)} runs are"
        say(f"{runs} not finished; run the same command again to continue")
    paths = [record_path(way.out, config) for config in configs if config not in left]
    records = [read_record(path) for path in paths] if first else None
    # torchrun would take another code than 0 for a crash, and end processes that still write.
    return records, UNFINISHED if left and alone else 0


def _run_all(
    configs: Sequence[Config], way: Way, maker: Callable[[torch.device], Callable[[Config], Run]]
) -> tuple[bool, bool, list[Config]]:
    """Run them. Returns whether this is the first process, whether it runs without torchrun, and what is unfinished."""
    from ..experiments import processes
    from ..experiments.sweep import sweep as run_here
    from ..experiments.workers import Share, share_out

    if way.processes > 1:
        deadline = time.time() + way.seconds
        places = (way.device, way.out, way.checkpoints, way.together, deadline, way.tensorboard)
        return True, True, share_out(Share(configs, maker, *places), way.processes)
    with processes.joined(way.device) as device:
        first, alone = processes.rank() == 0, not processes.launched()
        try:
            left = run_here(
                configs,
                maker(device),
                folder=way.out,
                checkpoints=way.checkpoints,
                together=way.together,
                limit_seconds=way.seconds,
                tensorboard=way.tensorboard,
            )
        except KeyboardInterrupt:
            if first:
                raise
            raise typer.Exit(INTERRUPTED) from None
    return first, alone, left


def _maker(way: Way, values: dict[str, Any], device: torch.device) -> Callable[[Config], Run]:
    """What makes the run of a config. Giving options that a noise or network does not have is the user's mistake."""
    from ..experiments.tasks import maker

    make = maker(way.data, device, compiled=way.compile)

    def checked(config: Config) -> Run:
        try:
            return make(config)
        except TypeError as error:
            if any(isinstance(value, dict) for value in values.values()):
                raise ValueError(str(error)) from error
            raise

    return checked
