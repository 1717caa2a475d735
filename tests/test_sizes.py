"""The study of sizes, and what all studies of digits share: their command and the processes that train."""

import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import said
from torch import nn

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from rotationout import cli
from rotationout.cli import study as command
from rotationout.experiments import digits, sizes
from rotationout.experiments.forms import PLANE, Form, FormsStudy
from rotationout.experiments.jobs import in_order
from rotationout.report import sizes as report
from rotationout.report.cells import is_clear

RECORD = Path(__file__).parents[1] / "results" / "sizes.json"


def test_the_setting_of_the_demonstration_is_one_of_them() -> None:
    ours = sizes.train("200 examples, width 256", "Dropout, p = 0.5", seed=3, epochs=2)
    theirs = digits.train(digits.load_data(), "dropout", 0.5, seed=3, epochs=2)
    assert ours["test_accuracy"] == theirs.test_accuracy


def test_settings_have_the_sizes_that_they_are_named_by(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def learn(data: object, build: Any, seed: int, epochs: int, *, train_examples: int) -> digits.Learned:
        model = build()
        seen.append((train_examples, model[0].out_features, model[2].p if hasattr(model[2], "p") else 0.0))
        return digits.Learned([1], [0.5], 0.5)

    monkeypatch.setattr(digits, "learn", learn)
    for setting, noise in sizes.plan():
        sizes.train(setting, noise, 0, 1)
    named = [
        (*map(int, re.findall(r"\d+", setting)), float((re.findall(r"p = (.*)", noise) or [0])[0]))
        for setting, noise in sizes.plan()
    ]
    assert seen == named


def test_so_many_examples_are_learned_from() -> None:
    learned = digits.learn(digits.load_data(), lambda: nn.Linear(64, 10), 0, 1, train_examples=150)
    assert (150 * learned.train_accuracy).is_integer()
    assert (1647 * learned.test_curve[-1]) == pytest.approx(round(1647 * learned.test_curve[-1]))


def made(gains: list[float]) -> FormsStudy:
    """A study in which RotationOut is ahead of Dropout by these, with two seeds, and no other noise differs."""
    forms = []
    rows = [(setting, p) for setting in sizes.SETTINGS for p in sizes.RATES]
    for setting in sizes.SETTINGS:
        forms.append(Form(setting, "no noise", [0, 1], [0.9, 0.8], [1.0, 1.0], [1.0, 1.0]))
    for (setting, p), gain in zip(rows, gains, strict=True):
        for kind in sizes.KINDS:
            more = gain if kind == "RotationOut" else 0.0
            scores = [0.9 + more, 0.8 + 1.001 * more]
            forms.append(Form(setting, f"{kind}, p = {p:g}", [0, 1], scores, [1.0, 1.0], [1.0, 1.0]))
    return FormsStudy({"epochs": 1, "seeds": 2}, forms)


def test_the_finding_counts_rows_that_are_clear() -> None:
    gains = [0.05, -0.04, -0.03] + [0.0] * (2 * len(sizes.SETTINGS) - 3)
    (section,) = report.sections(made(gains))
    assert section.finding.startswith(
        "RotationOut is clearly ahead of Dropout in 1 of 16 rows and clearly behind in 2."
    )
    assert section.table is not None
    column = section.table.header.index("RotationOut − Dropout")
    shown = [row[column] for row in section.table.rows]
    assert shown[0].startswith("+5.0")
    assert [cell.endswith("*") for cell in shown[:4]] == [True, True, True, False]


def test_tables_are_those_of_the_record() -> None:
    study = FormsStudy.load(RECORD)
    raw = {(f["network"], f["form"]): f["test_accuracy"] for f in json.loads(RECORD.read_text())["forms"]}
    assert set(raw) == set(sizes.plan())
    assert all(form.seeds == list(range(1000, 1000 + sizes.SEEDS)) for form in study.forms)
    table = report.table(study)
    assert len(table.rows) == len(sizes.SETTINGS) * len(sizes.RATES)
    for row in table.rows:
        cells = dict(zip(table.header, row, strict=True))
        setting = f"{cells['examples']} examples, width {cells['width']}"
        ours, theirs = (raw[setting, f"{kind}, p = {cells['p']}"] for kind in ("RotationOut", "Dropout"))
        gains = [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]
        mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
        star = "*" if abs(mean) > 3 * error else ""
        assert cells["RotationOut − Dropout"] == f"{mean:+.2f} ± {error:.2f}{star}".replace("-", "−")


def test_what_pages_say_is_so_in_the_record() -> None:
    """README.md, choosing.md and negative_results.md."""
    study = FormsStudy.load(RECORD)
    behind, zeros, helps = (
        report.differences(study, pair)
        for pair in (("RotationOut", "Dropout"), ("zeros stay zero", "Dropout"), ("Dropout", "no noise"))
    )
    assert len(behind) == 16
    assert all(mean < 0 for mean, _ in behind), "never ahead"
    assert sum(mean for mean, _ in zeros) > 0.5 * sum(mean for mean, _ in behind), "more than half of that is gone"
    assert statistics.median(mean for mean, _ in zeros) > 0.6 * statistics.median(mean for mean, _ in behind)
    assert {is_clear(*pair) and pair[0] > 0 for pair in helps} == {True, False}, "whether noise helps or not"
    better, plane = (report.differences(study, (PLANE, other)) for other in ("RotationOut", "Dropout"))
    assert all(mean > 0 for mean, _ in better), "better in all sixteen rows"
    assert sum(is_clear(*pair) for pair in better) == 9, "clearly in nine"
    rows = [(setting, p) for setting in sizes.SETTINGS for p in sizes.RATES]
    found = {row: (gain, gained) for row, gain, gained in zip(rows, plane, helps, strict=True) if is_clear(*gain)}
    ahead = {row: gained for row, (gain, gained) in found.items() if gain[0] > 0}
    assert (len(ahead), len(found)) == (3, 5), "ahead in three, behind in two"
    assert not any(is_clear(*gained) and gained[0] > 0 for gained in ahead.values()), (
        "where Dropout does not clearly help"
    )
    over_none = [study.paired_difference(setting, f"{PLANE}, p = {p:g}", "no noise") for setting, p in ahead]
    assert [is_clear(*pair) and pair[0] < 0 for pair in over_none].count(True) == 2, "itself behind no noise in two"
    third = [(row, is_clear(*pair)) for row, pair in zip(ahead, over_none, strict=True) if pair[0] > 0]
    assert [(sizes.SETTINGS[setting], p, clear) for (setting, p), clear in third] == [((500, 64), 0.5, True)]
    assert {sizes.SETTINGS[setting][0] for setting, _ in found.keys() - ahead.keys()} == {1000}
    readme = (RECORD.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "not ahead in any of sixteen rows" in " ".join(readme.split())
    assert '`gradient="plane"` is ahead in three, behind in two.' in " ".join(readme.split())


def _seven(number: int) -> tuple[int, int]:
    return number + 7, torch.get_num_threads()


def test_several_processes_find_what_one_does_in_the_same_order(capsys: pytest.CaptureFixture[str]) -> None:
    alone, shared = (list(in_order(_seven, [(n,) for n in range(5)], jobs)) for jobs in (1, 2))
    assert alone == shared == [(7 + n, 1) for n in range(5)]
    assert "Training" in capsys.readouterr().err


def test_every_study_has_what_the_command_asks_of_it() -> None:
    for name in command.STUDIES:
        assert callable(importlib.import_module(f"rotationout.report.{name}").sections)
        assert callable(importlib.import_module(f"rotationout.experiments.{name}").run)


def test_mistakes_are_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizes, "run", lambda **_: pytest.fail("it was too late"))
    assert cli.main(["study", "size"]) == 2
    assert "did you mean 'sizes'?" in said(capsys)
    assert cli.main(["study", "sizes", "--seeds", "0"]) == 2
    (tmp_path / "taken").touch()
    assert cli.main(["study", "sizes", "--out", str(tmp_path / "taken")]) == 1
    assert "this must be a folder, not a file" in said(capsys)
    (tmp_path / "sizes.json").mkdir()
    assert cli.main(["study", "sizes", "--out", str(tmp_path)]) == 2
    assert "is a folder" in said(capsys)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["study", "sizes", "--out", str(tmp_path / "new")]) == 1
    assert "sklearn is missing: pip install 'rotationout[demo]'" in said(capsys)
