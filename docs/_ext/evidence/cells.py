"""Where records are, and tables of text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rotationout.report.page import Table

__all__ = ["RESULTS", "markdown"]

RESULTS = Path(__file__).parents[3] / "results"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, whatever its cells hold."""
    return Table(list(header), [[cell.replace("|", r"\|") for cell in row] for row in rows]).markdown()
