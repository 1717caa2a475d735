"""Figure 2 from records: how far noise beside BatchNorm shifts variances, what repairs do, and co-adaptation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..experiments.records import mean_sd
from ..recipes.cifar100 import TABLES
from . import style
from .cells import by_row, significance, spread
from .curves import CAPTION, curves_figure
from .page import Section, Table

__all__ = ["RECIPE", "STATES", "coadaptation_table", "section", "table", "usable", "verdict"]

RECIPE = "cifar100_resnet110_shift"
STATES = {
    "trained": "as trained",
    "divided": "× keep rate",
    "corrected": "closed form",
    "recalibrated": "taken again",
}
"""The states in which a trained network was measured, and what its running variances are in each."""
CLEAR = 3.0
"""A gain of so many standard errors is called one; there are a dozen of them."""


def usable(records: Sequence[dict[str, Any]], study: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each row for which a study came to an end, in the order of the recipe's rows.

    >>> usable([{"row": "none", "coadaptation": {"failed": "RuntimeError"}}], "coadaptation")
    {}
    """
    found = [record for record in records if study in record and "failed" not in record[study]]
    rows = by_row(found) if found else {}
    recipe = found[0].get("recipe") if found else None
    order = [config.row for config in TABLES[recipe]()] if recipe in TABLES else []
    return {row: rows[row] for row in dict.fromkeys([*order, *rows]) if row in rows}


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each form of noise: r over its layers, accuracy as trained, and what each repair adds to it.

    A repair's gain is the mean over runs of accuracy after it less accuracy as trained, ± its standard error; a dash
    where the repair does not apply.
    """
    by_row(records)  # none: an error that says what makes them
    lines = []
    for row, runs in usable(records, "variance_shift").items():
        states = [run["variance_shift"]["states"] for run in runs]
        mean = statistics.fmean(value for state in states for value in state["trained"]["r_mean"])
        largest = statistics.fmean(max(state["trained"]["r_max"]) for state in states)
        gains = [_shown(_gain(states, repair)) for repair in STATES if repair != "trained"]
        accuracy = spread([state["trained"]["top1"] for state in states])
        lines.append([row, str(len(runs)), f"{mean:.2f}", f"{largest:.2f}", accuracy, *gains])
    labels = [label for state, label in STATES.items() if state != "trained"]
    return Table(["row", "runs", "r, mean", "r, largest", "as trained, %", *labels], lines)


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """Whether repairs help, in a sentence: for how many forms of noise each is clearly a gain, or a loss."""
    parts = []
    for repair, label in STATES.items():
        gains = [
            gain
            for row, runs in usable(records, "variance_shift").items()
            if row != "none"
            and repair != "trained"
            and (gain := _gain([run["variance_shift"]["states"] for run in runs], repair))
        ]
        clear = [mean > 0 for mean, error in gains if abs(mean) > CLEAR * error]  # never of one run
        if gains:
            won, lost = clear.count(True), clear.count(False)
            counts = f"{won} gain{'s' * (won != 1)} and {lost} loss{'es' * (lost != 1)}"
            parts.append(f"{label}: {counts} in {len(gains)} form{'s' * (len(gains) != 1)}")
    return f"Test accuracy after a repair, by more than {CLEAR:g} standard errors. {'; '.join(parts)}."


def coadaptation_table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each form of noise: co(x) without noise, its mean over blocks, and that of the last block.

    p is of Welch's two-sided t-test on the mean over blocks, against the networks that were trained without noise.
    """
    rows = usable(records, "coadaptation")
    means = {row: [statistics.fmean(run["coadaptation"]["value"]) for run in runs] for row, runs in rows.items()}
    lines = []
    for row, runs in rows.items():
        last = [run["coadaptation"]["value"][-1] for run in runs]
        test = "–" if row == "none" else significance(means[row], means.get("none", []))
        lines.append([row, str(len(runs)), spread(means[row]), spread(last), test])
    return Table(["row", "runs", "co(x), mean of blocks", "co(x), last block", "p, none"], lines)


def section(title: str, records: Sequence[dict[str, Any]]) -> Section:
    """The part of the report that these records have."""
    first = records[0]
    prose = [
        f"{len(records)} runs of {first['steps']:,} steps on {', '.join(sorted({r['device'] for r in records}))}. The "
        "noise has λ = 1, a keep rate of ½: -a straight before the first BatchNorm layer of every block of the third "
        "stage, -b before its second convolution. r = max(train / test, test / train) of the variance before the "
        "BatchNorm layer behind it: mean over channels, blocks and runs; largest of all channels and blocks, mean over "
        "runs.",
        "Test accuracy as trained, mean ± standard deviation, and what a repair of the running variances adds to it in "
        "percentage points, mean ± standard error: times the keep rate, the paper’s correction, which it tried on all "
        "forms; by the closed form, where there is one; taken again with the noise off.",
    ]
    return Section(
        title,
        prose,
        table(records),
        style.to_svg(curves_figure(records)),
        f"Test accuracy {CAPTION}",
        verdict(records),
    )


def _gain(states: Sequence[dict[str, Any]], repair: str) -> tuple[float, float] | None:
    """What a repair adds to accuracy: mean over runs and its standard error, NaN for one; None if it was refused."""
    gains = [state[repair]["top1"] - state["trained"]["top1"] for state in states if "top1" in state[repair]]
    if not gains:
        return None
    mean, sd = mean_sd(gains)
    return mean, sd / math.sqrt(len(gains))


def _shown(gain: tuple[float, float] | None) -> str:
    if gain is None:
        return "–"
    mean, error = gain
    text = f"{mean:+.2f}".replace("-", "−")
    return text if math.isnan(error) else f"{text} ± {error:.2f}"
