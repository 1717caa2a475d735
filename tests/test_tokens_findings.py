"""What pages say in words about noise on tokens is so in the records."""

import statistics
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import vit_rows
from rotationout.report.cells import by_row, p_value
from rotationout.report.table1 import lead_over
from rotationout.report.verdicts import LEVEL

RECORDS = read_records(Path(__file__).parents[1] / "results", "cifar100_vit")
ROWS = by_row(RECORDS)
POINTS = {row: [run["last10_top1"] for run in runs] for row, runs in ROWS.items()}
MEANS = {row: statistics.fmean(points) for row, points in POINTS.items()}
WEAK = ("dropout keep 0.9", "rotation default sigma 0.333", "rotation plane sigma 0.333")
STRONG = ("dropout keep 0.8", "rotation default sigma 0.500", "rotation plane sigma 0.500")


def test_all_rows_have_as_many_runs() -> None:
    assert ROWS.keys() == {row.row for row in vit_rows()}
    assert {len(runs) for runs in ROWS.values()} == {4}, "reproducing.md: --seeds 0-3"


def test_no_noise_is_ahead_of_none() -> None:
    for row in (*WEAK, *STRONG):
        assert MEANS[row] < MEANS["none"]


def test_the_larger_p_costs_accuracy_with_any_noise() -> None:
    for weak, strong in zip(WEAK, STRONG, strict=True):
        assert p_value(POINTS[weak], POINTS["none"]) > LEVEL > p_value(POINTS[strong], POINTS["none"])
        assert max(POINTS[strong]) < min(POINTS["none"]), "all runs below all"
        assert 0.9 < MEANS["none"] - MEANS[strong] < 1.4, "about a point"
    for dropout, *rotations in (WEAK, STRONG):
        assert min(p_value(POINTS[row], POINTS[dropout]) for row in rotations) > LEVEL


def test_the_gradient_in_the_plane_loses_less_at_the_larger_p() -> None:
    (_, weak_default, weak), (_, default, plane) = WEAK, STRONG
    assert p_value(POINTS[plane], POINTS[default]) < LEVEL < p_value(POINTS[weak], POINTS[weak_default])
    assert min(POINTS[plane]) > max(POINTS[default])
    assert MEANS[weak] < MEANS[weak_default]
    lead, _ = lead_over(RECORDS, {weak: weak_default, plane: default})
    assert lead.low < 0 < lead.high


def test_noise_leaves_later_blocks_more_coadapted() -> None:
    blocks = {row: [run["coadaptation"]["value"] for run in runs] for row, runs in ROWS.items()}
    none = blocks.pop("none")
    for later in (1, 2):
        least = min(values[later] for runs in blocks.values() for values in runs)
        assert least > max(values[later] for values in none)


def test_noise_leaves_the_training_loss_higher() -> None:
    last = {row: [run["train_loss"][-1] for run in runs] for row, runs in ROWS.items()}
    none = last.pop("none")
    assert min(map(min, last.values())) > max(none)
