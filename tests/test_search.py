"""The search at strong weight decay: its rows differ in one thing each, and the tables say what records say."""

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import rotationout as ro
from rotationout.experiments.classification import build_network
from rotationout.experiments.records import mean_sd
from rotationout.experiments.results import read_records
from rotationout.recipes import search as recipe
from rotationout.recipes.cifar100 import resnet110
from rotationout.report import search
from rotationout.report.cells import by_row
from rotationout.report.modules import module_of

RESULTS = Path(__file__).parents[1] / "results"
ROWS = {row.row: row for row in recipe.search_rows()}
BASE = "rotation sigma 0.500"


def record(row: str, points: float, seed: int = 0, table: str = recipe.STRONG) -> dict[str, Any]:
    config = {"held_out": 5_000 if table == recipe.SEARCH else 0}
    values = {"last10_top1": points, "best_top1": points + 0.3, "test_curve": [0.5, points / 100], "epochs": 2}
    said = {"recipe": table, "row": row, "seed": seed, "steps": 64_000, "weight_decay": 5e-4, "config": config}
    return {**said, **values, "device": "a GPU"}


def strong(none: float, dropout: float, rotation: float) -> list[dict[str, Any]]:
    means = zip(("none", *recipe.BEST), (none, dropout, rotation), strict=True)
    return [record(row, mean + 0.1 * seed, seed) for row, mean in means for seed in range(3)]


def test_forms_differ_from_the_default_in_one_thing() -> None:
    forms = [name for name in ROWS if name.startswith("rotation") and "," in name]
    for name in forms:
        row, base = ROWS[name], ROWS[name.partition(",")[0]]
        changed = {key for key in vars(row) if getattr(row, key) != getattr(base, key)} - {"row"}
        assert len(changed) == 1, name
        options = row.noise_options.keys() - base.noise_options.keys()
        assert len(options) + (changed in ({"fade_out"}, {"dropout"})) == 1
    assert len(forms) == 11
    for row in ROWS.values():
        assert (row.weight_decay, row.held_out, row.steps, row.ramp) == (5e-4, 5_000, 32_000, 0)
    assert ROWS[f"{BASE}, fading out"].fade_out == 32_000 - ROWS[BASE].milestones[1]


def test_the_names_of_rows_give_their_strength() -> None:
    for name, row in ROWS.items():
        if found := re.match(r"dropout keep ([\d.]+)", name):
            assert float(found[1]) == pytest.approx(1 - row.p)
        elif found := re.match(r"rotation sigma ([\d.]+)", name):
            assert float(found[1]) == pytest.approx((row.p / (1 - row.p)) ** 0.5, abs=5e-4)


def test_dropout_follows_rotations() -> None:
    network = build_network(ROWS["rotation sigma 0.333, dropout keep 0.9"])
    noises = [module for module in network.modules() if isinstance(module, (ro.RotationOut2d, nn.Dropout))]
    assert len(noises) == 72
    assert [type(noise) for noise in noises[:2]] == [ro.RotationOut2d, nn.Dropout]
    assert {noise.p for noise in noises} == {0.1}
    with pytest.raises(ValueError, match=r"1\.5"):
        ROWS[BASE].replace(dropout=1.5)


def test_the_best_meet_on_the_test_set_with_the_whole_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "BEST", ("dropout keep 0.8", f"{BASE}, fading out"))
    rows = recipe.strong_rows()
    assert [row.row for row in rows] == ["none", "dropout keep 0.8", f"{BASE}, fading out"]
    whole_schedule = resnet110()
    for row in rows:
        assert (row.steps, row.milestones, row.held_out) == (64_000, whole_schedule.milestones, 0)
        assert row.weight_decay == 5e-4
    assert rows[2].fade_out == 64_000 - 48_000


def test_the_best_are_what_the_search_found() -> None:
    """By the mean; of rows that are level the first of the table: another form has to be better than the default."""
    rows = by_row(read_records(RESULTS, recipe.SEARCH))
    means = {row: mean_sd([run["last10_top1"] for run in runs])[0] for row, runs in rows.items()}
    for best in recipe.BEST:
        rivals = {row: mean for row, mean in means.items() if row.startswith(best.split()[0])}
        assert best == next(row for row in rivals if rivals[row] > max(rivals.values()) - search.LEVEL)


