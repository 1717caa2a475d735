"""What noise beside BatchNorm did to trained networks: the variance shift, repairs of it, and co-adaptation."""

from __future__ import annotations

import statistics
from typing import Any

from rotationout.experiments.records import mean_sd
from rotationout.experiments.results import read_records
from rotationout.recipes.search import BEST, STRONG
from rotationout.report import shift, table1, verdicts
from rotationout.report.cells import by_row, mean_lead, p_value, shown_p, signed, spread

from .accuracy import TABLE1
from .cells import RESULTS, span

__all__ = ["NAMES", "texts"]

NAMES = {
    "none": "none",
    "Dropout-a, centred": "dropout_a",
    "Dropout-b": "dropout_b",
    "Dropout-b, centred": "dropout_b_centred",
    "RotationOut-a": "rotation_a",
    "RotationOut-b": "rotation_b",
}
"""What the rows of the table are called in the names of numbers."""


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
        **{key: text for row, runs in rows.items() for key, text in _row(NAMES[row], runs).items()},
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


def _row(name: str, runs: list[dict[str, Any]]) -> dict[str, str]:
    """Numbers of one form of noise: r, what is stored before and after repairs, accuracy, and what repairs add."""
    blocks = [statistics.fmean(block) for block in zip(*(_state(run)["r_mean"] for run in runs), strict=True)]
    found = {
        f"shift_r_{name}": spread([statistics.fmean(_state(run)["r_mean"]) for run in runs]),
        f"shift_span_{name}": span(blocks),
        f"shift_largest_{name}": spread([max(_state(run)["r_max"]) for run in runs]),
    }
    for state in shift.STATES:
        measured = [_state(run, state) for run in runs if "top1" in _state(run, state)]
        if not measured:
            continue
        stored = [one["stored_r_mean"] for one in measured]
        gains = [_state(run, state)["top1"] - _state(run)["top1"] for run in runs]
        found |= {
            f"shift_top1_{state}_{name}": spread([one["top1"] for one in measured]),
            f"shift_gain_{state}_{name}": signed(*mean_sd(gains)),
            f"shift_stored_{state}_{name}": spread([statistics.fmean(blocks) for blocks in stored]),
            f"shift_first_{state}_{name}": spread([blocks[0] for blocks in stored]),
            f"shift_last_{state}_{name}": spread([blocks[-1] for blocks in stored]),
        }
    return found


def _state(run: dict[str, Any], state: str = "trained") -> dict[str, Any]:
    found: dict[str, Any] = run["variance_shift"]["states"][state]
    return found
