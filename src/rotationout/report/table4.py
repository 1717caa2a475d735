"""Table 4 from records: edit distance and character error rate over seeds, the paper's beside them, and transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments.records import mean_sd
from ..recipes.speech import an4, rows
from .cells import by_row, significance, spread
from .page import Table

__all__ = ["PAPER", "chosen_strength", "table4", "transcripts"]

PAPER = dict(
    zip(
        [config.row for config in rows(an4())],
        ("9.1", "8.6", "7.8", "7.5", "7.3", "6.7", "6.8", "6.4"),
        strict=True,
    )
)
"""Edit distances on WSJ's eval92 as printed, by our rows. How many runs they are of is not said."""
RIVALS = {
    "rotation": "locked keep 0.7",
    "rotation, variational weight drop keep 0.9": "locked keep 0.8, variational weight drop keep 0.8",
}
"""What RotationOut is compared with: the best of the others without and with weight drop."""


def table4(records: Sequence[dict[str, Any]]) -> Table:
    """The records of one recipe, a row each for its rows, in the order of the paper; columns without numbers left out.

    The p-values are of Welch's two-sided t-test on the edit distance: against no noise, and for RotationOut against the
    best of the others.
    """
    found = _ordered(records)
    header = ["row", "runs", "edit distance", "the paper's, WSJ", "CER, %", "p, none", "p, rival"]
    lines = []
    for row, runs in found.items():
        distance = _distances(runs)
        against = [found.get("none", []) if row != "none" else [], found.get(RIVALS.get(row, ""), [])]
        tests = [significance(distance, _distances(others)) for others in against]
        rate = spread([run["cer"] for run in runs])
        lines.append([row, str(len(runs)), spread(distance), PAPER.get(row, "–"), rate, *tests])
    return Table(header, lines).filled()


def transcripts(records: Sequence[dict[str, Any]]) -> str:
    """What was said, and under it what each row's first seed heard of it, in Markdown."""
    first = {row: runs[0]["transcripts"] for row, runs in _ordered(records).items()}
    lines = []
    for place, shown in enumerate(next(iter(first.values()))):
        lines += [f"`{shown['name']}`: {shown['said']}", ""]
        lines += [f"- {row}: {heard[place]['heard'] or '(nothing)'}" for row, heard in first.items()]
        lines.append("")
    return "\n".join(lines)


def chosen_strength(records: Sequence[dict[str, Any]]) -> float:
    """The p of RotationOut with the least mean edit distance, from records of the recipe ``an4_strength``."""
    searched = {row: runs for row, runs in by_row(records).items() if row.startswith("rotation")}
    if not searched:
        raise ValueError("there are no records with RotationOut; rotationout sweep an4_strength makes them")
    best = min(searched, key=lambda row: mean_sd(_distances(searched[row]))[0])
    p: float = searched[best][0]["config"]["p"]
    return p


def _distances(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["edit_distance"] for run in runs]


def _ordered(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found = by_row(records)
    return {row: found[row] for row in [*(r for r in PAPER if r in found), *(r for r in found if r not in PAPER)]}
