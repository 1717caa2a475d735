"""``rotationout train`` and ``sweep`` on a task of the tests' own: exit codes and records as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import said
from tests.test_run import plane as plane  # a fixture

from rotationout import cli
from rotationout.cli.fields import changed
from rotationout.experiments import sweep
from rotationout.recipes import TABLES


def test_time_that_runs_out_is_an_exit_code_of_its_own(plane: list[str], tmp_path: Path, capsys: Any) -> None:
    words = ["sweep", "plane", "--seeds", "0", *plane, "--json"]
    assert cli.main([*words, "--minutes", "0"]) == 3
    shown = capsys.readouterr()
    assert "2 runs are not finished; run the same command again to continue" in shown.err
    assert json.loads(shown.out) == []
    assert cli.main(words) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["row"] for record in records] == ["none", "rotation"]
    assert cli.main(words) == 0, "nothing is left to do"
    assert json.loads(capsys.readouterr().out) == records


def test_a_run_prints_its_record(plane: list[str], tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["train", "plane", "--row", "rotation", "--seed", "4", *plane, "--json", "--inputs", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["recipe"], record["row"], record["seed"]) == ("plane_inputs=2", "rotation", 4)
    assert [json.loads(path.read_text()) for path in (tmp_path / "r").rglob("*.json")] == [record]


def test_another_noise_may_need_other_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ["train", "cifar100_mlp", "--row", "rotation centred sigma 0.500", "--noise", "spatial"]
    assert cli.main([*line, "--data", str(tmp_path)]) == 2
    told = said(capsys)
    assert "noise 'spatial' has no option 'center'. It has dims; the row 'rotation centred sigma 0.500' has" in told
    assert "options of another noise: give --noise-options, '{}' for none" in told
    assert cli.main([*line, "--noise-options", "{}", "--data", str(tmp_path)]) == 1, "and then the data are missing"


def test_a_p_for_all_rows_of_a_sweep_is_refused_only_if_none_has_noise(plane: list[str], capsys: Any) -> None:
    words = ["sweep", "plane", "--seeds", "0", *plane, "--json", "--p"]
    assert cli.main([*words, "0.3"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(record["recipe"], record["row"]) for record in records] == [
        ("plane_p=0.3", "none"),
        ("plane_p=0.3", "rotation"),
    ]
    assert cli.main([*words, "0.3", "--row", "none"]) == 2
    assert "choose another with --row, or give a --noise" in said(capsys)
    assert cli.main([*words, "0.3", "--noise", "identity"]) == 2
    assert "choose another --noise" in said(capsys)


def test_a_noise_may_be_told_the_number_of_channels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = json.dumps({"dims": 2, "center": "running", "num_features": "channels"})
    line = ["train", "cifar100_resnet110_authors", "--noise", "rotation", "--p", "0.2", "--noise-options", options]
    assert cli.main([*line, "--data", str(tmp_path)]) == 1, "only the data are missing"
    assert "cifar-100-python" in said(capsys)


def test_kernels_give_a_run_no_other_name() -> None:
    (none, *_) = TABLES["cifar100_resnet110_authors"]()
    assert changed(none, {"kernels": "torch"}).recipe == none.recipe
    assert changed(none, {"kernels": "torch"}).kernels == "torch"
    assert changed(none, {"kernels": "torch", "steps": 9}).recipe == f"{none.recipe}_steps=9"


def test_an_interrupted_run_is_told(plane: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "sweep", interrupted)
    assert cli.main(["train", "plane", *plane]) == 130
    assert "interrupted; run the same command again to continue" in said(capsys)


def test_options_that_do_not_fit_are_a_mistake(plane: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a network is given options as JSON, a TypeError is about them; without any it is a bug of its own."""
    from tests import test_run

    monkeypatch.setattr(test_run.Plane, "build_network", lambda self: test_run.ro.noise("dropout", 0.1, nothing=1))
    options = ["--noise", "dropout", "--noise-options", '{"dims": 2}']
    assert cli.main(["train", "plane", *plane, *options]) == 1
    with pytest.raises(TypeError, match="has no option 'nothing'"):
        cli.main(["train", "plane", *plane])
