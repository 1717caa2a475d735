"""Table 4 from records: edit distance and character error rate over seeds, the paper's beside them, and transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments.records import mean_sd
from ..recipes.speech import an4, rows
from .cells import by_row, significance, spread

__all__ = ["PAPER", "chosen_strength", "table4"]

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


def table4(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of the records of one recipe, and what the first seed of each row heard.

    The p-values are of Welch's two-sided t-test on the edit distance: against no noise, and for RotationOut against the
    best of the others.
    """
    found = by_row(records)
    order = [row for row in PAPER if row in found] + [row for row in found if row not in PAPER]
    lines = [
        "| row | runs | edit distance | the paper's, WSJ | CER, % | p, none | p, rival |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in order:
        distance = _distances(found[row])
        against = [found.get("none", []) if row != "none" else [], found.get(RIVALS.get(row, ""), [])]
        tests = [significance(distance, _distances(others)) for others in against]
        rate = spread([run["cer"] for run in found[row]])
        cells = [row, str(len(found[row])), spread(distance), PAPER.get(row, "–"), rate, *tests]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_transcripts({row: found[row] for row in order})])


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


def _transcripts(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What was said, and under it what each row's first seed heard of it."""
    first = {row: runs[0]["transcripts"] for row, runs in found.items()}
    lines = []
    for place, shown in enumerate(next(iter(first.values()))):
        lines += [f"`{shown['name']}`: {shown['said']}", ""]
        lines += [f"- {row}: {heard[place]['heard'] or '(nothing)'}" for row, heard in first.items()]
        lines.append("")
    return lines
