"""Arguments and options that several commands have, and how the words of each are completed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Device",
    "Json",
    "Recipe",
    "Records",
    "Results",
    "rows_of",
    "some_figures",
    "some_recipes",
    "some_rows",
    "words_to_complete",
]


def words_to_complete() -> list[str]:
    """The command line that a shell wants completed, which it passes in the environment; empty if it does not."""
    return " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split()


def some_recipes(incomplete: str) -> list[str]:
    """Tables that begin so."""
    from ..recipes import TABLES

    return [name for name in TABLES if name.startswith(incomplete)]


def rows_of(recipe: str) -> list[str]:
    """The rows of a table; none if there is no such table."""
    from ..recipes import TABLES

    return [config.row for config in TABLES[recipe]()] if recipe in TABLES else []


def some_rows(incomplete: str) -> list[str]:
    """Rows that begin so, of the table that was typed before."""
    rows = [row for word in words_to_complete() for row in rows_of(word) if row.startswith(incomplete)]
    # Bash puts in what it is given as it is: spaces would end the word. Other shells escape them by themselves.
    bash = os.environ.get("_ROTATIONOUT_COMPLETE") == "complete_bash"
    return [row.replace(" ", r"\ ") for row in rows] if bash else rows


def some_figures(incomplete: str) -> list[tuple[str, str]]:
    """Figures that begin so, with their titles."""
    from ..report.gallery.catalogue import all_figures

    return [
        (drawing.name, drawing.title) for drawing in all_figures(Path("results")) if drawing.name.startswith(incomplete)
    ]


def _device(name: str | None) -> str | None:
    """The name of a device, if torch knows such devices; whether this machine has it is found out when it is used."""
    if name is not None:
        import torch

        try:
            torch.device(name)
        except RuntimeError:
            raise typer.BadParameter(f"must be cpu, cuda, cuda:1 and so on, got {name!r}") from None
    return name


Recipe = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="Name of a table; rotationout rows lists all.", autocompletion=some_recipes),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", callback=_device, help="cpu, cuda or cuda:1. Default: cuda if available, else cpu."
    ),
]
Records = Annotated[Path, typer.Option("--results", "--out", metavar="DIR", help="Folder of the records.")]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the records of training runs.")]
