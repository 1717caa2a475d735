"""The command line as it is typed: help, completion, data and JSON, and the noises that `rotationout bench` times."""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import SOURCE, typed
from typer.testing import CliRunner

import rotationout as ro
from rotationout import cli
from rotationout.cli import app, fields
from rotationout.experiments import digits
from rotationout.recipes import TABLES
from rotationout.report.modules import module_of

RESULTS = Path(__file__).parents[1] / "results"


def examples(name: str) -> list[list[str]]:
    """The commands that a help shows, as words."""
    shown = app.help_of(app.COMMANDS[name]).partition("Example:\n")[2].splitlines()
    return [shlex.split(line)[1:] for line in shown if line.strip().startswith("rotationout ")]


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("an4.pt", "w.pt", "BCCD", "CORPUS", "IMAGEWOOF"):
        (tmp_path / path).touch()
    called: list[str] = []

    def stand_in(function: Any, **_: Any) -> Any:
        """A command that is parsed and not run."""
        return functools.wraps(function)(lambda *_, **__: called.append(name))

    monkeypatch.setattr(app.trouble, "told", stand_in)
    found = examples(name)
    assert found
    runner = CliRunner()
    for words in found:
        assert words[0] == name
        result = runner.invoke(app.build(words), words)
        assert result.exit_code == 0, result.output
    assert len(called) == len(found)
    shown = runner.invoke(app.build([name]), [name, "--help"], terminal_width=80)
    assert shown.exit_code == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    for words in found:
        assert f"rotationout {words[0]}" in shown.stdout


