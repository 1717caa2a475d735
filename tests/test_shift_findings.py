"""What pages say in words of noise beside BatchNorm and of co-adaptation is what the records say.

Numbers are filled in from records when pages are built; these are the sentences around them.
"""

import importlib
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import shift_rows
from rotationout.recipes.search import BEST, STRONG
from rotationout.report import shift, table1
from rotationout.report.cells import by_row, p_value
from rotationout.report.verdicts import LEVEL

RESULTS = Path(__file__).parents[1] / "results"
ROWS = shift.usable(read_records(RESULTS, shift.RECIPE), "variance_shift")
NOISY = [row for row in ROWS if row != "none"]
BEFORE_NORM = ["Dropout-a, centred", "RotationOut-a"]
BEFORE_CONVOLUTION = ["Dropout-b", "Dropout-b, centred", "RotationOut-b"]


def states(row: str, state: str = "trained") -> list[dict[str, Any]]:
    return [run["variance_shift"]["states"][state] for run in ROWS[row]]


def blocks(row: str, key: str = "r_mean", state: str = "trained") -> list[list[float]]:
    """Of every block the values of all runs."""
    return [list(values) for values in zip(*(one[key] for one in states(row, state)), strict=True)]


def mean(row: str, key: str = "r_mean", state: str = "trained") -> list[float]:
    """Of every run its mean over blocks."""
    return [statistics.fmean(one[key]) for one in states(row, state)]


def gains(row: str, repair: str) -> list[float]:
    return [after["top1"] - before["top1"] for before, after in zip(states(row), states(row, repair), strict=True)]


def above(ours: list[list[float]], theirs: list[list[float]]) -> list[bool]:
    """Of every block whether all runs are above all of theirs."""
    return [min(one) > max(other) for one, other in zip(ours, theirs, strict=True)]


def test_every_row_has_its_runs() -> None:
    assert list(ROWS) == [config.row for config in shift_rows()] == ["none", *sorted(BEFORE_NORM + BEFORE_CONVOLUTION)]
    for row, runs in ROWS.items():
        assert sorted(run["seed"] for run in runs) == [0, 1, 2], row
        assert all(len(one["r_mean"]) == 18 for one in states(row))


def test_how_far_variances_are_shifted_in_each_place() -> None:
    """reproducing.md, its first sentence on Figure 2: about twice, and about one and a half times."""
    for rows, factor in ((BEFORE_NORM, 2.0), (BEFORE_CONVOLUTION, 1.5)):
        assert all(abs(value - factor) < 0.15 for row in rows for value in mean(row))


def test_the_shift_by_block_and_form() -> None:
    """reproducing.md, the bullets of Figure 2 in their order."""
    trained = blocks("Dropout-a, centred")
    assert all(abs(value - 2) < 0.2 for block in trained for value in block), "1/keep"
    for run in states("Dropout-a, centred"):
        assert statistics.fmean(run["r_mean"][-6:]) > statistics.fmean(run["r_mean"][:6]) + 0.05, "grows with depth"
        assert all(most < 1.1 * r for most, r in zip(run["r_max"], run["r_mean"], strict=True)), (
            "channels differ little"
        )
    for row in BEFORE_CONVOLUTION:
        assert all(above(trained, blocks(row))), "lower before the convolution"
        means = [statistics.fmean(block) for block in blocks(row)]
        assert min(means) == means[0]
        assert max(means[1:]) - min(means[1:]) < means[1] - means[0], "hardly changes from the second on"
    assert all(above(blocks("Dropout-b"), blocks("Dropout-b, centred"))), "centring lowers it"
    ratios = [r for row in BEFORE_CONVOLUTION for block in blocks(row) for r in block]
    assert 1.2 < min(ratios) <= max(ratios) < 2, "lower than 1 + λ with random weights, but not 1 (negative_results.md)"


def test_the_shift_of_rotations_beside_dropout() -> None:
    a, b = (p_value(mean(ours), mean(theirs)) for ours, theirs in shift.RIVALS.items())
    assert max(a, b) < LEVEL
    assert statistics.fmean(mean("RotationOut-a")) < statistics.fmean(mean("Dropout-a, centred"))
    turned, dropped = blocks("RotationOut-a"), blocks("Dropout-a, centred")
    means = [statistics.fmean(block) for block in turned]
    assert above(turned, dropped)[:4] == [True] * 4, "not so in the first blocks"
    assert max(means) == means[0]
    channels = above(blocks("RotationOut-a", "r_max"), blocks("Dropout-a, centred", "r_max"))
    assert channels.count(True) >= 17, "nor of single channels"
    assert all(above(blocks("RotationOut-b"), blocks("Dropout-b, centred")))
    assert 0 < statistics.fmean(mean("Dropout-b")) - statistics.fmean(mean("RotationOut-b")) < 0.05, "a little below"


