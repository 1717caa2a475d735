"""What pages say in words about the runs of Table 1 is so in their records."""

import functools
import statistics
from pathlib import Path
from typing import Any

import pytest

from rotationout.experiments.results import read_records
from rotationout.recipes import search
from rotationout.report.cells import by_row, differs, mean_lead, p_value, spread
from rotationout.report.table1 import PAPER, prose, rivals_lead
from rotationout.report.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NONE, DROPOUT, ROTATION = "none", "dropout keep 0.8", "rotation default sigma 0.500"
ORIGIN, STRUCTURED = "rotation uncentred sigma 0.500", "rotation structured sigma 0.500"
WEAKER = "dropout keep 0.9", "rotation default sigma 0.333"
RECORDS = read_records(ROOT / "results", "cifar100_resnet110_authors")
ROWS = by_row(RECORDS)
POINTS = {row: [run["last10_top1"] for run in runs] for row, runs in ROWS.items()}
DECAYED = by_row(read_records(ROOT / "results", search.STRONG))
MORE = {row: [run["last10_top1"] for run in runs] for row, runs in DECAYED.items()}
"""The same with five times the weight decay."""
BLOCKS = 18
"""Of the third stage, in which co-adaptation is measured."""
PLACES = ("none", "dropout 0.9", "rotation 0.333", "dropout 0.8", "rotation 0.500")
PRINTED = {
    row: PAPER["resnet110"][place][0] for row, place in zip((NONE, *WEAKER, DROPOUT, ROTATION), PLACES, strict=True)
}


def test_the_table_of_the_readme_is_that_of_the_records() -> None:
    labels = ("none", "Dropout, p = 0.1", "RotationOut, p = 0.1", "Dropout, p = 0.2", "RotationOut, p = 0.2")
    decayed = [*map(spread, MORE.values()), "–", "–"]
    lines = [
        f"| {label} | {spread(POINTS[row])} | {printed} | {more} |"
        for label, (row, printed), more in zip(labels, PRINTED.items(), decayed, strict=True)
    ]
    lines.append(f"| RotationOut, p = 0.2, about the origin | {spread(POINTS[ORIGIN])} | – | – |")
    assert "\n".join(lines) in README
    assert {*PRINTED, ORIGIN, STRUCTURED} == ROWS.keys(), "the others, centred Dropout among them, have no runs yet"
    assert {len(runs) for runs in ROWS.values()} == {3}
    header = "| here, 3 runs each | the paper, 5 runs each | here, five times the weight decay, 3 runs each |"
    assert header in README
    assert list(MORE) == [NONE, *search.BEST]
    assert {len(runs) for runs in MORE.values()} == {3}
    assert {run["steps"] for run in RECORDS} == {64_000}


def test_rotations_are_ahead_of_no_noise_and_of_dropout() -> None:
    """README.md, reproducing.md, choosing.md and negative_results.md."""
    lead, runs = rivals_lead(RECORDS, (0.9, 0.8))
    assert lead.p < LEVEL
    assert runs == [3, 3]
    assert "Welch’s test of the mean lead" in prose(RECORDS)[-1]
    at = [p_value(POINTS[row], POINTS[other]) for other, row in (WEAKER, (DROPOUT, ROTATION))]
    assert at[0] < LEVEL < at[1], "significant by itself at p = 0.1 alone"
    alone = f"at p = 0.1 alone {at[0]:.3f}, at p = 0.2 alone {at[1]:.3f}"
    assert f"over both p {lead.mean:.2f} points ahead of Dropout (p-value {lead.p:.3f}; {alone})" in " ".join(
        README.split()
    )
    for dropout, rotation in (WEAKER, (DROPOUT, ROTATION)):
        assert p_value(POINTS[rotation], POINTS[NONE]) < LEVEL
        assert min(POINTS[rotation]) > max(POINTS[dropout]) > min(POINTS[dropout]) > max(POINTS[NONE])
    theirs = {row: float(text.split()[0]) for row, text in PRINTED.items()}
    printed = [theirs[row] - theirs[other] for other, row in (WEAKER, (DROPOUT, ROTATION))]
    assert abs(lead.mean - statistics.fmean(printed)) < 0.25, "as the paper says"
    for noise in ("dropout", "rotation"):
        means = {place: float(pair[0].split()[0]) for place, pair in PAPER["resnet110"].items()}
        best = sorted((place for place in means if place.startswith(noise)), key=lambda place: -means[place])
        assert set(best[:2]) < set(PLACES), "the two strengths at which the paper's do best"
    assert all(
        p_value(POINTS[weak], POINTS[strong]) > LEVEL for weak, strong in zip(WEAKER, (DROPOUT, ROTATION), strict=True)
    )
    assert not any(differs(POINTS[row], PRINTED[row]) for row in PRINTED)
    losses = {row: statistics.fmean(run["train_loss"][-1] for run in runs) for row, runs in ROWS.items()}
    assert losses[NONE] < 0.02, "by heart"


