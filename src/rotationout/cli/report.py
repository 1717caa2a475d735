"""``rotationout report``: one page of all records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Results
from .output import print_json
from .trouble import say

__all__ = ["BENCHMARKS", "DRAWING", "NoTheory", "report"]

BENCHMARKS = Path("benchmarks/results")
DRAWING = "drawing the figures of the theory, about half a minute"
NoTheory = Annotated[
    bool, typer.Option("--no-theory", help="Leave the figures of the theory off, which take half a minute.")
]


def report(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of index.html.")] = Path("out"),
    results: Results = Path("results"),
    benchmarks: Annotated[
        Path, typer.Option("--benchmarks", metavar="DIR", help="Where the records of benchmarks are.")
    ] = BENCHMARKS,
    no_theory: NoTheory = False,
    json: Json = False,
) -> None:
    """Write one HTML page of all records, beside the paper, with every figure.

    It stands alone: no other file, no script, no network. Its path is printed.

    Example:
        rotationout report --out out
    """
    from ..report import whole

    for folder, kind in ((results, "runs"), (benchmarks, "benchmarks")):
        if not folder.is_dir():
            say(f"there is no folder {folder}: the page will be without records of {kind}")
    if not no_theory:
        say(DRAWING)
    page = whole.write(out, results, benchmarks if benchmarks.is_dir() else None, figures=not no_theory)
    if json:
        print_json({"page": str(page)})
    else:
        print(page)