def test_help_is_quick_and_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Torch takes seconds to import, so it is not."""
    script = (
        "import sys; from rotationout.cli import main; code = main(['--help']); print('torch' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.stdout.endswith("False 0\n"), done.stderr
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{ro.__version__}\n"


def test_data_go_to_stdout_and_messages_to_stderr_without_colours() -> None:
    rows, wrong = typed("rows", "an4"), typed("demo", "--p", "2")
    assert rows.stdout.splitlines() == [config.row for config in TABLES["an4"]()]
    assert (rows.returncode, rows.stderr) == (0, "")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "p is a drop probability" in wrong.stderr
    assert "\x1b" not in typed("table", "--help").stdout + wrong.stderr


def test_a_table_is_printed_without_matplotlib() -> None:
    """Of every module that shows one."""
    names = {module_of(name): name for name in TABLES if (RESULTS / name).is_dir()}
    script = (
        "import sys; sys.modules['matplotlib'] = None; from rotationout.cli import main; "
        f"sys.exit(max(main(['table', name, '--results', {str(RESULTS)!r}]) for name in sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names.values()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names) == 7


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash would offer for a line."""
    words = line.split(" ")
    monkeypatch.setenv("_ROTATIONOUT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert cli.main([]) == 0
    return capsys.readouterr().out.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rotationout tr", {"train"}),
        ("rotationout train cifar100_resnet110_sh", {"cifar100_resnet110_shift"}),
        ("rotationout rows an4_", {"an4_strength"}),
        ("rotationout sweep an4 --row rotation,", {r"rotation,\ variational\ weight\ drop\ keep\ 0.9"}),
        ("rotationout sweep bccd --row dropo", {r"dropout\ keep\ 0.9"}),
        ("rotationout train an4 --weight-d", {"--weight-decay", "--weight-drop"}),
        ("rotationout train an4 --noise rotation-", {"rotation-sequence"}),
        ("rotationout train an4 --precision fp", {"fp16", "fp32"}),
        ("rotationout train an4 --variational t", {"true"}),
        ("rotationout figures coadaptation_t", {"coadaptation_trained"}),
        ("rotationout diagnose --str", {"--strict"}),
    ],
)
def test_words_are_completed(line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    assert set(completed(line, monkeypatch, capsys)) == offered


def test_a_shell_can_be_given_the_completion() -> None:
    shown = typed("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0
    assert "complete -o default -F _rotationout_completion rotationout" in shown.stdout


def test_lists_and_records_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[1]

    def printed(*words: str) -> Any:
        assert cli.main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert printed("rows")["an4"] == [config.row for config in TABLES["an4"]()]
    assert printed("rows", "an4")[0]["hidden"] == TABLES["an4"]()[0].hidden
    protocol = printed("table", "cifar100_resnet110_protocol", "--out", str(root / "results"))
    assert protocol["runs"] == len(list((root / "results" / "cifar100_resnet110_protocol").glob("*.json")))
    assert {"row", "runs", "last 10 epochs, %"} <= protocol["rows"][0].keys()
    pytest.importorskip("matplotlib")
    listed = printed("figures", "--list", "--results", str(root / "results"))
    assert "coadaptation_factor" in [drawing["name"] for drawing in listed]


def test_noises_are_timed_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--shape", "8,6", "--shape", "4,6,3,3", "--shape", "3x5", "--rounds", "2", "--device", "cpu"]
    assert cli.main([*words, "--json", "--out", str(tmp_path / "record.json")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "record.json").read_text())
    rows = {(row["tensor"], row["noise"]): row for row in shown["rows"]}
    assert rows["(8, 6)", "nn.Dropout"]["bytes_kept"] == 4 * 48, "a mask of floats"
    assert ("(4, 6, 3, 3)", "nn.Dropout2d") in rows
    assert ("(8, 6)", "nn.Dropout2d") not in rows
    assert ("(8, 6)", "authors' formula") in rows
    assert ("(3, 5)", "authors' formula") not in rows, "it pairs all features"
    assert all(row["ms"] > 0 for row in shown["rows"])
    assert cli.main(words) == 0
    assert re.search(r"^\| nn.Dropout \| [\d.]+ \| 1.00 \| 0.2 \| 100.00 \|$", capsys.readouterr().out, flags=re.M)


def test_noises_that_are_timed_are_what_their_names_say() -> None:
    from rotationout import bench, nn

    for shape, layer in (((8, 6), nn.RotationOut), ((8, 5, 6), nn.RotationOut), ((8, 6, 5, 5), nn.RotationOut2d)):
        found = bench.noises(shape, 0.2)
        forms = {name: noise for name, noise in found.items() if name.startswith("RotationOut")}
        assert {type(noise) for noise in forms.values()} == {layer}
        plane = forms.pop("RotationOut, gradient in the plane", None)
        assert repr(plane) == (repr(layer(0.2, gradient="plane")) if layer is nn.RotationOut else "None")
        assert [noise.center for noise in forms.values()] == [None, None, "batch"]
        draws = [(noise.draw.pairing, noise.draw.pairing_per) for noise in forms.values()]
        usual = (layer(0.2).draw.pairing, layer(0.2).draw.pairing_per)
        assert draws == [("permutation", "batch"), usual, usual]
        (default,) = (noise for name, noise in forms.items() if name.endswith("(default)"))
        assert repr(default) == repr(layer(0.2))
        assert {noise.p for noise in (*forms.values(), found["nn.Dropout"])} == {0.2}


def test_the_authors_formula_rotates_all_pairs_of_an_example_by_one_angle() -> None:
    import torch

    from rotationout import bench

    x = torch.randn(4000, 6, 2, dtype=torch.float64)
    change = bench.authors_formula(0.2)(x) - x
    about = x - x.mean((0, 2), keepdim=True)
    assert (change * about).sum(1).abs().max() < 1e-5, "at right angles to the features"
    squares = change.square().sum(1) / about.square().sum(1)
    torch.testing.assert_close(squares[:, 0], squares[:, 1], msg="one tangent for all positions")
    assert abs(squares[:, 0].mean() - 0.25) < 5 * 0.25 * (2 / 4000) ** 0.5  # λ times a χ² of one degree of freedom


def test_timing_takes_turns() -> None:
    from rotationout import bench

    called: list[str] = []
    found = bench.time_side_by_side({name: lambda name=name: called.append(name) for name in "ab"}, rounds=3)
    turns = {"".join(called[place : place + 2]) for place in range(0, 10, 2)}
    assert (len(called), turns) == (10, {"ab", "ba"}), "five rounds, two of which do not count, in changing order"
    assert list(found) == ["a", "b"]
    for shape in ((4,), (4, 0), (2, 2, 2, 2, 2)):
        with pytest.raises(ValueError, match=r"shape must be \(N, D\), \(N, T, D\) or \(N, C, H, W\), got"):
            bench.compare(shape)
    with pytest.raises(ValueError, match="rounds must be at least 2, got 1"):
        bench.compare((4, 4), rounds=1)
    alone = [row["noise"] for row in bench.compare((1, 2), rounds=2)]
    assert "RotationOut, un-centred (default)" in alone
    assert not [name for name in alone if "batch-centred" in name], "the mean of one vector is that vector"
    for shape in ((4, 6), (2, 4, 3, 3)):
        layers = [repr(noise) for noise in bench.noises(shape, 0.2).values() if isinstance(noise, torch.nn.Module)]
        assert len(set(layers)) == len(layers), "nothing is timed twice"


def test_the_demo_has_the_settings_of_the_study() -> None:
    defaults = {name: option.default for name, option in app.inspect.signature(app.COMMANDS["demo"]).parameters.items()}
    assert (defaults["seeds"], defaults["epochs"], defaults["p"]) == (digits.SEEDS, digits.EPOCHS, digits.P)


def test_fields_are_described_where_they_are_defined() -> None:
    for config in fields.TASKS:
        described = fields._descriptions(config)
        names = {field.name for field in fields.dataclasses.fields(config)}
        assert names <= described.keys()
    assert fields._descriptions(fields.Config)["rate_factor"].startswith("the factor by which the learning rate")


def test_help_says_types_of_values_alone_and_which_tables_have_a_field() -> None:
    runner = CliRunner()
    train = " ".join(re.sub("[│╭╮╰╯─]", " ", runner.invoke(app.build(["train"]), ["train", "--help"]).stdout).split())
    assert "--json Print JSON." in train
    assert "--seed INT Seed of weights" in train
    assert "object detection, speech recognition: number of epochs from test to test" in train
    assert "--stages INT,INT,… CIFAR-100: the stages of the network that get noise" in train
    assert "get noise, counted from 1. object detection: how many of the last stages" in train
    assert "One of resnet20, resnet110, wrn28_10, mlp, vit." in train
    assert train.count("--test-every") == train.count("--momentum") == 1
    assert "<bool>" not in runner.invoke(app.build(), ["--help"]).stdout


def test_the_first_row_is_run_if_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("rotationout.experiments.sweep.sweep", lambda configs, *_, **__: ran.extend(configs) or configs)
    assert cli.main(["train", "cifar100_ghost", "--data", str(tmp_path), "--device", "cpu"]) == 3
    assert [config.row for config in ran] == [TABLES["cifar100_ghost"]()[0].row]


def test_the_demo_prints_its_record_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--seeds", "1", "--epochs", "1", "--no-theory", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads((tmp_path / "out" / "digits.json").read_text())
    assert shown.err.endswith("rotationout: open out/index.html\n")
