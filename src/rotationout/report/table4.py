"""Table 4 from records: edit distance and character error rate over seeds, the paper's beside them, and transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..recipes import SUBJECTS
from . import verdicts
from .cells import STAR_ALONE, UNCORRECTED, averaged, by_row, left_out, marked, rotation_strength, significance, spread
from .page import Section, Table

__all__ = ["PAPER", "notes", "prose", "section", "table", "transcripts", "verdict"]

PAPER = {
    "none": "9.1",
    "dropout keep 0.9": "8.6",
    "weight drop keep 0.8": "7.8",
    "variational weight drop keep 0.8": "7.5",
    "locked keep 0.7": "7.3",
    "locked keep 0.8, variational weight drop keep 0.8": "6.7",
    "rotation": "6.8",
    "rotation, variational weight drop keep 0.9": "6.4",
}
"""Edit distances on WSJ's eval92 as printed, by our rows. The paper does not give the number of runs."""
RIVALS = {
    "rotation": "locked keep 0.7",
    "rotation, variational weight drop keep 0.9": "locked keep 0.8, variational weight drop keep 0.8",
}
"""What RotationOut is compared with: the best of the paper's others without and with weight drop."""


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A table of the records of one recipe, rows in its order.

    The paper's numbers are left out where speakers held out of the training set, on which p is chosen, are tested. A
    star marks a mean on WSJ that differs from the paper's by more than two of its own standard errors, as the paper
    prints none. The p-values are of Welch's two-sided t-test on the edit distance: against no noise, and for
    RotationOut against the best of the paper's others.
    """
    found = by_row(records)
    wsj = records[0].get("recipe") == "wsj"
    paper = {} if records[0]["config"]["held_out"] else PAPER
    lines = []
    for row, runs in found.items():
        distance = _distances(runs)
        against = [found.get("none", []) if row != "none" else [], found.get(RIVALS.get(row, ""), [])]
        tests = [significance(distance, _distances(others)) for others in against]
        rate = spread([run["cer"] for run in runs])
        printed = paper.get(row, "–")
        lines.append([row, str(len(runs)), marked(distance, printed, same=wsj), printed, rate, *tests])
    header = ["row", "runs", "edit distance", "the paper's, WSJ", "CER, %", "p-value, none", "p-value, rival"]
    return Table(header, lines).filled()


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """How RotationOut did, in words."""
    return verdicts.verdict(records, RIVALS, "edit_distance", "edits", lower=True)


def notes(records: Sequence[dict[str, Any]]) -> str:
    """`transcripts` in Markdown."""
    return "\n".join(f"- {line}" for line in transcripts(records))


def transcripts(records: Sequence[dict[str, Any]]) -> list[str]:
    """What was said, and what the first seed of every row recognised, a line for each utterance."""
    first = {row: runs[0]["transcripts"] for row, runs in by_row(records).items()}
    lines = []
    for place, shown in enumerate(next(iter(first.values()))):
        hearers: dict[str, list[str]] = {}
        for row, found in first.items():
            hearers.setdefault(found[place]["heard"] or "(nothing)", []).append(row)
        heard = (f"{text} ({'all' if len(rows) == len(first) else '; '.join(rows)})" for text, rows in hearers.items())
        lines.append(f"{shown['name']}, {shown['said']} — heard: {', '.join(heard)}")
    return lines


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    tested = (
        "speakers held out of the training set"
        if first["config"]["held_out"]
        else f"the {first['config']['test_split']} split"
    )
    said = [
        f"{first['epochs']} epochs on {first['train_utterances']:,} utterances; edit distance per utterance and "
        f"character error rate on {tested}, {first['test_utterances']:,} utterances; {left_out(first)} were left out. "
        f"{averaged(records)}. {rotation_strength(records)}".rstrip(),
    ]
    if first["config"]["held_out"]:
        said.append(f"The p-values are from Welch’s test on the edit distance, against no noise. {UNCORRECTED}")
    else:
        said.append(
            "The paper’s numbers are for WSJ; it does not give the number of runs. The p-values are from Welch’s test "
            "on the edit distance, against no noise and against the best of the paper’s other noises, without and with "
            f"weight drop. {UNCORRECTED}" + (f" {STAR_ALONE}" if first["recipe"] == "wsj" else "")
        )
    return said


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import CAPTION, curves_figure, held_out
    from .style import to_svg

    return Section(
        SUBJECTS[recipe],
        prose(records),
        table(records),
        to_svg(curves_figure(records, "cer_curve", "character error rate, %", 1.0)),
        f"Character error rate {'of held-out speakers' if held_out(records) else 'of the test set'} {CAPTION}",
        verdicts.finding(records, verdict(records)),
        asides={"A few utterances: what was said, and what each row recognised": transcripts(records)},
    )


def _distances(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["edit_distance"] for run in runs]
