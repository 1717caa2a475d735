"""What is said of ghost batches follows their records, also where runs are missing or learnt nothing."""

import importlib
import itertools
import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("scipy")

from rotationout import cli
from rotationout.experiments.classification import ClassificationConfig
from rotationout.experiments.results import read_records, record_path
from rotationout.recipes import TABLES
from rotationout.report import ghost, verdicts, whole
from rotationout.report.cells import p_value
from rotationout.report.gallery import trained

ROOT = Path(__file__).parents[1]
Records = list[dict[str, Any]]
ROWS = {config.row: config for config in TABLES[ghost.RECIPE]()}
SEEDS = (0, 1, 2)
BATCH = {4: 50.0, 8: 58.0, 16: 61.0, 128: 63.0}
CROSS = {4: 44.0, 8: 58.05, 16: 62.0, 128: 63.0}
GROUP = 58.0
GAIN = {"poly": -0.3, "poly_measured": 0.0}
"""Of f_poly in every network, by which no two of them differ as much."""


def record(config: ClassificationConfig, seed: int, top: float) -> dict[str, Any]:
    """A run that got there, and its statistics averaged half a point further."""
    named = {"recipe": config.recipe, "row": config.row, "seed": seed, "steps": config.steps, "device": "a GPU"}
    found: dict[str, Any] = {**named, "epochs": 2, "test_curve": [0.2, top / 100]}
    if config.studies:
        modes = {config.norm: 0.0, **(GAIN if config.norm == "batch" else {})}
        gains = {"running": 0.0, "averaged": 0.5}
        wobble = 0.01 * seed  # so that gains are not all the same
        found["test_modes"] = {
            "top1": {
                kind: {mode: top + more + gain * (1 + wobble) for mode, gain in modes.items()}
                for kind, more in gains.items()
            }
        }
    return {**found, "config": {**asdict(config), "seed": seed}}


def runs(seeds: tuple[int, ...] = SEEDS) -> Records:
    """All rows; seeds differ by 0.1 points."""
    means = {"batch": BATCH, "cross": CROSS, "group": {128: GROUP}}
    return [
        record(config, seed, means[config.norm][config.ghost_batch or config.batch] + 0.1 * (seed - 1))
        for config in ROWS.values()
        for seed in seeds
    ]


def one(records: Records, row: str, seed: int) -> dict[str, Any]:
    (found,) = (record for record in records if (record["row"], record["seed"]) == (row, seed))
    return found


def sentence(records: Records, start: str) -> str:
    (found,) = (line for line in ghost.findings(records) if line.startswith(start))
    return found


def test_crossnorm_is_beside_batchnorm_of_as_many_examples() -> None:
    assert sentence(runs(), "With running statistics CrossNorm") == (
        "With running statistics CrossNorm is behind BatchNorm of 4 (−6.00 points, p-value < 0.001); not significantly "
        "different from BatchNorm of 8 (+0.05 points, p-value 0.573) and 128 (+0.00 points, p-value 1.000); ahead "
        "of BatchNorm of 16 (+1.00 points, p-value < 0.001). With averaged ones it is the same."
    )


def test_averaged_statistics_are_told_where_they_are_otherwise() -> None:
    records = runs()
    for record in records:
        if record["row"] == "CrossNorm of 4":
            record["test_modes"]["top1"]["averaged"]["cross"] += 7
    said = sentence(records, "With running statistics CrossNorm")
    assert said.endswith(
        " With averaged ones it is ahead of BatchNorm of 4 (+1.00 points, p-value < 0.001), and otherwise the same."
    )


