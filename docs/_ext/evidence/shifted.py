"""What noise beside BatchNorm did to trained networks: the variance shift, repairs of it, and co-adaptation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rotationout.experiments.records import mean_sd
from rotationout.experiments.results import read_records
from rotationout.recipes.search import BEST, STRONG
from rotationout.report import shift, table1, verdicts
from rotationout.report.cells import by_row, mean_lead, p_value, shown_p, signed, spread

from .cells import RESULTS, span
from .resnet110 import TABLE1

__all__ = ["ROWS", "texts"]

ROWS = {
    "none": ("none", "top1_trained"),
    "Dropout-a, centred": (
        "dropout_a",
        "r span largest stored_trained stored_divided first_corrected last_corrected top1_trained top1_recalibrated "
        "gain_recalibrated",
    ),
    "Dropout-b": ("dropout_b", "r stored_trained stored_divided"),
    "Dropout-b, centred": ("dropout_b_centred", "r stored_trained top1_trained"),
    "RotationOut-a": ("rotation_a", "largest top1_trained top1_recalibrated gain_recalibrated"),
    "RotationOut-b": ("rotation_b", "top1_trained"),
}
"""What the rows of the table are called in the names of numbers, and the numbers of each that pages use: what is
measured, and in which state. The names are shift_top1_trained_none and so on."""


def texts() -> dict[str, str]:
    """By name."""
    records = read_records(RESULTS, shift.RECIPE)
    rows = shift.usable(records, "variance_shift")
    accuracies = [{"row": row, "top1": _state(run)["top1"]} for row, runs in rows.items() for run in runs]
    compared = shift.compared_shift(records), shift.compared_coadaptation(records)
    accuracy = verdicts.verdict(accuracies, shift.RIVALS, "top1", "points")
    # The co-adaptation of these is in the same section.
    whole = [(read_records(RESULTS, TABLE1), table1.RIVALS), (read_records(RESULTS, STRONG), {BEST[1]: BEST[0]})]
    said = (*compared, accuracy, *(shift.compared_coadaptation(*both) for both in whole))
    tests = sum(text.count("p-value") for text in said)
    for found, rivals in ((records, shift.RIVALS), *whole):
        tests += sum(row not in ("none", *rivals) for row in by_row(found))  # in a table of co-adaptation alone
    losses = {row: statistics.fmean(run["train_loss"][-1] for run in runs) for row, runs in rows.items()}
    return {
        "shift_table": shift.table(records).markdown(),
        "shift_blocks_table": shift.blocks_table(records).markdown(),
        "shift_compared": compared[0],
        "shift_accuracy_compared": accuracy,
        "shift_runs": str(sum(map(len, rows.values()))),
        "shift_tests": str(tests),
        "shift_corrected": f"{verdicts.LEVEL / tests:.3f}",
        "shift_seeds": str(min(map(len, rows.values()))),
        "shift_steps": f"{records[0]['steps']:,}",
        "shift_loss_none": f"{losses.pop('none'):.2f}",
        "shift_losses": span(list(losses.values())),
        "coadaptation_table": shift.coadaptation_table(records).markdown(),
        "coadaptation_compared": compared[1],
        **{f"shift_place_p_{key}": shown_p(p) for key, p in _places(rows).items()},
        **_centring(rows),
        **{
            f"shift_{number}_{name}": _number(rows[row], *number.split("_"))
            for row, (name, numbers) in ROWS.items()
            for number in numbers.split()
        },
    }


def _places(rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Whether accuracy differs between noise before the convolution and directly before BatchNorm: p-values."""
    pairs = {"dropout": ("Dropout-b, centred", "Dropout-a, centred"), "rotation": ("RotationOut-b", "RotationOut-a")}
    accuracy = {row: [_state(run)["top1"] for run in runs] for row, runs in rows.items()}
    return {key: p_value(accuracy[b], accuracy[a]) for key, (b, a) in pairs.items()}


def _centring(rows: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """What the batch mean does to the accuracy of Dropout before the convolution."""
    centred, plain = ([_state(run)["top1"] for run in rows[row]] for row in ("Dropout-b, centred", "Dropout-b"))
    gain = mean_lead([(centred, plain)])
    return {"shift_centring": signed(gain.mean), "shift_centring_p": shown_p(gain.p)}


def _number(runs: list[dict[str, Any]], what: str, state: str = "trained") -> str:
    """A number of one form of noise: r, what is stored, accuracy, or what a repair adds to it."""
    measured = [_state(run, state) for run in runs]
    if what == "span":
        return span([statistics.fmean(block) for block in zip(*(one["r_mean"] for one in measured), strict=True)])
    if what == "gain":
        return signed(*mean_sd([_state(run, state)["top1"] - _state(run)["top1"] for run in runs]))
    values: dict[str, Callable[[dict[str, Any]], float]] = {
        "r": lambda one: statistics.fmean(one["r_mean"]),
        "largest": lambda one: max(one["r_max"]),
        "stored": lambda one: statistics.fmean(one["stored_r_mean"]),
        "first": lambda one: one["stored_r_mean"][0],
        "last": lambda one: one["stored_r_mean"][-1],
        "top1": lambda one: one["top1"],
    }
    return spread([values[what](one) for one in measured])


def _state(run: dict[str, Any], state: str = "trained") -> dict[str, Any]:
    found: dict[str, Any] = run["variance_shift"]["states"][state]
    return found
