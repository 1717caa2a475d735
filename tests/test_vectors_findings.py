"""What pages say in words about noise on vectors is so in the records."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import (
    ENOUGH_IMAGES,
    FRESH_IMAGES,
    KEEP,
    SIGMA,
    SIGMAS,
    WEAK,
    fresh_mlp_rows,
    mlp_rows,
)
from rotationout.report.cells import by_row, mean_lead, p_value, spread
from rotationout.report.gallery import trained
from rotationout.report.table1 import lead_over, rivals_lead
from rotationout.report.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
RECORDS = read_records(ROOT / "results", "cifar100_mlp")
ROWS = by_row(RECORDS)
POINTS = {row: [run["last10_top1"] for run in runs] for row, runs in ROWS.items()}
MEANS = {row: statistics.fmean(points) for row, points in POINTS.items()}
DROPOUT = [f"dropout keep {keep}" for keep in KEEP]
DEFAULT = [f"rotation default sigma {sigma}" for sigma in SIGMA.values()]
ZEROS = [f"rotation keep-zeros sigma {sigma}" for sigma in SIGMA.values()]
ISOTROPIC = [f"isotropic sigma {sigma}" for sigma in SIGMA.values()]
PLANE = [f"rotation plane sigma {sigma}" for sigma in SIGMA.values()]
WEAKER = {
    "dropout": f"dropout keep {WEAK}",
    "default": f"rotation default sigma {SIGMAS[WEAK]}",
    "plane": f"rotation plane sigma {SIGMAS[WEAK]}",
}
"""The noises of the tables of many images that were added later."""
CENTRED, GAUSSIAN = "rotation centred sigma 0.500", "gaussian dropout keep 0.8"


def layers(row: str) -> list[tuple[float, ...]]:
    """co(x) of all runs, for each layer."""
    return list(zip(*(run["coadaptation"]["value"] for run in ROWS[row]), strict=True))


def test_all_rows_have_as_many_runs() -> None:
    assert ROWS.keys() == {row.row for row in mlp_rows()}
    assert {len(runs) for runs in ROWS.values()} == {4}, "reproducing.md: --seeds 0-3"
    first, later = (
        {run["commit"] for run in RECORDS if (run["row"] in ISOTROPIC + PLANE) is since} for since in (False, True)
    )
    assert len(first) == 1
    assert not first & later, "reproducing.md: isotropic noise came later, and the gradient in the plane"
    assert {run["epochs"] for run in RECORDS} == {65}


def test_both_noises_do_best_where_they_are_weak_and_level() -> None:
    """reproducing.md, choosing.md and negative_results.md."""
    for rows in (DROPOUT, DEFAULT):
        assert set(sorted(rows, key=lambda row: -MEANS[row])[:2]) == set(rows[:2])
    for ours, theirs in zip(DEFAULT[:2], DROPOUT[:2], strict=True):
        assert p_value(POINTS[ours], POINTS[theirs]) > LEVEL
        assert p_value(POINTS[ours], POINTS["none"]) < LEVEL
        assert p_value(POINTS[theirs], POINTS["none"]) < LEVEL


def test_too_much_noise_costs_rotations_less() -> None:
    lead, _ = rivals_lead(RECORDS)
    assert lead.p < LEVEL
    none = POINTS["none"]
    ours, most, theirs, strongest = (POINTS[row] for row in (*DEFAULT[2:], *DROPOUT[2:]))
    assert min(MEANS[DEFAULT[2]] - MEANS[DROPOUT[2]], MEANS[DEFAULT[2]] - MEANS["none"]) > 0
    assert max(p_value(ours, none), p_value(ours, theirs)) < LEVEL < p_value(theirs, none)
    assert MEANS[DROPOUT[3]] < MEANS[DEFAULT[3]] < MEANS["none"]
    assert max(p_value(most, none), p_value(strongest, none), p_value(most, strongest)) < LEVEL


def test_zeros_that_stay_zero_are_weaker_noise() -> None:
    assert max(ZEROS, key=MEANS.__getitem__) == ZEROS[3]
    assert all(p_value(POINTS[row], POINTS["none"]) > LEVEL for row in ZEROS[:2])
    best = [max(MEANS[row] for row in rows) for rows in (ZEROS, DEFAULT)]
    assert best[0] - best[1] < 0.2, "no better than the default"


def test_other_forms_are_level() -> None:
    assert p_value(POINTS[CENTRED], POINTS[DEFAULT[1]]) > LEVEL
    assert p_value(POINTS[GAUSSIAN], POINTS[DROPOUT[1]]) > LEVEL


def test_rotations_leave_every_layer_less_coadapted() -> None:
    """Counted are layers in which all runs are on one side of all others."""
    none = layers("none")

    def less(row: str, others: list[tuple[float, ...]]) -> list[bool]:
        return [max(ours) < min(theirs) for ours, theirs in zip(layers(row), others, strict=True)]

    for ours, theirs in zip(DEFAULT, DROPOUT, strict=True):
        assert less(ours, none) == less(ours, layers(theirs)) == [True] * 3
    assert less(CENTRED, none) == [True] * 3
    means = {row: [statistics.fmean(layer) for layer in layers(row)] for row in ROWS}
    for weak, strong in pairwise(DEFAULT):
        assert all(means[strong][layer] < means[weak][layer] for layer in (1, 2))
    for row in (*DROPOUT, GAUSSIAN):
        assert less(row, none)[1]
        assert means[row][2] > means["none"][2], "rotations are the only noise"
    for row in DROPOUT[1:]:
        assert min(layers(row)[2]) > max(none[2])


def test_with_less_noise_in_the_gradient_both_are_ahead_at_every_p() -> None:
    for rows in (ISOTROPIC, PLANE):
        for ours, *rivals in zip(rows, DROPOUT, DEFAULT, strict=True):
            assert MEANS[ours] > max(MEANS[row] for row in rivals)
            assert p_value(POINTS[ours], POINTS["none"]) < LEVEL, "ahead of no noise at every p"
        for rivals in (DROPOUT, DEFAULT):
            assert lead_over(RECORDS, dict(zip(rows, rivals, strict=True)))[0].low > 0
    assert set(sorted(PLANE, key=lambda row: -MEANS[row])[:2]) == set(PLANE[1:3]), "the p that suits it is larger"
    for rivals in (DROPOUT, DEFAULT):
        clear = [p_value(POINTS[a], POINTS[b]) < LEVEL for a, b in zip(PLANE, rivals, strict=True)]
        assert clear == [False, True, True, True], "significantly from p = 0.2 on"
    between = lead_over(RECORDS, dict(zip(ISOTROPIC, PLANE, strict=True)))[0]
    assert between.low < 0 < between.mean, "not significantly"
    assert all(p_value(POINTS[row], POINTS[other]) < LEVEL for row, other in zip(ISOTROPIC, DROPOUT, strict=True))


def test_rotations_without_pairs_leave_every_layer_less_coadapted_too() -> None:
    for ours, default, dropout in zip(ISOTROPIC, DEFAULT, DROPOUT, strict=True):
        for other in ("none", dropout):
            pairs = zip(layers(ours), layers(other), strict=True)
            assert all(max(one) < min(two) for one, two in pairs)
        more = [max(two) < min(one) for one, two in zip(layers(ours), layers(default), strict=True)]
        assert more[1:] == [True, True], "less so than the default"


FRESH = {images: by_row(read_records(ROOT / "results", f"cifar100_mlp_{images}")) for images in FRESH_IMAGES}


def test_fresh_tables_have_as_many_runs() -> None:
    epochs = {5_000: 129, 20_000: 33, 50_000: 13}
    for images, rows in FRESH.items():
        assert {run["epochs"] for runs in rows.values() for run in runs} == {epochs[images]}
        assert rows.keys() == {row.row for row in fresh_mlp_rows(images)}
        assert {len(runs) for runs in rows.values()} == {4}


def beside(ours: list[float], none: list[float]) -> int:
    """How a row is to no noise: 1 if significantly ahead, −1 if behind."""
    if p_value(ours, none) >= LEVEL:
        return 0
    return 1 if statistics.fmean(ours) > statistics.fmean(none) else -1


@pytest.mark.parametrize(
    ("images", "ahead", "over_none"),
    [
        (5_000, False, [[1, 1], [1, 1], [1, 1]]),
        (20_000, True, [[-1, -1], [0, -1], [0, 1]]),
        (50_000, True, [[-1, -1], [-1, -1], [0, -1]]),
    ],
)
def test_the_gradient_in_the_plane_on_tables_that_it_was_not_made_on(
    images: int, ahead: bool, over_none: list[list[int]]
) -> None:
    """reproducing.md, choosing.md and README.md."""
    records = [run for runs in FRESH[images].values() for run in runs]
    points = {row: [run["last10_top1"] for run in runs] for row, runs in FRESH[images].items()}
    default, dropout = (
        lead_over(records, dict(zip(PLANE[:2], rivals[:2], strict=True)))[0] for rivals in (DEFAULT, DROPOUT)
    )
    assert default.low > 0
    assert dropout.mean > 0
    assert (dropout.low > 0) is ahead
    behind = lead_over(records, dict(zip(DEFAULT[:2], DROPOUT[:2], strict=True)))[0]
    assert (behind.high < 0, behind.low > 0) == (images == 5_000, images == 50_000), "the default beside Dropout"
    apart = [p_value(points[ours], points[theirs]) for ours, theirs in zip(DEFAULT[:2], DROPOUT[:2], strict=True)]
    assert images != 5_000 or min(apart) > LEVEL, "at neither p by itself"
    assert all(
        statistics.fmean(points[ours]) > statistics.fmean(points[theirs])
        for ours, theirs in zip(PLANE[:2], DEFAULT[:2], strict=True)
    ), "above the default at every p"
    kinds = (DROPOUT, DEFAULT, PLANE)
    assert [[beside(points[row], points["none"]) for row in rows[:2]] for rows in kinds] == over_none
    if images == min(FRESH):
        weak, strong = (
            statistics.fmean(points[ours]) - statistics.fmean(points[theirs])
            for ours, theirs in zip(PLANE[:2], DROPOUT, strict=False)
        )
        assert weak < 0 < strong, "it is ahead at p = 0.2, and below Dropout at 0.1"
    last = {row: [run["test_curve"][-1] for run in runs] for row, runs in FRESH[images].items()}
    ended = mean_lead([(last[ours], last[theirs]) for ours, theirs in zip(DEFAULT[:2], DROPOUT[:2], strict=True)])
    assert (ended.high < 0, ended.low > 0) == (images == 5_000, False), "not ahead after the last epoch"
    at_last = [beside(last[row], last["none"]) for row in PLANE[:2]]
    if images == max(FRESH):
        assert at_last == [-1, -1], "after the last one it is"
        for weaker in (0, 1):
            means = [statistics.fmean(points[rows[weaker]]) for rows in kinds]
            assert means[2] == max(means), "by the least"
            assert max(means) < statistics.fmean(points["none"]), "below no noise"


@pytest.mark.parametrize("images", [images for images in FRESH_IMAGES if images >= ENOUGH_IMAGES])
@pytest.mark.parametrize("when", ["mean of ten", "last"])
def test_with_many_images_much_of_its_lead_is_weaker_noise(images: int, when: str) -> None:
    """reproducing.md, choosing.md and README.md."""
    rows = FRESH[images]
    points = {
        row: [run["last10_top1"] if when == "mean of ten" else 100 * run["test_curve"][-1] for run in runs]
        for row, runs in rows.items()
    }
    means = {row: statistics.fmean(each) for row, each in points.items()}
    for name, stronger in {"dropout": DROPOUT, "default": DEFAULT, "plane": PLANE}.items():
        assert means[WEAKER[name]] > max(means[row] for row in stronger[:2]), "the best p for all three"
        level = images < max(FRESH) or name == "plane"
        assert beside(points[WEAKER[name]], points["none"]) == (0 if level else -1)
    for other in ("dropout", "default"):
        assert means[WEAKER["plane"]] > means[WEAKER[other]], "by the least at each p"
        assert p_value(points[WEAKER["plane"]], points[WEAKER[other]]) > LEVEL, "ahead of neither significantly"
    if images == max(FRESH):
        assert means[WEAKER["plane"]] < means["none"]
    later = {run["commit"] for row in WEAKER.values() for run in rows[row]}
    assert not later & {run["commit"] for row, runs in rows.items() if row not in WEAKER.values() for run in runs}


def test_the_figure_speaks_of_layers_and_that_of_table_1_of_blocks() -> None:
    drawings = {drawing.name: drawing for drawing in trained.figures(ROOT / "results")}
    for name, said, label in (
        ("coadaptation_mlp", "of every hidden layer, in", "hidden layer"),
        ("coadaptation_resnet110_authors", "of every block of stage 3, in", "block of the stages with noise"),
    ):
        assert said in drawings[name].caption
        assert drawings[name].draw(drawings[name].compute()).axes[0].get_xlabel() == label


def test_the_readme_has_the_numbers_of_the_records() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    best = [max(rows, key=MEANS.__getitem__) for rows in (DROPOUT, DEFAULT)]
    assert best == [DROPOUT[1], DEFAULT[1]]
    assert (
        "In hidden layers (at p = 0.1 and 0.2, the best for both) and in speech Dropout and the default do "
        "not differ significantly" in text
    )
    shown = " | ".join([spread(POINTS["none"]), *(f"{spread(POINTS[row])} (0.2)" for row in best)])
    assert f"(docs/reproducing.md#noise-on-vectors), accuracy, 4 runs each | {shown} | – |" in text
    shown = " | ".join([spread(POINTS["none"]), *(f"{spread(POINTS[row])} (0.2)" for row in (best[0], PLANE[1]))])
    assert f"(docs/reproducing.md#the-gradient-in-the-plane) | {shown} | – |" in text
    assert max(p_value(POINTS[PLANE[1]], POINTS[row]) for row in ("none", best[0])) < LEVEL, "significantly ahead"
    lead = lead_over(RECORDS, dict(zip(PLANE[:2], DROPOUT[:2], strict=True)))[0]
    assert f'and {lead.mean:.2f} after hidden layers there with `gradient="plane"`' in text
    assert lead.low > 0
