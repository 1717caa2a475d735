"""Figure 2 from records: how far noise near BatchNorm shifts variances, what repairs do, and co-adaptation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..experiments.records import mean_sd
from ..recipes import SUBJECTS
from . import verdicts
from .cells import by_row, paired_p_value, ran, signed, significance, spread
from .page import Section, Table

__all__ = [
    "RECIPE",
    "RIVALS",
    "STATES",
    "blocks_table",
    "coadaptation_table",
    "compared_coadaptation",
    "compared_shift",
    "prose",
    "section",
    "table",
    "usable",
    "verdict",
]

RECIPE = "cifar100_resnet110_shift"
STATES = {
    "trained": "as trained",
    "divided": "× keep rate",
    "corrected": "closed form",
    "recalibrated": "recalibrated",
}
"""The states in which a trained network was measured, and what its running variances are in each."""
R_KEYS = ("r_mean", "r_max")
"""r of a block in the records: mean over channels, and the largest of them."""
RIVALS = {"RotationOut-a": "Dropout-a, centred", "RotationOut-b": "Dropout-b, centred"}
"""Rotations about the mean, and Dropout about the mean of the same strength in the same place."""


def usable(records: Sequence[dict[str, Any]], study: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each row whose study finished.

    >>> usable([{"row": "none", "coadaptation": {"failed": "RuntimeError"}}], "coadaptation")
    {}
    """
    found = [record for record in records if study in record and "failed" not in record[study]]
    return by_row(found) if found else {}


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each form of noise: r over its layers, accuracy as trained, and what each repair adds to it.

    All are means over runs ± their standard deviation. The gain of a repair is accuracy after it minus accuracy as
    trained, run by run; a dash where the repair does not apply.
    """
    by_row(records)  # none: an error that says what makes them
    lines = []
    for row, runs in usable(records, "variance_shift").items():
        states = [run["variance_shift"]["states"] for run in runs]
        accuracy = spread([state["trained"]["top1"] for state in states])
        gains = [_gains(states, repair) for repair in STATES if repair != "trained"]
        shown = [signed(*mean_sd(gain)) if gain else "–" for gain in gains]
        lines.append([row, str(len(runs)), spread(_mean_shift(runs)), accuracy, *shown])
    labels = [label for state, label in STATES.items() if state != "trained"]
    return Table(["row", "runs", "r, mean", "as trained, %", *labels], lines)


def blocks_table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each form of noise: the blocks in which r, its mean over channels, is smallest and largest.

    And the block whose largest r of a channel is highest, by its mean over runs. ± is the standard deviation over runs.
    """
    lines = []
    for row, runs in usable(records, "variance_shift").items():
        trained = [run["variance_shift"]["states"]["trained"] for run in runs]
        means, largest = ([list(block) for block in zip(*(one[key] for one in trained), strict=True)] for key in R_KEYS)
        cells = [_extreme(means, min), _extreme(means, max), _extreme(largest, max)]
        lines.append([row, str(len(runs)), spread(_mean_shift(runs)), *cells])
    labels = ["mean of blocks", "least (in block)", "most (in block)", "most of a channel (in block)"]
    return Table(["r", "runs", *labels], lines)


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """Whether repairs help, in a sentence: with how many forms of noise each makes accuracy better, or worse."""
    noisy = {row: runs for row, runs in usable(records, "variance_shift").items() if row != "none"}
    parts = []
    for repair, label in STATES.items():
        gains = [_gains([run["variance_shift"]["states"] for run in runs], repair) for runs in noisy.values()]
        gains = [gain for gain in gains if gain]
        if repair == "trained" or not gains:
            continue
        told = [statistics.fmean(gain) > 0 for gain in gains if paired_p_value(gain) < verdicts.LEVEL]
        parts.append(f"{label}: better with {told.count(True)}, worse with {told.count(False)} of {len(gains)}")
    rule = f"Only changes with a p-value below {verdicts.LEVEL} in a paired t-test count."
    return f"With how many forms of noise each repair makes test accuracy better or worse. {'; '.join(parts)}. {rule}"


def compared_shift(records: Sequence[dict[str, Any]]) -> str:
    """Whether RotationOut shifts variances less than Dropout in the same place, in words; "" without both."""
    rows = usable(records, "variance_shift")
    return _compared({row: _mean_shift(runs) for row, runs in rows.items() if row != "none"}, "in mean r")


