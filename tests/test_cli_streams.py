"""The command line where stdout or stderr is closed or knows few characters, and where it is interrupted at once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from tests.command_line import SOURCE, said, typed

from rotationout import cli
from rotationout.cli import app

RECORD = {"recipe": "cifar100_ghost", "row": "GroupNorm", "seed": 0, "device": "CPU", "steps": 2, "test_curve": [0.1]}
CONFIG = {"batch": 4, "steps": 2, "norm": "group", "ghost_batch": 0, "network": "resnet20"}


@pytest.fixture
def results(tmp_path: Path) -> str:
    """A folder with a record, whose table has characters that ASCII has not."""
    path = tmp_path / "results" / "cifar100_ghost" / "groupnorm_seed0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**RECORD, "config": CONFIG}))
    return str(tmp_path / "results")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_is_closed_is_no_mistake(closed: str, results: str) -> None:
    script = f"import sys; sys.{closed} = None; from rotationout.cli import main; sys.exit(main())"
    words = ["table", "cifar100_ghost", "--results", results]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("GroupNorm" in done.stdout) is (closed == "stderr")


def test_characters_that_an_encoding_has_not_are_no_mistake(results: str) -> None:
    words = ("table", "cifar100_ghost", "--results", results)
    plain, data = (typed(*words, *more, PYTHONIOENCODING="ascii") for more in ([], ["--json"]))
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "standard deviation" in plain.stdout
    assert "mean ± standard deviation" in " ".join(json.loads(data.stdout)["prose"]), "in JSON nothing is lost"
    assert typed("bench", "--help", PYTHONIOENCODING="ascii").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_a_folder_whose_name_is_no_text_is_printed(tmp_path: Path) -> None:
    """As it is or, in JSON, escaped; after the work it would be too late for an error."""
    images = tmp_path / "images" / "train" / "dog"
    images.mkdir(parents=True)
    (images / "a.png").write_bytes(b"packed as it is")
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    words = [b"images", os.fsencode(tmp_path / "images"), folder, b"--split", b"train"]
    script = [sys.executable, "-m", "rotationout.cli", *words]
    around = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8"}  # strict, as in most places
    plain, data = (subprocess.run([*script, *more], capture_output=True, env=around) for more in ([], ["--json"]))
    assert (plain.returncode, plain.stderr) == (0, b"")
    assert plain.stdout.startswith(folder + b"/train.pt: ")
    ((file, _),) = [found.values() for found in json.loads(data.stdout.decode("utf-8"))]
    assert os.fsencode(file) == folder + b"/train.pt"


def test_an_interrupt_before_the_command_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of ``train`` the options of its fields are looked up first, for which torch is imported."""

    def interrupted(*_: object) -> Callable[..., None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "build", interrupted)
    assert cli.main(["train", "an4"]) == 130
    assert said(capsys) == "rotationout: interrupted"
