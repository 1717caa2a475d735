"""Whether RotationOut is ahead of others, in words, as far as the records allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..experiments.records import mean_sd
from .cells import by_row, p_value, shown_p, signed

__all__ = ["LEVEL", "MEANING", "compared", "finding", "place", "verdict"]

LEVEL = 0.05
"""Differences count as significant if the p-value is below this."""
MEANING = (
    f"Rows differ significantly if the p-value of Welch’s two-sided test on their runs is below {LEVEL}. Many rows are "
    "compared, so some differ significantly by chance alone."
)
"""What these sentences mean by significant."""
SINGLE = "Some rows are single runs: their differences may be due to chance."
"""What is said where no error can be given."""
RACE = ("ahead of", "behind")
UNCLEAR = "not significantly different from"
NAMES = {"none": "no noise"}
"""What rows are called in sentences, where their own names would mislead: ahead of none."""


def compared(
    ours: Sequence[float],
    others: Mapping[str, Sequence[float]],
    unit: str,
    *,
    lower: bool = False,
    words: tuple[str, str] = RACE,
) -> str:
    """How scores compare with those of others. The first of ``words`` is for better ones: ``lower`` ones, if so given.

    >>> compared([6.0, 6.2, 6.1], {"none": [9.1, 9.0, 9.2], "locked": [6.0, 6.3, 6.2]}, "edits", lower=True)
    'ahead of none (−3.00 edits, p-value < 0.001), not significantly different from locked (−0.07 edits, p-value 0.567)'
    >>> compared([70.0], {"none": [71.0], "dropout": [70.5]}, "points")
    'behind none (−1.00 points in single runs) and dropout (−0.50 points in single runs)'
    >>> compared([70.0], {"none": [71.0, 71.2]}, "points")  # one of them
    'behind none (−1.10 points in single runs)'
    >>> compared([70.0], {"none": [70.0]}, "points"), compared([70.0, 70.0], {"none": [70.0, 70.0]}, "points")
    ('level with none (+0.00 points in single runs)', 'level with none (+0.00 points)')
    """
    found: dict[str, list[str]] = {}
    for other, theirs in others.items():
        difference, runs = mean_sd(ours)[0] - mean_sd(theirs)[0], min(len(ours), len(theirs))
        where, by = place(difference, p_value(ours, theirs), runs, unit, lower=lower, words=words)
        found.setdefault(where, []).append(f"{other} ({by})")
    return ", ".join(f"{where} {' and '.join(names)}" for where, names in found.items())


def place(
    difference: float, p: float, runs: int, unit: str, *, lower: bool = False, words: tuple[str, str] = RACE
) -> tuple[str, str]:
    """Which side of others scores are on, given by how much they differ, and that difference in words.

    >>> place(-2.0, 0.04, 3, "points"), place(+2.0, 0.06, 3, "points")
    (('behind', '−2.00 points, p-value 0.040'), ('not significantly different from', '+2.00 points, p-value 0.060'))
    >>> place(-2.0, math.nan, 1, "edits", lower=True)
    ('ahead of', '−2.00 edits in single runs')
    >>> place(-2.0, math.nan, 2, "points"), place(0.0, math.nan, 2, "points")  # runs that are all the same
    (('not significantly different from', '−2.00 points'), ('level with', '+0.00 points'))
    """
    side = words[(difference < 0) != lower]
    if math.isnan(p):  # single runs, or runs that are all the same
        where = "level with" if difference == 0 else side if runs < 2 else UNCLEAR
        chance = " in single runs" if runs < 2 else ""
    else:
        where = side if p < LEVEL else UNCLEAR
        chance = f", p-value {shown_p(p)}"  # p alone is a drop probability
    return where, f"{signed(difference)} {unit}{chance}"


def verdict(
    records: Sequence[dict[str, Any]],
    rivals: Mapping[str, str],
    score: str,
    unit: str,
    *,
    lower: bool = False,
    words: tuple[str, str] = RACE,
) -> str:
    """How rows compare with no noise and with their rivals, a sentence for each row; "" where nothing can be said.

    Args:
        records: of one recipe.
        rivals: rows, and the row that each is compared with besides "none".
        score: what is compared, by its name in the records. Records that lack it are left out.
        unit: what scores are counted in.
        lower: whether lower ones are better.
        words: for a score that is better, and for one that is not.

    >>> runs = [("none", 9.1), ("none", 9.2), ("locked", 7.0), ("locked", 8.0), ("ours", 6.1), ("ours", 6.3)]
    >>> records = [{"row": row, "distance": edits} for row, edits in runs]
    >>> verdict(records, {"ours": "locked"}, "distance", "edits", lower=True)
    'Ours is ahead of no noise (−2.95 edits, p-value 0.006), not significantly different from locked (−1.30 edits,
    p-value 0.223).'
    """
    rows = by_row(records) if records else {}
    scores = {row: [run[score] for run in runs if score in run] for row, runs in rows.items()}
    sentences = []
    for row, rival in rivals.items():
        others = {NAMES.get(other, other): scores[other] for other in ("none", rival) if scores.get(other)}
        if scores.get(row) and others:
            said = compared(scores[row], others, unit, lower=lower, words=words)
            sentences.append(f"{row[0].upper()}{row[1:]} is {said}.")
    return " ".join(sentences)


def finding(records: Sequence[dict[str, Any]], said: str) -> str:
    """A verdict, with a warning where there are single runs.

    >>> finding([{"row": "none"}, {"row": "turned"}], "Turned is ahead.")
    'Turned is ahead. Some rows are single runs: their differences may be due to chance.'
    """
    single = min(map(len, by_row(records).values())) < 2
    return " ".join(filter(None, [said, SINGLE if single else ""]))
