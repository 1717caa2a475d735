"""How fast noise layers are beside nn.Dropout, from the records of ``benchmarks``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..bench.noises import DEFAULT
from ..experiments.records import readable
from .page import Table

__all__ = ["cpu_table", "gpu_table"]

GPU_COLUMNS = (
    ("nn.Dropout", ["nn.Dropout"]),
    ("un-centred, structured", ["structured per example", "structured per row"]),
    ("un-centred, permutation", ["permutation per example", "permutation per batch"]),
    ("batch mean", ["batch mean"]),
    ("authors' formula", ["authors' formula"]),
)
CPU_COLUMNS = (
    ("nn.Dropout", ["nn.Dropout"]),
    ("nn.Dropout2d", ["nn.Dropout2d"]),
    ("un-centred", ["RotationOut, un-centred", f"RotationOut, un-centred{DEFAULT}"]),
    ("un-centred, gradient in the plane", ["RotationOut, gradient in the plane"]),
    ("un-centred, one P for the batch", ["RotationOut, P per batch"]),
    ("batch mean", ["RotationOut, batch-centred", f"RotationOut, batch-centred{DEFAULT}"]),
    ("authors' formula", ["authors' formula"]),
)


def gpu_table(record: Path) -> Table:
    """Device time of forward + backward relative to nn.Dropout, large tensors."""
    with readable(record):
        rows = [row for row in json.loads(record.read_text(encoding="utf-8"))["rows"] if "both_us" in row]
        return _table(rows, GPU_COLUMNS, lambda row: float(row["captured_us"][0]) / 1e3)


def cpu_table(record: Path) -> Table:
    """Time of forward + backward relative to nn.Dropout."""
    with readable(record):
        return _table(json.loads(record.read_text(encoding="utf-8"))["rows"], CPU_COLUMNS, lambda row: float(row["ms"]))


def _table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[tuple[str, list[str]]],
    time: Callable[[dict[str, Any]], float],
) -> Table:
    lines = []
    for tensor in dict.fromkeys(row["tensor"] for row in rows):
        times = {row["noise"]: time(row) for row in rows if row["tensor"] == tensor}
        base = times["nn.Dropout"]
        cells = [f"{_three(base)} ms"]
        for _, names in columns[1:]:
            found = next((times[name] for name in names if name in times), None)
            cells.append("–" if found is None else f"{found / base:.2f}×")
        lines.append([tensor, *cells])
    return Table(["tensor", *(name for name, _ in columns)], lines)


def _three(value: float) -> str:
    """A number to three digits, zeros too.

    >>> _three(1.0), _three(0.58), _three(174.2)
    ('1.00', '0.580', '174')
    """
    return f"{value:#.3g}".rstrip(".")
