"""The speed tables of the README, from records: ``python -m benchmarks.tables`` prints them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .records import RESULTS

GPU_COLUMNS = (
    ("nn.Dropout", ["nn.Dropout"]),
    ("un-centred, structured", ["structured per example", "structured per row"]),
    ("un-centred, permutation", ["permutation per example", "permutation per batch"]),
    ("batch mean", ["batch mean"]),
    ("authors' formula", ["authors' formula"]),
)
CPU_COLUMNS = (
    ("nn.Dropout", ["nn.Dropout"]),
    ("un-centred", ["RotationOut, un-centred"]),
    ("un-centred, one P for the batch", ["RotationOut, P per batch"]),
    ("batch mean", ["RotationOut, batch-centred"]),
    ("authors' formula", ["authors' formula"]),
)


def gpu_table() -> str:
    """Device time of forward + backward relative to nn.Dropout, large tensors."""
    record = json.loads((RESULTS / "ops_nvidia-h200_torch-2.11.0.json").read_text(encoding="utf-8"))
    rows = [row for row in record["rows"] if "both_us" in row]
    return _table(rows, GPU_COLUMNS, lambda row: row["captured_us"][0] / 1e3)


def cpu_table() -> str:
    """Time of forward + backward relative to nn.Dropout."""
    record = json.loads((RESULTS / "ops_cpu_torch-2.11.0.json").read_text(encoding="utf-8"))
    return _table(record["rows"], CPU_COLUMNS, lambda row: row["ms"])


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, list[str]]], time: Any) -> str:
    lines = ["| tensor | " + " | ".join(name for name, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for tensor in dict.fromkeys(row["tensor"] for row in rows):
        times = {row["noise"]: time(row) for row in rows if row["tensor"] == tensor}
        base = times["nn.Dropout"]
        cells = [f"{base:.3g} ms"]
        for _, names in columns[1:]:
            found = next((times[name] for name in names if name in times), None)
            cells.append("–" if found is None else f"{found / base:.2f}×")
        lines.append(f"| {tensor} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(gpu_table(), cpu_table(), sep="\n\n")