def test_poly_is_paired_by_network() -> None:
    records = runs()
    for record in records:  # networks differ by more than f_poly does to any of them
        for modes in record.get("test_modes", {}).get("top1", {}).values():
            modes.update({mode: value + 5 * record["seed"] for mode, value in modes.items()})
    said = sentence(records, "With running statistics PolyBatchNorm (B examples), in the same networks, is ")
    assert "is behind BatchNorm of 4 (−0.30 points, p-value < 0.001), 8 (" in said
    assert said.endswith(" and 128 (−0.30 points, p-value < 0.001). With averaged ones it is the same.")
    level = sentence(records, "With running statistics PolyBatchNorm (measured B), in the same networks, is ")
    assert "is not significantly different from BatchNorm of 4 (+0.00 points, p-value 1.000), 8 (" in level


def test_what_needs_no_repair_is_beside_all_others() -> None:
    others = "BatchNorm of 4, PolyBatchNorm (B examples) of 4 and 8, PolyBatchNorm (measured B) of 4, CrossNorm of 4"
    level = "BatchNorm of 8, PolyBatchNorm (measured B) of 8, CrossNorm of 8"
    beyond = ", ".join(
        f"{name} of 16 and 128"
        for name in ("BatchNorm", "PolyBatchNorm (B examples)", "PolyBatchNorm (measured B)", "CrossNorm")
    )
    assert sentence(runs(), "Compared with running statistics GroupNorm is ") == (
        f"Compared with running statistics GroupNorm is ahead of {others}; not significantly different from {level}; "
        f"behind {beyond}. "
        "Compared with averaged ones it is behind BatchNorm of 8, PolyBatchNorm (measured B) of 8, CrossNorm of 8; not "
        "significantly different from PolyBatchNorm (B examples) of 8, and otherwise the same."
    )
    assert sentence(runs(), "With running statistics BatchNorm of 128 is ") == (
        "With running statistics BatchNorm of 128 is ahead of BatchNorm of 4, 8 and 16, PolyBatchNorm (B examples) of "
        "4, 8 and 16, PolyBatchNorm (measured B) of 4, 8 and 16, CrossNorm of 4, 8 and 16; not significantly "
        "different from CrossNorm of 128. With averaged ones it is the same."
    ), "its own networks in other test modes are paired, and not compared here"


def test_nothing_is_in_trouble_when_all_is_there_and_the_rule_is_last() -> None:
    assert ghost.trouble(runs()) == []
    assert ghost.findings(runs())[-1] == ghost.RULE
    assert f"a p-value below {verdicts.LEVEL}," in ghost.RULE


def test_what_is_missing_is_said_first() -> None:
    gone = {("CrossNorm of 4", seed) for seed in SEEDS} | {
        ("BatchNorm of 8", 0),
        ("BatchNorm of 8", 2),
        ("GroupNorm", 1),
    }
    records = [run for run in runs() if (run["row"], run["seed"]) not in gone]
    first, *others = ghost.findings(records)
    assert first == (
        "No record, because not run or because the loss was not finite: BatchNorm of 8, seeds 0 and 2; CrossNorm of 4; "
        "GroupNorm, seed 1."
    )
    said = " ".join(others)
    assert "CrossNorm is in single runs ahead of BatchNorm of 8 (+0.05 points); ahead of BatchNorm of 16 (" in said
    assert "CrossNorm of 4" not in said
    assert "BatchNorm of 4" in said


def test_a_study_that_failed_leaves_its_running_accuracy() -> None:
    records = runs()
    for seed in (0, 1):
        one(records, "BatchNorm of 4", seed)["test_modes"] = {"failed": "RuntimeError: out of memory"}
    assert ghost.trouble(records) == ["The study of test modes failed: BatchNorm of 4, seeds 0 and 1."]
    assert "CrossNorm is behind BatchNorm of 4 (−6.00 points, p-value < 0.001)" in ghost.verdict(records), "three runs"
    poly = sentence(records, "With running statistics PolyBatchNorm (B examples)")
    assert "is in single runs behind BatchNorm of 4 (−0.31 points); behind BatchNorm of 8" in poly, "the third network"