def _twice() -> list[dict[str, Any]]:
    """The records of the one config that two tables have."""
    rows = {recipe.SEARCH: BASE, "cifar100_resnet110_protocol": "default, no ramp, weight decay 5e-4"}
    return [run for table, row in rows.items() for run in read_records(RESULTS, table) if run["row"] == row]


def test_what_reproducing_says_in_words_is_so() -> None:
    """Of the search; also choosing.md and negative_results.md."""
    points = {run["row"]: run["last10_top1"] for run in read_records(RESULTS, recipe.SEARCH)}
    assert points.keys() == ROWS.keys()
    assert points["none"] < points["dropout keep 0.8"] < points["dropout keep 0.9"]
    assert points["none"] < points[BASE] < points["rotation sigma 0.333"] < points["dropout keep 0.9"]
    assert points["dropout keep 0.95"] < points["dropout keep 0.9"], "p = 0.05 does worse"
    assert points["rotation sigma 0.229"] < points["rotation sigma 0.333"], "with both noises"
    dropout, rotation = (points[row] for row in recipe.BEST)
    rows = {kind: sum(row.startswith(kind) for row in points) for kind in ("dropout", "rotation")}
    assert rows["rotation"] > rows["dropout"], "luck favours the kind with more rows"
    once, twice = (run["last10_top1"] for run in _twice())
    assert 0 < dropout - rotation < abs(once - twice), "not ahead, which may be chance"
    assert recipe.BEST == ("dropout keep 0.9", "rotation sigma 0.333"), "the default, both at p = 0.1"
    highest = max((row for row in points if row.startswith("rotation")), key=lambda row: points[row])
    assert highest == f"{BASE}, zeros stay zero"
    assert points[highest] < rotation + search.LEVEL < rotation + abs(once - twice), "level, and no difference at all"
    assert 0 < points[highest] - rotation < 0.01, "what the rule about level rows decides"
    assert points[highest] < dropout, "nor is this one ahead"
    assert points[f"{BASE}, not centred"] < points["none"]
    for row, value in points.items():
        default, _, form = row.partition(", ")
        if form and form != "not centred":
            assert abs(value - points[default]) < 1
    runs = read_records(RESULTS, "cifar100_resnet110_authors")
    assert {run["steps"] for run in runs} == {2 * row.steps for row in ROWS.values()}, "half the schedule"
    config, again = ({**record["config"], "row": "", "recipe": ""} for record in _twice())
    assert config == again, "the same settings and seed"


@pytest.mark.parametrize(
    ("means", "said"),
    [
        (
            (71, 72, 74),
            "ahead of no noise (+3.00 points, p-value < 0.001) and Dropout (+2.00 points, p-value < 0.001).",
        ),
        (
            (71, 74, 72),
            "ahead of no noise (+1.00 points, p-value < 0.001), behind Dropout (−2.00 points, p-value < 0.001).",
        ),
        ((72, 72.1, 72.02), "not significantly different from no noise (+0.02 points, p-value 0.819) and Dropout"),
    ],
)
def test_the_verdict_is_as_plain_when_it_loses(means: tuple[float, float, float], said: str) -> None:
    assert search.verdict(strong(*means)).startswith(f"RotationOut is {said}")


def test_no_verdict_without_all_three() -> None:
    assert search.verdict([]) == ""
    assert search.verdict(strong(71, 72, 73)[:6]) == ""
    assert "(+2.00 points in single runs)" in search.verdict(strong(71, 72, 73)[::3])


@pytest.mark.parametrize("table", [recipe.SEARCH, recipe.STRONG])
def test_tables_and_sections(table: str) -> None:
    records = [{**run, "recipe": table} for run in strong(71, 72, 73)]
    assert module_of(table) is search
    cells = search.table(records)
    assert cells.rows[2] == [recipe.BEST[1], "3", "73.10 ± 0.10", "73.40 ± 0.10", "< 0.001", "< 0.001"]
    assert cells.rows[1][-1] == "–", "the best Dropout against itself"
    assert not any("paper" in name for name in cells.header)
    assert "Mean ± standard deviation" in search.prose(records)[0]
    assert search.prose(records[::3])[0].endswith("One run per row; 3 runs in all, on a GPU."), "no p-values to explain"
    made = search.section(table, records)
    assert made.table == cells
    assert made.finding == search.verdict(records)
    assert ("RotationOut is ahead" in made.finding) == (table == recipe.STRONG)