def test_about_the_origin_they_are_not_ahead_of_dropout() -> None:
    """README.md, reproducing.md, choosing.md and negative_results.md."""
    behind, level = (mean_lead([(POINTS[ORIGIN], POINTS[row])]) for row in (ROTATION, DROPOUT))
    assert behind.p < LEVEL < level.p
    assert max(POINTS[ORIGIN]) < min(POINTS[ROTATION])
    assert p_value(POINTS[ORIGIN], POINTS[NONE]) < LEVEL
    lower = f"about the origin it is {-behind.mean:.2f} points lower (p-value {behind.p:.3f}) "
    said = f"{lower}and not significantly different from Dropout (p-value {level.p:.3f})"
    assert said in " ".join(README.split())


def test_structured_pairings_do_not_differ_significantly_from_permutations() -> None:
    """batchnorm.md, mathematics.md, negative_results.md and reproducing.md."""
    permuted, dropout = (mean_lead([(POINTS[STRUCTURED], POINTS[row])]) for row in (ROTATION, DROPOUT))
    assert abs(permuted.mean) < 0.1
    assert permuted.p > 0.5
    assert permuted.low < -1 < 1 < permuted.high, "differences of a point are not excluded"
    assert min(POINTS[STRUCTURED]) > max(POINTS[DROPOUT])
    assert dropout.p > LEVEL > p_value(POINTS[STRUCTURED], POINTS[NONE])
    for row, runs in ROWS.items():
        states = [run["variance_shift"]["states"] for run in runs]
        gains = [state["recalibrated"]["top1"] - state["trained"]["top1"] for state in states]
        assert (max(gains) < -0.2) is (row in (ROTATION, STRUCTURED)), "recalibration costs accuracy in all runs"


def test_rotations_fit_as_dropout_of_twice_the_rate_does() -> None:
    """reproducing.md: training loss with the noise on, and the lead over that Dropout."""
    losses = {row: [run["train_loss"][-1] for run in runs] for row, runs in ROWS.items()}
    assert p_value(losses[WEAKER[1]], losses[DROPOUT]) > LEVEL
    assert min(losses[WEAKER[1]]) > max(losses[WEAKER[0]])
    assert min(losses[ROTATION]) > max(losses[DROPOUT])
    assert p_value(POINTS[WEAKER[1]], POINTS[DROPOUT]) > LEVEL
    searched = by_row(read_records(ROOT / "results", search.SEARCH))
    default, either = "rotation sigma 0.500", "rotation sigma 0.500, to either side"
    at_end = [searched[row][0]["train_loss"][-1] for row in (either, DROPOUT, default)]
    assert at_end == sorted(at_end), "symmetric angles lower it, below that of Dropout"


