"""The tables of results: what is compared with what, what is said of it, and which parts of the paper are counted."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from matplotlib.figure import Figure

from rotationout.experiments.results import read_records
from rotationout.recipes import TABLES
from rotationout.recipes.search import SEARCH
from rotationout.report import curves, ghost, reproduced, search, shift
from rotationout.report.cells import UNCORRECTED, by_row
from rotationout.report.curves import curves_figure
from rotationout.report.modules import module_of
from rotationout.report.table1 import PAPER, RIVALS, drawn, prose, rivals_lead, section
from rotationout.report.table1 import table as table1
from rotationout.report.table2 import prose as table2_prose
from rotationout.report.table2 import table as table2
from rotationout.report.table3 import prose as table3_prose
from rotationout.report.table3 import table as table3
from rotationout.report.table3 import verdict
from rotationout.report.table4 import prose as table4_prose
from rotationout.report.table4 import table as table4

ROOT = Path(__file__).parents[1]


def test_empty_columns_are_left_out() -> None:
    recipe = "cifar100_resnet110_authors"
    values = {"row": "none", "last10_top1": 70.0, "best_top1": 71.0, "config": {"network": "resnet110"}}
    assert table1([{**values, "recipe": recipe}]).header == [
        "row",
        "runs",
        "last 10 epochs, %",
        "the paper's",
        "best epoch, %",
        "the paper's",
    ]
    changed = table1([{**values, "recipe": f"{recipe}_noise=gaussian"}])  # by "none" the paper means another
    assert changed.header == ["row", "runs", "last 10 epochs, %", "best epoch, %"]


def test_what_is_said_of_table_1_fits_its_columns() -> None:
    """The number of images is that of the records, and what a column shows is explained."""
    recipe = "cifar100_resnet110_authors"
    settings = {"network": "resnet110", "steps": 64_000, "batch": 128, "held_out": 100}
    fields = {"best_top1": 71.0, "weight_decay": 1e-4, "device": "a GPU", "config": settings}
    runs = [{**fields, "row": row, "last10_top1": 70.0 + k} for row in ("none", "dropout keep 0.9") for k in (0, 1)]
    printed, changed = ([{**run, "recipe": name} for run in runs] for name in (recipe, f"{recipe}_p=0.1"))
    assert "accuracy on 100 training images that were held out." in prose(printed)[0]
    assert prose(printed)[2].startswith("The paper’s numbers are means")
    assert prose(changed)[2].startswith("The p-values are from Welch’s test")
    assert len(prose(changed[:1])) == 1, "one run: neither p-values nor numbers of the paper"
    whole_set = [{**run, "config": settings | {"held_out": 0}} for run in printed]
    assert "on batches of 128, weight decay 0.0001; accuracy on the 10,000 test images." in prose(whole_set)[0]
    few = [{**run, "config": settings | {"held_out": 0, "subset": 5_000}} for run in printed]
    assert "on batches of 128 from 5,000 training images, weight" in prose(few)[0]


def test_which_p_the_rows_of_table_1_have_is_said() -> None:
    """As they are shown; of a row whose p was changed the name says nothing."""
    recipe = "cifar100_resnet110_authors"
    named = "Rows are named as in the paper: with the drop probability p, "
    both = f"{named}the keep rate is 1 − p and sigma is √(p / (1 − p)). So sigma "
    records = read_records(ROOT / "results", recipe)
    assert prose(records)[1] == f"{both}0.333 and 0.500 are p = 0.1 and 0.2."
    assert prose([run for run in records if "0.333" not in run["row"]])[1] == f"{both}0.500 is p = 0.2."
    assert prose([run for run in records if "sigma" not in run["row"]])[1] == f"{named}the keep rate is 1 − p."
    assert (
        search.prose(read_records(ROOT / "results", SEARCH))[1]
        == f"{both}0.229, 0.333 and 0.500 are p = 0.05, 0.1 and 0.2."
    )
    changed = [{**run, "config": run["config"] | {"p": 0.3}} for run in records]
    assert not any("named" in paragraph for paragraph in prose(changed))
    for config in TABLES[recipe]():
        text = prose([{**records[0], "row": config.row, "config": records[0]["config"] | {"p": config.p}}])[1:]
        if "sigma" in config.row:
            assert text[0].endswith(f"So sigma {config.row.split()[-1]} is p = {config.p:g}.")


def test_a_row_of_table_1_is_compared_with_none_and_with_dropout_as_strong() -> None:
    fields = {"best_top1": 71.0, "recipe": "cifar100_resnet110_authors", "config": {"network": "resnet110"}}
    rows = ("none", "dropout keep 0.9", "rotation default sigma 0.333", "rotation default sigma 0.500", "rotation odd")
    runs = [{**fields, "row": row, "last10_top1": 70.0 + k} for row in rows for k in (0, 1)]
    table = table1(runs)
    cells = {row[0]: row[-2:] for row in table.rows}
    assert table.header[-2:] == ["p-value, none", "p-value, Dropout"]
    assert cells == {
        "none": ["–", "–"],
        "dropout keep 0.9": ["1.000", "–"],
        "rotation default sigma 0.333": ["1.000", "1.000"],
        "rotation default sigma 0.500": ["1.000", "–"],
        "rotation odd": ["1.000", "–"],
    }
    assert rivals_lead(runs)[1] == [], "one strength has both"
    more = [{**fields, "row": "dropout keep 0.8", "last10_top1": 69.0 + k} for k in (0, 1)]
    singles = [
        {**fields, "row": row, "last10_top1": 60.0} for row in ("dropout keep 0.7", "rotation default sigma 0.655")
    ]
    lead, counts = rivals_lead([*runs, *more, *singles])
    assert counts == [2, 2], "a single run has no deviation, and would leave the others without a p-value"
    assert lead == rivals_lead([*runs, *more])[0] == rivals_lead([*runs, *more], (0.9, 0.8))[0]
    assert rivals_lead([*runs, *more], (0.9, 0.7))[1] == []
    assert rivals_lead([*runs[2::2], *more[::2]])[1] == [1, 1], "single runs alone have a lead all the same"
    assert rivals_lead([*runs, *more[::2]])[1] == [2, 1], "and beside one other"
    assert [row[3] for row in table.rows] == ["71.93 ± 0.16", "73.13 ± 0.30", "74.23 ± 0.25", "74.14 ± 0.11", "–"]


def test_a_misprint_is_shown_and_not_compared_with() -> None:
    fields = {"best_top1": 79.8, "recipe": "cifar100_wrn28_10_authors", "config": {"network": "wrn28_10"}}
    runs = [{**fields, "row": "rotation default sigma 0.655", "last10_top1": 79.7 + k / 10} for k in (0, 1)]
    (cells,) = table1(runs).rows
    assert cells[4:6] == ["79.80 ± 0.00", "78.80 ± 0.15"], "no star"


def test_curves_say_on_which_examples_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe, held in (("cifar100_resnet110_protocol", True), ("cifar100_resnet110_authors", False)):
        records = read_records(ROOT / "results", recipe)
        (axes,) = curves_figure(records).axes
        assert axes.get_ylabel() == ("held-out accuracy, %" if held else "test accuracy, %")
        assert section(recipe, records).caption.startswith("Accuracy on held-out" if held else "Test accuracy")
    searched = read_records(ROOT / "results", SEARCH)
    lines = []
    monkeypatch.setattr(curves, "curves_figure", lambda shown: lines.append(set(by_row(shown))) or Figure())
    made = search.section(SEARCH, searched)
    assert lines == [{row for row in by_row(searched) if "," not in row}]
    assert made.caption.endswith("Other forms than the default are not shown.")


def test_a_run_of_one_epoch_is_a_point() -> None:
    run = {"row": "none", "recipe": "", "config": {}, "epochs": 1, "test_curve": [0.5]}
    assert curves_figure([run]).axes[0].lines[0].get_marker() == "o"
    assert curves_figure([{**run, "epochs": 2, "test_curve": [0.4, 0.5]}]).axes[0].lines[0].get_marker() == "None"


def test_many_rows_have_too_many_curves() -> None:
    rows = [config.row for config in TABLES["cifar100_resnet110_authors"]()]
    runs = [{"recipe": "cifar100_resnet110_authors", "row": row} for row in rows]
    assert [run["row"] for run in drawn(runs)] == [row for row in rows if row in {"none", *RIVALS, *RIVALS.values()}]
    assert drawn(runs[:10]) == runs[:10]
    others = [run for run in runs if run not in drawn(runs)]
    assert drawn(others) == others


def test_forms_are_compared_with_the_default_form_and_dropout_about_the_mean_with_dropout() -> None:
    recipe, settings = "cifar100_resnet110_authors", {"network": "resnet110", "steps": 64_000, "batch": 128}
    fields = {"recipe": recipe, "best_top1": 75.0, "weight_decay": 1e-4, "device": "a GPU", "config": settings}
    scores = {
        "dropout keep 0.8": (70.0, 70.1),
        "rotation default sigma 0.500": (72.0, 72.1),
        "rotation default sigma 0.333": (60.0, 60.1),
        "rotation uncentred sigma 0.500": (72.0, 72.1),
        "dropout centred keep 0.8": (70.0, 70.1),
    }
    runs = [{**fields, "row": row, "last10_top1": value} for row, values in scores.items() for value in values]
    table = table1(runs)
    places = [table.header.index(name) for name in ("p-value, Dropout", "p-value, default")]
    found = {row[0]: [row[place] for place in places] for row in table.rows}
    assert found["rotation uncentred sigma 0.500"] == ["0.001", "1.000"]
    assert found["rotation default sigma 0.500"] == ["0.001", "–"]
    assert found["rotation default sigma 0.333"] == ["–", "–"], "there is no Dropout of its strength"
    assert found["dropout centred keep 0.8"] == ["1.000", "–"]
    assert "compared with the default form of the same strength" in prose(runs)[2]
    assert "the default form" not in prose(runs[:4])[2]


def test_runs_that_are_not_scored_are_not_counted_as_if_they_were() -> None:
    """Means are of the runs that have scores."""
    runs = [{"row": "none", "recipe": "bccd", **scores} for scores in ({"ap": 50.0}, {"ap": 52.0}, {})]
    assert [table3(some).rows[0][1:3] for some in (runs, runs[:2], runs[2:])] == [
        ["2 of 3", "51.00 ± 1.41"],
        ["2", "51.00 ± 1.41"],
        ["1", "–"],
    ]


def test_detectors_are_compared_with_those_that_start_from_the_same_weights() -> None:
    scores = {"none": (40.0, 40.1), "none, ImageNet": (30.0, 30.1), "rotation, ImageNet": (30.0, 30.1)}
    scores["rotation"] = (40.0, 40.1)
    runs = [{"row": row, "recipe": "coco", "ap": ap} for row, values in scores.items() for ap in values]
    table = table3(runs)
    tests = {row[0]: row[table.header.index("p-value, none")] for row in table.rows}
    assert tests == {"none": "–", "none, ImageNet": "–", "rotation, ImageNet": "1.000", "rotation": "1.000"}


def test_what_is_recorded_is_counted(tmp_path: Path) -> None:
    def states() -> dict[str, list[str]]:
        table = reproduced.section(tmp_path).table
        assert table is not None
        return {row[0].partition(":")[0]: row[1:] for row in table.rows}

    assert states()["Table 3"] == ["0 of 6 rows; on other data 0 of 5 rows", "–"]
    shutil.copytree(ROOT / "results" / "bccd", tmp_path / "bccd")
    rows = by_row(read_records(tmp_path, "bccd"))
    fewest = min(map(len, rows.values()))
    outcome = verdict(read_records(tmp_path, "bccd"))
    assert outcome.startswith("Rotation is ")
    counted = f"0 of 6 rows; on other data {len(rows)} of 5 rows, n ≥ {fewest}"
    assert states()["Table 3"] == [counted, f"On bccd: {outcome}"]
    assert states()["Figure 1"] == ["computed", "Drawn by rotationout figures dropout_ab."]
    assert states()["Figure 2"] == ["0 of 3 rows", "–"]
    assert states()["Figure 5"][1].startswith("The four coefficients")
    assert reproduced.section(tmp_path).finding == (
        "Only on stand-in data: Table 3: RetinaNet on COCO. Computed: Figure 1; Figure 3; Figure 4; Figure 5. "
        "Not run: Table 1a, 1b: ResNet110 on CIFAR-100; Table 1c, 1d: WideResNet28-10 on CIFAR-100; "
        "Table 2: ResNet-50 on ImageNet; Table 4: LSTM on WSJ; Figure 2: variance shift, trained."
    )


def test_rows_of_table_1_are_the_paper_s(tmp_path: Path) -> None:
    """It has nine for each network. Forms of ours repeat one of them, of which the most run counts, or none."""
    part = reproduced.PARTS[0]
    for recipe in part.own:
        assert reproduced._count(tmp_path, recipe, part.row_of) == (0, "0 of 9 rows")
    folder = tmp_path / part.own[0]
    folder.mkdir()
    rows = ["none"] * 3 + ["rotation default sigma 0.500"] * 2 + ["rotation paper sigma 0.500", "dropout2d keep 0.9"]
    for seed, row in enumerate(rows):
        (folder / f"{seed}.json").write_text(
            json.dumps({"recipe": part.own[0], "row": row, "seed": seed, "config": {}})
        )
    assert reproduced._count(tmp_path, part.own[0], part.row_of) == (7, "2 of 9 rows, n ≥ 2")
    assert set(map(part.row_of, rows)) - {""} <= set(PAPER["resnet110"])
    assert {part.row_of(config.row) for config in TABLES[part.own[0]]()} - {""} == set(PAPER["resnet110"])


def test_rows_that_the_recipe_does_not_have_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "bccd").mkdir()
    record = json.loads(next((ROOT / "results" / "bccd").glob("none_seed*.json")).read_text(encoding="utf-8"))
    (tmp_path / "bccd" / "mine_seed0.json").write_text(json.dumps(record | {"row": "mine"}), encoding="utf-8")
    assert reproduced._count(tmp_path, "bccd") == (1, "0 of 5 rows, n ≥ 0")


def test_every_table_has_a_module_that_shows_it() -> None:
    for name in TABLES:
        module = module_of(name)
        assert all(callable(getattr(module, part)) for part in ("table", "prose", "verdict", "section")), name
    assert module_of(shift.RECIPE) is shift
    assert module_of(ghost.RECIPE) is ghost


def test_every_table_has_a_verdict() -> None:
    """From the rows that its own recipes have, and on the paper's own data where both are recorded."""
    scores = {"last10_top1": 1.0, "ap": 1.0, "edit_distance": 1.0}
    for part in (part for part in reproduced.PARTS if part.title.startswith("Table")):
        for recipe in (*part.own, *part.stand_ins):
            runs = [{"row": config.row, **scores} for config in TABLES[recipe]()]
            assert "(+0.00" in part.verdict(runs), recipe
            assert part.verdict([run for run in runs if "rotation" not in run["row"]]) == ""