def compared_coadaptation(records: Sequence[dict[str, Any]], rivals: Mapping[str, str] = RIVALS) -> str:
    """Whether networks trained with RotationOut are less co-adapted than ``rivals``, in words; "" without both."""
    rows = usable(records, "coadaptation")
    means = {row: [statistics.fmean(run["coadaptation"]["value"]) for run in runs] for row, runs in rows.items()}
    return _compared(means, "in mean co(x)", rivals)


def coadaptation_table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each form of noise: co(x) without noise, its mean over blocks, and that of the first and the last one.

    All ± the standard deviation over runs. Counted above and below "none" are the blocks in which every run is above,
    or below, every run that was trained without noise. The p-value is of Welch's two-sided t-test on the
    mean over blocks, against those runs.
    """
    rows = usable(records, "coadaptation")
    values = {row: [run["coadaptation"]["value"] for run in runs] for row, runs in rows.items()}
    means = {row: [statistics.fmean(run) for run in runs] for row, runs in values.items()}
    lines = []
    for row, runs in values.items():
        blocks = [spread([run[block] for run in runs]) for block in (0, -1)]
        sides = ["–", "–"]
        if row != "none" and "none" in values:
            sides = [_sides(runs, values["none"]), significance(means[row], means["none"])]
        lines.append([row, str(len(runs)), spread(means[row]), *blocks, *sides])
    labels = ["mean of blocks", "first block", "last block", "above / below none", "p-value, none"]
    return Table(["co(x)", "runs", *labels], lines)


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are, and what came out."""
    said = [
        f"{records[0]['steps']:,} steps; {ran(records)}. The noise has λ = 1, a keep rate of ½. It is "
        "directly before the first BatchNorm layer of every block of the third stage (-a) or before its second "
        "convolution (-b). r = max(train / test, test / train) of the variance before the next BatchNorm layer, mean "
        "over channels and blocks. All values are means over runs ± standard deviation.",
        "The table gives test accuracy as trained, and how much each repair of the running variances adds to it, in "
        "percentage points: multiplying by the keep rate, the paper’s correction, which it tried on all forms; the "
        "closed form, where one exists; and recalibration with the noise off.",
    ]
    sides = [said for said in (compared_shift(records), compared_coadaptation(records)) if said]
    if sides:
        less = "Lower is better, both for r and for co(x), the co-adaptation of the blocks’ outputs without noise."
        said.append(" ".join([*sides, less]))
    return said


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import CAPTION, curves_figure
    from .style import to_svg

    return Section(
        SUBJECTS[recipe],
        prose(records),
        table(records),
        to_svg(curves_figure(records)),
        f"Test accuracy {CAPTION}",
        verdict(records),
    )


def _compared(scores: Mapping[str, Sequence[float]], unit: str, rivals: Mapping[str, str] = RIVALS) -> str:
    """`verdicts.verdict` on one number of each run, where lower is better."""
    runs = [{"row": row, "score": score} for row, values in scores.items() for score in values]
    return verdicts.verdict(runs, rivals, "score", unit, lower=True, words=("below", "above"))


def _mean_shift(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Of each run r as trained, its mean over channels and blocks."""
    return [statistics.fmean(run["variance_shift"]["states"]["trained"]["r_mean"]) for run in runs]


def _extreme(blocks: list[list[float]], choose: Callable[..., int]) -> str:
    """The block of least or most mean over runs, and what it has."""
    place = choose(range(len(blocks)), key=lambda block: statistics.fmean(blocks[block]))
    return f"{spread(blocks[place])} ({place + 1})"


def _sides(runs: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> str:
    """In how many blocks all runs are above all others, and in how many below."""
    pairs = list(zip(zip(*runs, strict=True), zip(*others, strict=True), strict=True))
    above = sum(min(ours) > max(theirs) for ours, theirs in pairs)
    below = sum(max(ours) < min(theirs) for ours, theirs in pairs)
    return f"{above} / {below} of {len(pairs)}"


def _gains(states: Sequence[dict[str, Any]], repair: str) -> list[float]:
    """What a repair adds to accuracy, run by run; none if it was refused."""
    return [state[repair]["top1"] - state["trained"]["top1"] for state in states if "top1" in state[repair]]
