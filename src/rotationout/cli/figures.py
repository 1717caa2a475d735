"""``rotationout figures``: the figures of the theory and of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Results, some_figures
from .output import print_json
from .trouble import misuse

__all__ = ["figures"]


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Figures to write; all of them if not given.", autocompletion=some_figures),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to.")] = Path("out/figures"),
    results: Results = Path("results"),
    list_only: Annotated[bool, typer.Option("--list", help="List the figures without writing them.")] = False,
    json: Json = False,
) -> None:
    """Write figures as SVG and PNG, each with its data as CSV.

    Figures of experiments are only drawn if their records are in --results.

    Example:
        rotationout figures --list
        rotationout figures coadaptation_factor --out pictures
    """
    from ..report.gallery import write
    from ..report.gallery.catalogue import chosen_figures

    try:
        wanted = chosen_figures(results, names or [])
    except ValueError as error:
        misuse(f"{error}. Figures of experiments need their records in {results}", "NAME")
    if list_only:
        if json:
            print_json([{"name": d.name, "title": d.title, "caption": d.caption} for d in wanted])
        else:
            print("\n".join(f"{drawing.name}: {drawing.title}" for drawing in wanted))
        return
    paths = write(wanted, out)
    if json:
        print_json([str(path) for path in paths])
    else:
        print("\n".join(map(str, paths)))