def test_runs_at_chance_are_named() -> None:
    records = runs()
    for seed in SEEDS:
        modes = one(records, "CrossNorm of 8", seed)["test_modes"]["top1"]
        modes["running"]["cross"] = 1.0  # it learnt, but its running statistics are of no use
    for modes in one(records, "BatchNorm of 4", 1)["test_modes"]["top1"].values():
        modes.update(dict.fromkeys(modes, 1.97))
    one(records, "BatchNorm of 16", 2)["test_modes"]["top1"]["running"]["poly"] = 0.5
    one(records, "GroupNorm", 0)["test_curve"][-1] = 0.0101
    assert ghost.trouble(records) == [
        "Test accuracy below 2 % (chance is 1 %), but counted nevertheless: BatchNorm of 4 (1 of 3 runs); "
        "CrossNorm of 8 (3 of "
        "3 runs with running statistics); PolyBatchNorm (B examples) of 16 (1 of 3 runs with running statistics); "
        "GroupNorm (1 of 3 runs)."
    ]
    assert "behind BatchNorm of 8 (−57.00 points, p-value < 0.001)" in ghost.verdict(records)
    dead = [record(ROWS[f"{name} of 4"], seed, 1.0) for name in ("BatchNorm", "CrossNorm") for seed in SEEDS]
    for modes in (kind for run in dead for kind in run["test_modes"]["top1"].values()):
        modes.update(dict.fromkeys(modes, 1.0))
    assert "CrossNorm is level with BatchNorm of 4 (+0.00 points). With averaged ones" in ghost.verdict(dead)


def test_without_averaged_statistics_nothing_is_said_of_them() -> None:
    records = runs()
    for record in records:
        record.get("test_modes", {}).get("top1", {}).pop("averaged", None)
    assert sentence(records, "With running statistics CrossNorm").endswith(
        "BatchNorm of 16 (+1.00 points, p-value < 0.001)."
    )


def test_two_runs_are_enough_for_the_rule() -> None:
    assert ghost.findings(runs(SEEDS[:2]))[-1] == ghost.RULE
    assert ghost.RULE not in ghost.findings(runs(SEEDS[:1]))


def test_single_runs_have_no_p() -> None:
    said = ghost.verdict(runs((1,)))
    assert "p =" not in said
    assert "p <" not in said
    assert (
        "CrossNorm is in single runs behind BatchNorm of 4 (−6.00 points); in single runs ahead of BatchNorm of 8"
        in said
    )
    assert "nan" not in said.lower()
    assert ghost.section(ghost.RECIPE, runs((1,))).finding.endswith(verdicts.SINGLE)


def test_without_records_nothing_is_said() -> None:
    assert ghost.verdict([]) == ""
    assert ghost.findings([]) == []


def test_networks_that_were_trained_as_poly_are_not_compared_with_themselves() -> None:
    config = ROWS["BatchNorm of 8"].replace(recipe=f"{ghost.RECIPE}_norm=poly", norm="poly", ghost_batch=8)
    records = [record(config, seed, 50.0 + seed) for seed in SEEDS]
    assert ghost.findings(records) == ghost.trouble(records), "no rule either, where nothing is compared"


