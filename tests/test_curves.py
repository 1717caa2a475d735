"""Learning curves: what each row looks like, and what is in the picture."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from rotationout.experiments.results import read_records
from rotationout.recipes import TABLES
from rotationout.report.curves import curves_figure
from rotationout.report.gallery.trained import LOOKS
from rotationout.report.style import PALETTE

ROOT = Path(__file__).parents[1]


def test_the_names_of_curves_are_inside_their_figure() -> None:
    """Of every table that has records, and of many names that are long."""
    tables = [read_records(ROOT / "results", recipe) for recipe in TABLES]
    curve = {"epochs": 2, "test_curve": [0.5, 0.6]}
    tables.append([{"row": f"row {k}, of which much can be said: {'w' * 30}", **curve} for k in range(12)])
    drawn = 0
    for records in tables:
        if records and "test_curve" in records[0]:
            figure = curves_figure(records)
            figure.draw_without_rendering()
            (legend,) = figure.legends
            box = legend.get_window_extent()
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, records[0]["row"]
            drawn += 1
    assert drawn > 2


def curves(noises: dict[str, str]) -> list[dict[str, Any]]:
    """Records of rows, and the noise of each."""
    made = {"epochs": 4, "test_curve": [0.1, 0.2, 0.69, 0.7]}
    return [{"row": row, "config": {"noise": noise}, **made} for row, noise in noises.items()]


def test_a_curve_is_as_long_as_the_shortest_run_of_its_row() -> None:
    """The mean is over all of them everywhere."""
    short, long = ({"row": "none", "epochs": len(c), "test_curve": c} for c in ([0.5, 0.6], [0.7, 0.8, 0.9]))
    figure = curves_figure([short, long])
    (axes,) = figure.axes
    (line,) = axes.lines
    (band,) = axes.collections
    corners = {(float(x), round(float(y), 6)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(1, 50), (1, 70), (2, 60), (2, 80)}, "the range of the runs"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "test accuracy, %")
    assert figure.get_figheight() > 2.8 + 0.1, "the names below take no height from the curves"
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx([60.0, 70.0])


def colours(records: list[dict[str, Any]]) -> dict[str, Any]:
    (axes,) = curves_figure(records).axes
    return {str(line.get_label()): line.get_color() for line in axes.lines}


def test_a_curve_has_the_colour_of_its_noise_whatever_is_beside_it() -> None:
    for records in (
        curves({"authors, ramp": "rotation", "dropout keep 0.9": "dropout", "none": "none"}),
        curves(
            {"b": "locked", "cutout": "cutout", "none": "none", "rotation": "rotation-sequence", "weight drop": "none"}
        ),
    ):
        drawn = colours(records)
        assert drawn["none"] == PALETTE["grey"]
        for record in records:
            noise, colour = record["config"]["noise"], drawn[record["row"]]
            assert (colour in (PALETTE["blue"], PALETTE["sky"])) == noise.startswith("rotation")
            assert (colour in (PALETTE["orange"], PALETTE["red"])) == (noise in ("dropout", "locked"))
    assert list(drawn) == ["none", "b", "cutout", "weight drop", "rotation"], "family by family"


def test_every_row_has_a_look_of_its_own() -> None:
    alone = colours(curves(dict.fromkeys("abcdef", "rotation")))
    assert len(set(alone.values())) == 6, "all of one family: there is nothing else that a colour could say"
    assert len(colours(curves({f"none {k}": "none" for k in range(6)}))) == 6, "however many there are"
    for recipe in TABLES:
        rows = {config.row: config for config in TABLES[recipe]()}
        records = curves({row: config.noise for row, config in rows.items()})
        (axes,) = curves_figure(records).axes
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(rows), recipe


def test_figures_of_the_same_rows_have_the_same_colours() -> None:
    records = read_records(ROOT / "results", "cifar100_resnet110_shift")
    assert {row: PALETTE[LOOKS[row][0]] for row in colours(records)} == colours(records)


def test_curves_begin_where_one_comes_near_the_end() -> None:
    (axes,) = curves_figure(curves({"none": "none"})).axes
    assert axes.get_xlim()[0] == 2, "the last test before 69 %"
    assert axes.get_ylim() == pytest.approx((68, 71)), "about 70"


def test_curves_are_drawn_where_tests_were() -> None:
    record = {"row": "none", "epochs": 25, "cer_curve": [90.0, 20.0, 10.0], "config": {"test_every": 10}}
    (axes,) = curves_figure([record], "cer_curve", "CER, %", 1.0).axes
    assert [list(map(float, values)) for values in axes.lines[0].get_data()] == [[10, 20, 25], [90, 20, 10]]