def test_rotations_are_ahead_with_more_weight_decay_too() -> None:
    """README.md, reproducing.md, choosing.md and negative_results.md."""
    dropout, rotation = (MORE[row] for row in search.BEST)
    lead, before = (mean_lead([pair]) for pair in ((rotation, dropout), (POINTS[WEAKER[1]], POINTS[WEAKER[0]])))
    assert lead.p < LEVEL
    change = mean_lead([(rotation, dropout), (POINTS[WEAKER[0]], POINTS[WEAKER[1]])])
    assert 2 * change.mean == pytest.approx(lead.mean - before.mean)
    assert 2 * change.low < -0.5 < 0.5 < 2 * change.high, "cannot tell whether it grows or shrinks"
    assert f"with five times the weight decay {lead.mean:.2f} points (p-value {lead.p:.3f})" in README
    assert p_value(rotation, MORE[NONE]) < LEVEL < p_value(dropout, MORE[NONE]), "Dropout not significantly"
    assert min(rotation) > max(dropout)
    for row, other in zip((NONE, *search.BEST), (NONE, *WEAKER), strict=True):
        assert statistics.fmean(MORE[row]) > statistics.fmean(POINTS[other]), "weight decay, for all three rows"
    assert not any(run["config"]["held_out"] for runs in DECAYED.values() for run in runs), "on the test set"
    ways = {(run["steps"], run["weight_decay"]) for runs in (*ROWS.values(), *DECAYED.values()) for run in runs}
    assert ways == {(64_000, 1e-4), (64_000, 5e-4)}
    for row, other in zip(("none", *search.BEST), (NONE, *WEAKER), strict=True):
        config, theirs = DECAYED[row][0]["config"], ROWS[other][0]["config"]
        differing = {key for key, value in config.items() if value != theirs.get(key, 0)}  # of older records: no subset
        assert differing - {"row"} == {"recipe", "weight_decay", "studies"}


def blocks_below(rows: dict[str, list[dict[str, Any]]], row: str, other: str) -> list[int]:
    """The blocks, from 0, in which all runs are less co-adapted than all of another row."""
    ours, theirs = (zip(*(run["coadaptation"]["value"] for run in rows[name]), strict=True) for name in (row, other))
    return [k for k, (one, two) in enumerate(zip(ours, theirs, strict=True)) if max(one) < min(two)]


def test_the_last_blocks_are_less_coadapted_with_rotations() -> None:
    """reproducing.md and negative_results.md: counted are blocks in which all runs are on one side of all others."""
    below = functools.partial(blocks_below, ROWS)
    count = BLOCKS
    for dropout, rotation in (WEAKER, (DROPOUT, ROTATION)):
        assert below(rotation, dropout) == list(range(count))
        assert [k for k in below(rotation, NONE) if k] == list(range(count - 4, count)), "besides the first block"
    assert below(DROPOUT, NONE) == [count - 1]
    assert below(WEAKER[0], NONE) == []
    assert below(ORIGIN, NONE) == [0, count - 3, count - 2, count - 1]
    assert below(ORIGIN, DROPOUT) == [0, 1, 2, count - 3, count - 2, count - 1]
    assert len(below(DROPOUT, ORIGIN)) == 7
    assert 2 < min(below(DROPOUT, ORIGIN)) <= max(below(DROPOUT, ORIGIN)) < count - 3, "between"
    assert [k for k in below(STRUCTURED, NONE) if k] == [count - 3, count - 2, count - 1]
    assert below(STRUCTURED, NONE)[0] == 0
    assert below(STRUCTURED, ROTATION) == below(ROTATION, STRUCTURED) == []
    assert below(NONE, STRUCTURED)[0] == 1
    assert {len(runs) for runs in ROWS.values()} == {3}, "in one case of twenty by chance"
    means = {row: [statistics.fmean(run["coadaptation"]["value"]) for run in runs] for row, runs in ROWS.items()}
    for row, first in {DROPOUT: 1, ROTATION: 1, WEAKER[0]: 1, WEAKER[1]: 3, ORIGIN: 1, STRUCTURED: 1}.items():
        more = below(NONE, row)
        assert more[0] == first
        assert set(range(first, count // 2)) <= set(more), "the more co-adapted ones in the first half"
        if row in (WEAKER[1], STRUCTURED):
            assert p_value(means[row], means[NONE]) > LEVEL
        else:
            assert min(means[row]) > max(means[NONE]), "and on average"
            assert p_value(means[row], means[NONE]) < LEVEL


def test_with_more_weight_decay_the_last_blocks_but_one_are_less_coadapted() -> None:
    """reproducing.md, where blocks are counted from 1."""
    dropout, rotation = search.BEST
    below = functools.partial(blocks_below, DECAYED)
    assert [k + 1 for k in below(rotation, NONE)] == [12, 13, 14, 15, 16, 17]
    assert [k + 1 for k in below(NONE, rotation)] == [5, 7, 8, 9, 10]
    assert below(rotation, dropout) == list(range(BLOCKS - 1))