def test_stars_are_for_the_data_of_the_paper_alone() -> None:
    runs = [
        {"row": "none", "edit_distance": d, "cer": d, "recipe": "wsj", "config": {"held_out": 0}} for d in (5.0, 5.1)
    ]
    assert table4(runs).rows[0][2:4] == ["5.05 ± 0.07 *", "9.1"]
    assert table4([{**run, "recipe": "an4"} for run in runs]).rows[0][2] == "5.05 ± 0.07"
    seen = [{"row": row, "ap": ap, "recipe": "coco"} for ap in (30.0, 30.1) for row in ("none", "rotation")]
    cells = {row[0]: row[2] for row in table3(seen).rows}
    assert cells == {"none": "30.05 ± 0.07 *", "rotation": "30.05 ± 0.07"}, "the paper's has other initial weights"
    images = {"row": "none", "best_top1": 70.0, "last10_top5": 93.2}
    many = [{**images, "last10_top1": top1, "recipe": "imagenet"} for top1 in (70.0, 70.1)]
    assert table2(many).rows[0][2] == "70.05 ± 0.07 *"
    assert table2([{**run, "recipe": "imagewoof"} for run in many]).rows[0][2] == "70.05 ± 0.07"


def test_stars_are_explained_where_there_are_any() -> None:
    images = {"train_images": 1000, "test_images": 3, "classes": 2, "skipped": {}, "epochs": 1, "row": "none"}
    images |= {"device": "a GPU", "config": {"size": 64, "batch": 8, "block_sizes": ()}}
    images |= {"last10_top1": 70.0, "last10_top5": 90.0, "best_top1": 71.0}
    for recipe in ("imagenet", "imagewoof"):
        run = {**images, "recipe": recipe}
        first, _, last = table2_prose([run])
        assert first.startswith("1 epochs on 1,000 images of 2 classes, crops of 64 pixels, batches of 8; ")
        assert first.endswith("One run per row; 1 run in all, on a GPU.")
        assert ("A star" in last) == (recipe == "imagenet")
        assert "Welch" not in last, "there is nothing to test"
        pair = [run, {**run, "last10_top1": 71.0}]
        both = [*pair, *({**one, "row": "rotation"} for one in pair)]
        assert "Welch" in table2_prose(both)[-1]
    boxes = {"train_images": 6, "train_boxes": 9, "test_images": 3, "test_boxes": 4, "skipped": {}, "epochs": 1}
    boxes |= {"device": "a GPU", "config": {"crop": 64, "test_split": "val"}, "row": "none"}
    for recipe in ("coco", "bccd"):
        assert ("A star" in table3_prose([{**boxes, "recipe": recipe}])[1]) == (recipe == "coco")
    heard = {"train_utterances": 9, "test_utterances": 3, "skipped": {}, "epochs": 1, "device": "a GPU", "row": "none"}
    for recipe in ("wsj", "an4"):
        config = {"held_out": 0, "test_split": "test"}
        first, second = table4_prose([{**heard, "recipe": recipe, "config": config}])
        assert "on the test split, 3 utterances" in first
        assert ("A star" in second) == (recipe == "wsj")
    first, second = table4_prose([{**heard, "recipe": "an4_strength", "config": {"held_out": 1, "test_split": "test"}}])
    assert "on speakers held out of the training set, 3 utterances" in first
    assert second == f"The p-values are from Welch’s test on the edit distance, against no noise. {UNCORRECTED}"
