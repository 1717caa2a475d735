"""``rotationout report``: all records on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Results
from .output import print_json
from .trouble import say

__all__ = ["BENCHMARKS", "DRAWING", "NoTheory", "report", "say_what_is_missing"]

BENCHMARKS = Path("benchmarks/results")
DRAWING = "drawing the theory figures, which takes about half a minute"
NoTheory = Annotated[
    bool, typer.Option("--no-theory", help="Skip the figures of rotationout figures: the theory takes half a minute.")
]


def report(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write index.html to.")] = Path("out"),
    results: Results = Path("results"),
    benchmarks: Annotated[
        Path, typer.Option("--benchmarks", metavar="DIR", help="Folder of the records of benchmarks.")
    ] = BENCHMARKS,
    no_theory: NoTheory = False,
    json: Json = False,
) -> None:
    """Write one HTML page with all results, next to the paper's numbers, and every figure.

    The page needs no other file, no script and no network. Prints its path.

    Example:
        rotationout report --out out
    """
    from ..report import whole

    say_what_is_missing(results, benchmarks)
    if not no_theory:
        say(DRAWING)
    page = whole.write(out, results, benchmarks if benchmarks.is_dir() else None, figures=not no_theory)
    if json:
        print_json({"page": str(page)})
    else:
        print(page)


def say_what_is_missing(results: Path, benchmarks: Path) -> None:
    """Tell which records the page will lack."""
    for folder, kind in ((results, "runs"), (benchmarks, "benchmarks")):
        if not folder.is_dir():
            say(f"there is no folder {folder}: the page will have no records of {kind}")