def written(folder: Path, records: Records) -> Path:
    for run in records:
        path = record_path(folder, ROWS[run["row"]].replace(seed=run["seed"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run), encoding="utf-8")
    return folder


def test_the_documentation_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    accuracy, figures = (importlib.import_module(f"evidence.{name}") for name in ("accuracy", "figures"))
    for path in (ROOT / "results").iterdir():
        if path.name != ghost.RECIPE:
            (tmp_path / path.name).symlink_to(path)
    for module in (accuracy, figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    records = [run for run in runs() if run["row"] != "CrossNorm of 4"]
    written(tmp_path, records)
    texts = accuracy.texts()
    assert texts["ghost_batches"].startswith(ghost.table(records).markdown())
    assert texts["ghost_batches"].endswith("\n- ".join(["", *ghost.findings(records)]))
    assert texts["ghost_first"] == " ".join(ghost.findings(records)[:2])
    assert "<svg" in figures.texts()["figure_ghost_batches"]
    used = [(page, name) for page in ("reproducing", "negative_results") for name in ("ghost_batches", "ghost_first")]
    pages = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page, _ in used}
    assert [f"{{{{ {name} }}}}" in pages[page] for page, name in used] == [True, False, False, True]


def test_the_table_and_the_page_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [run for run in runs() if run["row"] != "CrossNorm of 4"]
    written(tmp_path / "results", records)
    assert cli.main(["table", ghost.RECIPE, "--results", str(tmp_path / "results"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == ghost.verdict(records)
    assert [row["test accuracy, %"] for row in said["rows"]] == [
        *(f"{ghost.MODES[mode]}, {kind}" for kind in ghost.STATISTICS for mode in ghost.MODES if mode != "group"),
        "GroupNorm",
    ]
    assert said["rows"][-1]["of 128"] == "58.00 ± 0.10"
    made = ghost.section(ghost.RECIPE, records)
    assert made.finding.startswith(
        "No record, because not run or because the loss was not finite: CrossNorm of 4. With running "
    )
    assert made.finding.endswith("With averaged ones it is the same."), "what comes after is not so prominent"
    assert " ".join([made.finding, *made.prose[2:]]) == ghost.verdict(records)
    page = whole.write(tmp_path, tmp_path / "results", figures=False).read_text(encoding="utf-8")
    assert f'<p class="finding">{made.finding}</p>' in page.replace("&lt;", "<")


def test_curves_have_a_colour_for_each_size_and_a_line_for_each_norm() -> None:
    (axes,) = ghost.figure(runs()).axes
    looks = {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert list(looks) == list(ROWS)
    assert len(set(looks.values())) == len(ROWS)
    for size in BATCH:
        assert looks[f"BatchNorm of {size}"][0] == looks[f"CrossNorm of {size}"][0]
    assert {looks[f"CrossNorm of {size}"][1] for size in BATCH} == {"--"}
    assert len({looks[f"BatchNorm of {size}"][0] for size in BATCH} | {looks["GroupNorm"][0]}) == len(BATCH) + 1


def test_bars_are_the_range_of_runs_and_no_line_goes_over_a_gap(tmp_path: Path) -> None:
    records = [run for run in runs() if run["row"] != "CrossNorm of 8"]
    one(records, "CrossNorm of 4", 0)["test_modes"]["top1"]["running"]["cross"] = 1.0
    (drawing,) = trained.figures(written(tmp_path, records))
    figure = drawing.draw(drawing.compute())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{label} (n = 3)" for label in ghost.MODES.values()], "in the order of the table"
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    axes = figure.axes[0]
    bars = axes.containers[list(ghost.MODES).index("cross")]
    line, _, (ranges,) = bars
    assert [math.isnan(value) for value in line.get_ydata()] == [False, True, False, False]
    low, high = ranges.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((1.0, 44.1)), "and not below no accuracy at all"


def test_what_pages_say_of_ghost_batches_is_so_in_the_records() -> None:
    """reproducing.md and negative_results.md."""
    found = ghost.accuracies(read_records(ROOT / "results", ghost.RECIPE))
    means = {key: statistics.fmean(values) for key, values in found.items()}
    assert {len(values) for values in found.values()} == {3}
    assert max(means.values()) < 50, "no network is fully trained"
    changes = []
    for kind, size in itertools.product(ghost.STATISTICS, BATCH):
        batch, group = found["batch", kind, size], found["group", "running", 128]
        changes.append(means["poly_measured", kind, size] - means["batch", kind, size])
        assert max(group) + 5 < min(batch)
        if size < 128:
            assert p_value(found["cross", kind, size], batch) < verdicts.LEVEL
            assert means["cross", kind, size] < means["batch", kind, size]
            assert means["poly", kind, size] < means["batch", kind, size] - 5
    assert max(changes) < 0.1, "not for the better"
