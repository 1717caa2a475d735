"""The stronger protocol from records: what the search found, and how the best of it did on the test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..recipes import SUBJECTS, name_of
from ..recipes.search import BEST, SEARCH
from .cells import UNCORRECTED, averaged, by_row, significance, spread, strengths
from .page import Section, Table
from .verdicts import compared

__all__ = ["prose", "section", "table", "verdict"]

POINTS = "last10_top1"
"""What rows are compared by: the mean of the last ten epochs, which depends less on luck than the best epoch."""
LEVEL = 0.1
"""Rows that are as close as this, in points, count as level: runs that should be the same differ by more."""


def table(records: Sequence[dict[str, Any]]) -> Table:
    """Mean ± standard deviation over seeds; the p-values are of Welch's t-test against no noise and the best Dropout.

    There are no numbers of the paper to compare with: its protocol is different.
    """
    rows = by_row(records)
    lines = []
    for row, runs in rows.items():
        others = [rows.get(other, []) if row != other else [] for other in ("none", BEST[0])]
        tests = [significance(_points(runs), _points(against)) for against in others]
        best = spread([run["best_top1"] for run in runs])
        lines.append([row, str(len(runs)), spread(_points(runs)), best, *tests])
    header = ["row", "runs", "last 10 epochs, %", "best epoch, %", "p-value, none", "p-value, best Dropout"]
    return Table(header, lines).filled()


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """Whether the best RotationOut wins on the test set, in a sentence; "" until there are records to say so.

    Empty for the search itself, whose images were held out to choose the best rows.

    >>> rows = {"none": (71.0, 71.2), BEST[0]: (72.0, 72.1), BEST[1]: (74.0, 74.2)}
    >>> verdict([{"row": row, "last10_top1": value} for row, values in rows.items() for value in values])
    'RotationOut is ahead of no noise (+3.00 points, p-value 0.002) and Dropout (+2.05 points, p-value 0.010).'
    """
    rows = by_row(records) if records else {}
    if not {"none", *BEST} <= rows.keys() or name_of(records[0].get("recipe", "")) == SEARCH:
        return ""
    dropout, rotation = BEST
    others = {"no noise": _points(rows["none"]), "Dropout": _points(rows[dropout])}
    return f"RotationOut is {compared(_points(rows[rotation]), others, 'points')}."


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    tested = f"{first['config']['held_out']:,} training images held out" if first["config"]["held_out"] else "test set"
    decay = f"{first['weight_decay']:g}"
    said = f"{first['steps']:,} steps, weight decay {decay}; accuracy on the {tested}. {averaged(records)}."
    tests = "The p-values are from Welch’s test on the last ten epochs, against no noise and against the best Dropout."
    tests = f"{tests} {UNCORRECTED}"
    several = len(records) > len(by_row(records))
    return list(filter(None, [said, strengths(records), tests if several else ""]))


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import accuracy_caption, curves_figure
    from .style import to_svg

    shown = [record for record in records if "," not in record["row"]] or records  # other forms would be too many lines
    caption = accuracy_caption(records) + (" Other forms than the default are not shown." if shown != records else "")
    figure = to_svg(curves_figure(shown))
    return Section(SUBJECTS[recipe], prose(records), table(records), figure, caption, verdict(records))


def _points(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run[POINTS] for run in runs]
