"""The figures of the paper's theory and of ours. Their data are computed here, and written next to each figure.

A figure is two functions: one computes columns of numbers, the other draws them and nothing else. So the CSV file holds
all that the picture shows. Each topic has a file of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..style import save

__all__ = ["Columns", "Drawing", "columns_of", "select", "write"]

Columns = dict[str, Sequence[float | str]]
"""Columns of one length by name, long form: one row for each point of each curve."""


@dataclass(frozen=True)
class Drawing:
    """A figure by its name.

    Args:
        name: of its files.
        title: what it shows, in a few words.
        caption: how to read it, with the label of the paper's equation or figure.
        compute: the numbers; deterministic.
        draw: the picture of these numbers.
    """

    name: str
    title: str
    caption: str
    compute: Callable[[], Columns]
    draw: Callable[[Columns], Figure]


def columns_of(names: Sequence[str], rows: Iterable[Sequence[float | str]]) -> Columns:
    """Columns from rows."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def select(columns: Columns, *names: str, **wanted: float | str) -> list[list[float]]:
    """Columns of numbers, in the rows in which others have the ``wanted`` values.

    >>> select({"curve": ["a", "b", "a"], "x": [1, 2, 3]}, "x", curve="a")
    [[1.0, 3.0]]
    """
    rows = [
        row for row in range(len(columns[names[0]])) if all(columns[key][row] == value for key, value in wanted.items())
    ]
    return [[float(columns[name][row]) for row in rows] for name in names]


def write(drawings: Iterable[Drawing], folder: Path) -> list[Path]:
    """Compute and draw each, and write ``name.csv``, ``name.svg`` and ``name.png``; the paths of the SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in drawings:
        columns = drawing.compute()
        stem = folder / drawing.name
        with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(columns)
            lines.writerows(zip(*columns.values(), strict=True))
        save(drawing.draw(columns), stem)
        written.append(stem.with_suffix(".svg"))
    return written