@pytest.mark.parametrize("row", NOISY)
def test_the_keep_rate_brings_variances_nearer_in_one_place_only(row: str) -> None:
    nearer = max(mean(row, "stored_r_mean", "divided")) < min(mean(row, "stored_r_mean"))
    further = min(mean(row, "stored_r_mean", "divided")) > max(mean(row, "stored_r_mean"))
    assert (nearer, further) == (row in BEFORE_NORM, row in BEFORE_CONVOLUTION)


@pytest.mark.parametrize("row", NOISY)
def test_what_repairs_do_to_accuracy(row: str) -> None:
    """batchnorm.md and negative_results.md."""
    closed = ["corrected"] if row in BEFORE_NORM else []
    for repair in ("divided", *closed):
        assert max(gains(row, repair)) < 0, "in every run"
        assert statistics.fmean(gains(row, repair)) < -4
        for run in states(row, repair):
            assert run["stored_r_mean"][-1] > run["stored_r_mean"][0] + 0.5, "off by more, the deeper"
    assert all("refused" in run for run in states(row, "corrected")) == (not closed)
    assert max(r for run in states(row, "recalibrated") for r in run["stored_r_max"]) < 1.05, "by a twentieth"
    again = gains(row, "recalibrated")
    assert min(again) > 0 if row in BEFORE_NORM else -1 < min(again) <= max(again) < 0


def test_noise_before_batchnorm_is_behind_noise_before_the_convolution_repaired_or_not() -> None:
    for repaired, other in (("Dropout-a, centred", "Dropout-b, centred"), ("RotationOut-a", "RotationOut-b")):
        after, trained = ([run["top1"] for run in found] for found in (states(repaired, "recalibrated"), states(other)))
        assert p_value(after, trained) > LEVEL
        assert statistics.fmean(after) < statistics.fmean(trained)
        assert max(run["top1"] for run in states(repaired)) < min(trained), "as trained it is behind in every run"
        moved = p_value(trained, [run["top1"] for run in states(repaired)])
        assert (moved < LEVEL) == (other == "Dropout-b, centred"), "significant for Dropout alone"


def test_so_much_noise_costs_accuracy() -> None:
    without = min(run["top1"] for run in states("none"))
    assert all(run["top1"] < without - 1 for row in NOISY for run in states(row))


def test_networks_trained_with_noise_are_more_coadapted() -> None:
    """reproducing.md and negative_results.md: on average with every form, and in most blocks in every run."""
    found = {row: [run["coadaptation"]["value"] for run in runs] for row, runs in ROWS.items()}
    means = {row: [statistics.fmean(run) for run in runs] for row, runs in found.items()}
    assert sum(len(means[row]) for row in NOISY) == 15
    assert math.comb(15 + 3, 3) == 816, "ways for any three of eighteen to be the lowest"
    by_block = {row: [list(block) for block in zip(*runs, strict=True)] for row, runs in found.items()}
    for row in NOISY:
        assert min(means[row]) > max(means["none"])
        assert p_value(means[row], means["none"]) < LEVEL
        assert above(by_block[row], by_block["none"]).count(True) > 9
        below = [place for place, is_below in enumerate(above(by_block["none"], by_block[row])) if is_below]
        assert below == ([0] if row.startswith("RotationOut") else []), "RotationOut in the first block alone"


def test_most_p_values_do_not_hold_against_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """reproducing.md says how many there are, and that most are above what would be needed then."""
    coadapted = {row: [statistics.fmean(run["coadaptation"]["value"]) for run in runs] for row, runs in ROWS.items()}
    accurate = {row: [run["top1"] for run in states(row)] for row in ROWS}
    found = [
        p_value(ours, theirs)
        for row, rival in shift.RIVALS.items()
        for ours, theirs in (
            (mean(row), mean(rival)),
            (coadapted[row], coadapted[rival]),
            (accurate[row], accurate[rival]),
            (accurate[row], accurate["none"]),
        )
    ]
    found += [p_value(coadapted[row], coadapted["none"]) for row in NOISY]
    whole = {"cifar100_resnet110_authors": table1.RIVALS, STRONG: {BEST[1]: BEST[0]}}
    for recipe, rivals in whole.items():
        rows = by_row(read_records(RESULTS, recipe))
        coadapted = {row: [statistics.fmean(run["coadaptation"]["value"]) for run in rows[row]] for row in rows}
        found += [p_value(coadapted[row], coadapted["none"]) for row in coadapted if row != "none"]
        found += [p_value(coadapted[row], coadapted[rival]) for row, rival in rivals.items() if row in coadapted]
    monkeypatch.syspath_prepend(str(RESULTS.parent / "docs" / "_ext"))
    assert len(found) == int(importlib.import_module("evidence.shifted").texts()["shift_tests"])
    assert sum(p < LEVEL / len(found) for p in found) < len(found) / 2 < sum(p < LEVEL for p in found)
    centring = p_value(accurate["Dropout-b, centred"], accurate["Dropout-b"])
    assert centring > LEVEL, "reproducing.md, choosing.md and batchnorm.md"
