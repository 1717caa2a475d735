"""Tables and figures of trained networks, from records of small ones that were really trained."""

import copy
import csv
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("scipy")

from tests.cifar_images import images
from tests.test_training import make

from rotationout import cli
from rotationout.experiments import networks, sweep
from rotationout.experiments.cifar import Images
from rotationout.experiments.results import read_records
from rotationout.recipes import SUBJECTS, TABLES
from rotationout.report import ghost, shift, table1, whole
from rotationout.report.gallery import trained, write
from rotationout.report.gallery.catalogue import all_figures

SEEDS = (0, 1)
FORMS = ["none", "Dropout-a, centred", "Dropout-b", "RotationOut-a"]
BLOCKS = 2


def two_classes(count: int) -> Images:
    """Few enough that some answers are right."""
    drawn = images(count, seed=count)
    return Images(drawn.pixels, drawn.labels % 2)


def shown(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of some forms, and of some ghost batches of a batch of 16."""
    folder, threads = tmp_path_factory.mktemp("results"), torch.get_num_threads()
    torch.set_num_threads(1)
    small = {"steps": 2, "milestones": (), "batch": 16, "precision": "fp32"}
    forms = [row for row in TABLES[shift.RECIPE]() if row.row in FORMS]
    ghosts = [row for row in TABLES[ghost.RECIPE]() if row.ghost_batch in (0, 8)]  # 0, the whole batch, is 16 here
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, BLOCKS))
        patch.setitem(networks.NETWORKS, "resnet20", partial(networks.ResNet, 1))
        rows = [row.replace(**small, seed=seed) for row in (*forms, *ghosts) for seed in SEEDS]
        places = {"folder": folder, "checkpoints": folder / "c"}
        # All at once: what ends together is cleared away together.
        assert sweep.sweep(rows, make(two_classes(16), two_classes(20)), **places, together=len(rows)) == []
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="module")
def written(results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    folder, found = tmp_path_factory.mktemp("figures"), {}
    for path in write(trained.figures(results), folder):
        assert path.read_text(encoding="utf-8").startswith("<svg")
        with path.with_suffix(".csv").open(encoding="utf-8") as file:
            found[path.stem] = list(csv.DictReader(file))
    return found


def test_without_records_there_are_no_figures(tmp_path: Path) -> None:
    assert trained.figures(tmp_path) == []
    names = {drawing.name for drawing in all_figures(tmp_path)}
    assert names
    assert not names & {"variance_shift_trained", "ghost_batches", "coadaptation_trained"}


def test_figures_hold_the_records(results: Path, written: dict[str, list[dict[str, str]]]) -> None:
    assert list(written) == [
        "variance_shift_trained",
        "variance_shift_repaired",
        "coadaptation_trained",
        "ghost_batches",
    ]
    runs = [run for run in read_records(results, shift.RECIPE) if run["row"] == "RotationOut-a"]
    for ratio in ("r", "stored_r"):
        for over in ("mean", "max"):
            wanted = {"form": "RotationOut-a", "state": "corrected", "ratio": ratio, "over": over, "block": "2"}
            (row,) = (row for row in written["variance_shift_repaired"] if wanted.items() <= row.items())
            values = [run["variance_shift"]["states"]["corrected"][f"{ratio}_{over}"][1] for run in runs]
            assert int(row["n"]) == 2
            assert float(row["mean"]) == pytest.approx(statistics.fmean(values))
            assert (float(row["lowest"]), float(row["highest"])) == (min(values), max(values))
    closed = {row["form"] for row in written["variance_shift_repaired"] if row["state"] == "corrected"}
    assert closed == {"Dropout-a, centred", "RotationOut-a"}, "others have no closed form"
    forms = dict.fromkeys(row["form"] for row in written["coadaptation_trained"])
    assert list(forms) == FORMS
    assert len(written["coadaptation_trained"]) == BLOCKS * len(forms)


def test_the_legend_says_how_many_runs_there_are(results: Path) -> None:
    drawings = {drawing.name: drawing for drawing in trained.figures(results)}
    for name, label in (
        ("variance_shift_trained", "Dropout-b (n = 2)"),
        ("coadaptation_trained", "none (n = 2)"),
        ("ghost_batches", "CrossNorm (n = 2)"),
    ):
        drawing = drawings[name]
        figure = drawing.draw(drawing.compute())
        assert label in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_table_of_repairs_is_that_of_the_records(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_records(results, shift.RECIPE)
    table = shift.table(records)
    lines = {line[0]: line for line in table.rows}
    assert list(lines) == FORMS
    assert table.header == ["row", "runs", "r, mean", "as trained, %", "× keep rate", "closed form", "recalibrated"]
    assert all(len(line) == len(table.header) for line in table.rows)
    runs = [run["variance_shift"]["states"] for run in records if run["row"] == "Dropout-b"]
    gains = [run["recalibrated"]["top1"] - run["trained"]["top1"] for run in runs]
    mean, deviation = statistics.fmean(gains), statistics.stdev(gains)
    assert any(run["trained"]["top1"] > 0 for run in runs)
    assert lines["Dropout-b"][-1] == f"{mean:+.2f} ± {deviation:.2f}".replace("-", "−")
    assert lines["Dropout-b"][-2] == "–", "there is no closed form"
    assert lines["none"][4] == "+0.00 ± 0.00", "a keep rate of 1 repairs nothing"
    assert lines["Dropout-b"][2] == shown([statistics.fmean(run["trained"]["r_mean"]) for run in runs])
    assert lines["Dropout-b"][3] == shown([run["trained"]["top1"] for run in runs])
    assert cli.main(["table", shift.RECIPE, "--out", str(results)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{table.markdown()}\n\n2 steps; 8 runs in all, on ")


def test_the_verdict_counts_what_is_clear(results: Path) -> None:
    records = copy.deepcopy(read_records(results, shift.RECIPE))
    for record in records:
        states = record["variance_shift"]["states"]
        more = 0.02 * record["seed"]
        for state, gain in (("trained", -more), ("divided", -1.0), ("corrected", -more), ("recalibrated", 2.0)):
            states[state].update({} if "refused" in states[state] else {"top1": 50 + gain})
        states["divided"]["top1"] += record["seed"] * (record["row"] == "Dropout-b")  # −1 and 0: chance
    said = shift.verdict(records)
    (alone,) = [r for r in records if r["row"] == "Dropout-b" and r["seed"] == 0]
    twice = shift.verdict([alone, {**alone, "seed": 1}])
    assert "× keep rate: better with 0, worse with 0 of 1; recalibrated: better with 0, worse with 0 of 1." in twice, (
        "runs that agree to the last image have no deviation to compare with"
    )
    assert "× keep rate: better with 0, worse with 2 of 3; closed form: better with 0, worse with 0 of 2;" in said
    assert "recalibrated: better with 3, worse with 0 of 3." in said
    assert shift.STATES["trained"] not in said, "it is no repair"
    assert "recalibrated: better with 0, worse with 0 of 3." in shift.verdict([r for r in records if r["seed"] == 0])


def test_the_table_of_blocks_says_where_the_shift_is_most(results: Path) -> None:
    records = copy.deepcopy(read_records(results, shift.RECIPE))
    for record in records:
        seed = record["seed"]
        record["variance_shift"]["states"]["trained"] |= {
            "r_mean": [1.5 + 0.1 * seed, 1.25],
            "r_max": [2.0, 3.0 + 0.5 * seed],
        }
    line = next(line for line in shift.blocks_table(records).rows if line[0] == "Dropout-b")
    assert line[1:] == ["2", "1.40 ± 0.04", "1.25 ± 0.00 (2)", "1.55 ± 0.07 (1)", "3.25 ± 0.35 (2)"]


def test_the_table_of_coadaptation_is_that_of_the_records(results: Path) -> None:
    records = copy.deepcopy(read_records(results, shift.RECIPE))
    lines = {line[0]: line for line in shift.coadaptation_table(records).rows}
    values = [run["coadaptation"]["value"] for run in records if run["row"] == "RotationOut-a"]
    assert lines["RotationOut-a"][2:5] == [
        shown([statistics.fmean(run) for run in values]),
        *(shown([run[block] for run in values]) for block in (0, -1)),
    ]
    assert lines["none"][5:] == ["–", "–"]
    assert 0 <= float(lines["RotationOut-a"][6].lstrip("< ")) <= 1
    # A block counts if all runs are on one side of all runs without noise.
    ours = {0: [3.0, 1.0], 1: [4.0, 2.5]}
    for record in records:
        record["coadaptation"]["value"] = ours[record["seed"]] if record["row"] == "Dropout-b" else [2.0, 2.0]
    lines = {line[0]: line for line in shift.coadaptation_table(records).rows}
    assert lines["Dropout-b"][5] == "1 / 0 of 2"
    assert lines["RotationOut-a"][5] == "0 / 0 of 2"


def test_rotations_are_compared_with_dropout_in_the_same_place(results: Path) -> None:
    records = copy.deepcopy(read_records(results, shift.RECIPE))
    score = {"none": 1.0, "Dropout-a, centred": 2.0, "Dropout-b": 1.0, "RotationOut-a": 1.5}
    for record in records:
        value = score[record["row"]] + 0.01 * record["seed"]
        record["variance_shift"]["states"]["trained"]["r_mean"] = [value, value]
        record["coadaptation"]["value"] = [value, value]
    assert shift.compared_shift(records) == (
        "RotationOut-a is below Dropout-a, centred (−0.50 in mean r, p-value < 0.001)."
    ), "without noise there is nothing to shift"
    assert shift.compared_coadaptation(records) == (
        "RotationOut-a is above no noise (+0.50 in mean co(x), p-value < 0.001), "
        "below Dropout-a, centred (−0.50 in mean co(x), p-value < 0.001)."
    )
    *_, said = shift.section(shift.RECIPE, records).prose
    assert said.startswith(f"{shift.compared_shift(records)} {shift.compared_coadaptation(records)}")
    alone = [record for record in records if record["row"] == "none"]
    assert "below" not in "".join(shift.section(shift.RECIPE, alone).prose)
    assert shift.compared_shift(alone) == shift.compared_coadaptation(alone) == shift.compared_shift([]) == ""


def test_the_table_of_ghost_batches_has_every_test_mode(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_records(results, ghost.RECIPE)
    table = ghost.table(records)
    assert table.header == ["test accuracy, %", "runs", "of 8", "of 16"]
    lines = {line[0]: line[1:] for line in table.rows}
    assert set(lines) == {
        *(f"{label}, {kind}" for label in list(ghost.MODES.values())[:4] for kind in ("running", "averaged")),
        "GroupNorm",
    }
    assert lines["GroupNorm"][1] == "–"
    values = [run["test_modes"]["top1"]["averaged"]["poly"] for run in records if run["row"] == "BatchNorm of 8"]
    expected = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert lines["PolyBatchNorm, B examples, averaged"][1] == expected
    assert cli.main(["table", ghost.RECIPE, "--out", str(results)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{table.markdown()}\n\nResNet20, 2 steps on batches of 16. ")
    assert out.endswith(f"\n{ghost.verdict(records)}\n")
    assert "not finite: BatchNorm of 4; BatchNorm of 16; CrossNorm of 4; CrossNorm of 16." in out
    assert " of 8 (" in out


def test_the_page_has_them(results: Path, tmp_path: Path) -> None:
    page = whole.write(tmp_path, results, figures=False).read_text(encoding="utf-8")
    for recipe in (shift.RECIPE, ghost.RECIPE):
        assert f"<h2>{SUBJECTS[recipe]}<" in page
    for table in (shift.table(read_records(results, shift.RECIPE)), ghost.table(read_records(results, ghost.RECIPE))):
        for cell in table.rows[0][1:]:
            assert f"<td>{cell}</td>" in page


def test_records_whose_study_failed_are_left_out(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / shift.RECIPE
    folder.mkdir()
    for path in (results / shift.RECIPE).glob("*.json"):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["seed"] == 1 or record["row"] == "none":
            record["variance_shift"] = record["coadaptation"] = {"failed": "RuntimeError: out of memory"}
        (folder / path.name).write_text(json.dumps(record), encoding="utf-8")
    records = read_records(tmp_path, shift.RECIPE)
    assert shift.table(records).rows[0][:2] == ["Dropout-a, centred", "1"]
    assert "±" not in "".join(shift.table(records).rows[0]), "one run has no deviation"
    assert all(line[5:] == ["–", "–"] for line in shift.coadaptation_table(records).rows)
    for drawing in trained.figures(tmp_path):
        drawing.draw(drawing.compute())


def test_changed_fields_follow_the_name_of_a_recipe_and_no_records_are_an_error(results: Path) -> None:
    records = read_records(results, ghost.RECIPE)
    changed = [{**record, "recipe": f"{ghost.RECIPE}_steps=4"} for record in records]
    assert ghost.table(changed) == ghost.table(records)
    for make_table in (table1.table, shift.table, ghost.table):
        with pytest.raises(ValueError, match="there are no records of this recipe yet"):
            make_table([])
