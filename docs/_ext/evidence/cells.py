"""Where records are, what of them pages show, and tables of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS as BENCHMARKS

from rotationout.report.page import Table

__all__ = ["RESULTS", "benchmark", "markdown", "span"]

RESULTS = Path(__file__).parents[3] / "results"


def benchmark(name: str, part: str = "rows") -> list[dict[str, Any]]:
    """What a benchmark measured with torch 2.11."""
    path = BENCHMARKS / f"{name}_torch-2.11.0.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[part]
    return rows


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, whatever its cells hold."""
    return Table(list(header), [[cell.replace("|", r"\|") for cell in row] for row in rows]).markdown()


def span(values: Sequence[float], digits: int = 2) -> str:
    """The least and the most of numbers; one of them where both read the same."""
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"
