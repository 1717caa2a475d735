"""What pages say in words about the runs of Table 1 is so in their records."""

import statistics
from pathlib import Path

from rotationout.experiments.results import read_records
from rotationout.report.cells import by_row, differs, p_value, spread
from rotationout.report.table1 import PAPER
from rotationout.report.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NONE, DROPOUT, ROTATION = "none", "dropout keep 0.8", "rotation default sigma 0.500"
ROWS = by_row(read_records(ROOT / "results", "cifar100_resnet110_authors"))
POINTS = {row: [run["last10_top1"] for run in runs] for row, runs in ROWS.items()}
PRINTED = {
    row: PAPER["resnet110"][place][0]
    for row, place in {NONE: "none", DROPOUT: "dropout 0.8", ROTATION: "rotation 0.500"}.items()
}


def test_the_table_of_the_readme_is_that_of_the_records() -> None:
    labels = {NONE: "none", DROPOUT: "Dropout, p = 0.2", ROTATION: "RotationOut, p = 0.2"}
    for row, label in labels.items():
        assert f"| {label} | {spread(POINTS[row])} | {PRINTED[row]} |" in README
        assert f"| here, {len(POINTS[row])} runs each | the paper, 5 runs each |" in README
    assert {run["steps"] for row in labels for run in ROWS[row]} == {64_000}


def test_rotations_are_ahead_of_no_noise_and_by_chance_perhaps_of_dropout() -> None:
    """README.md, reproducing.md, choosing.md and negative_results.md."""
    ahead, level = (p_value(POINTS[ROTATION], POINTS[other]) for other in (NONE, DROPOUT))
    assert ahead < LEVEL < level
    assert f"RotationOut is ahead of no noise (p-value {ahead:.3f})." in README
    assert f"not significant (p-value {level:.3f})" in README
    ours = {row: statistics.fmean(values) for row, values in POINTS.items()}
    theirs = {row: float(text.split()[0]) for row, text in PRINTED.items()}
    lead, printed = (means[ROTATION] - means[DROPOUT] for means in (ours, theirs))
    assert abs(lead - printed) < 0.1, "close to the paper's"
    assert {len(POINTS[row]) for row in (NONE, DROPOUT, ROTATION)} == {3}
    assert {len(POINTS[row]) for row in ("dropout keep 0.9", "rotation default sigma 0.333")} == {1}
    assert not any(differs(POINTS[row], PRINTED[row]) for row in (NONE, DROPOUT, ROTATION))
    losses = {row: statistics.fmean(run["train_loss"][-1] for run in runs) for row, runs in ROWS.items()}
    assert losses[NONE] < 0.02, "by heart"


def test_the_last_blocks_are_less_coadapted_with_rotations() -> None:
    """reproducing.md and negative_results.md: counted are blocks in which all runs are on one side of all others."""
    blocks = {
        row: list(zip(*(run["coadaptation"]["value"] for run in runs), strict=True)) for row, runs in ROWS.items()
    }
    count = len(blocks[NONE])

    def below(row: str, other: str) -> list[int]:
        return [k for k in range(count) if max(blocks[row][k]) < min(blocks[other][k])]

    assert below(ROTATION, DROPOUT) == list(range(count))
    assert [k for k in below(ROTATION, NONE) if k] == list(range(count - 4, count)), "besides the first block"
    assert below(DROPOUT, NONE) == [count - 1]
    assert {len(blocks[row][0]) for row in (NONE, DROPOUT, ROTATION)} == {3}, "in one case of twenty by chance"
    for row in (DROPOUT, ROTATION):
        assert set(range(1, count // 2)) <= set(below(NONE, row)), "the more co-adapted ones in the first half"
        means = {of: [statistics.fmean(run["coadaptation"]["value"]) for run in ROWS[of]] for of in (row, NONE)}
        assert min(means[row]) > max(means[NONE]), "and on average"
