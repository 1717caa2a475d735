"""The variance shift at the strengths that help: in the networks of Table 1, and what repairs do to it."""

from __future__ import annotations

import statistics
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.report.cells import by_row, mean_lead, p_value, shown_p, signed, spread

from .cells import RESULTS, markdown, span
from .resnet110 import STRUCTURED, TABLE1

__all__ = ["texts"]

PAIRS = (
    ("rotation default sigma 0.333", "dropout keep 0.9"),
    ("rotation default sigma 0.500", "dropout keep 0.8"),
)
"""RotationOut and Dropout of p = 0.1 and 0.2."""
ORIGIN = "rotation uncentred sigma 0.500"
NAMES = {
    "none": "no noise",
    PAIRS[0][1]: "Dropout, p = 0.1",
    PAIRS[0][0]: "RotationOut, p = 0.1",
    PAIRS[1][1]: "Dropout, p = 0.2",
    PAIRS[1][0]: "RotationOut, p = 0.2",
    STRUCTURED: "RotationOut, p = 0.2, structured",
    ORIGIN: "RotationOut, p = 0.2, about the origin",
}


def texts() -> dict[str, str]:
    """By name."""
    runs = by_row(read_records(RESULTS, TABLE1))
    shift = {row: [_shift(run, "bn2") for run in found] for row, found in runs.items()}
    rows = [
        [
            name,
            spread([_shift(run, "bn1") for run in runs[row]]),
            spread(shift[row]),
            *(_change(runs[row], repair) for repair in ("recalibrated", "divided")),
        ]
        for row, name in NAMES.items()
    ]
    header = ["noise", "r, first BatchNorm", "r, second BatchNorm", "recalibrated", "times the keep rate"]
    more = [mean_lead([(shift[ours], shift[theirs])]).mean for ours, theirs in PAIRS]
    divided = [-_mean(runs[row], "divided") for row in NAMES if row != "none"]
    return {
        "useful_table": markdown(header, rows),
        "useful_cost": " and ".join(f"{-_mean(runs[row], 'recalibrated'):.2f}" for row in (PAIRS[1][0], STRUCTURED)),
        "useful_divided": span(divided, 1),
        "useful_more": " and ".join(f"{gain:.2f}" for gain in more),
        "useful_more_p": " and ".join(shown_p(p_value(shift[ours], shift[theirs])) for ours, theirs in PAIRS),
    }


def _shift(run: dict[str, Any], norm: str) -> float:
    """r, mean over the BatchNorm layers of that name."""
    study = run["variance_shift"]
    found = zip(study["layers"], study["states"]["trained"]["r_mean"], strict=True)
    return statistics.fmean(r for layer, r in found if layer.endswith(norm))


def _gains(runs: list[dict[str, Any]], repair: str) -> list[float]:
    """What a repair adds to the accuracy of each run, in points."""
    states = [run["variance_shift"]["states"] for run in runs]
    return [state[repair]["top1"] - state["trained"]["top1"] for state in states]


def _mean(runs: list[dict[str, Any]], repair: str) -> float:
    return statistics.fmean(_gains(runs, repair))


def _change(runs: list[dict[str, Any]], repair: str) -> str:
    gains = _gains(runs, repair)
    return signed(statistics.fmean(gains), statistics.stdev(gains))
