"""Mistakes in the arguments of `rotationout diagnose` are told in a line, without a traceback."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import said
from tests.test_cli_diagnose import here as here  # a fixture

from rotationout import cli

np = pytest.importorskip("numpy")

MISTAKES = [
    ("my_models", 2, "must be pkg.module:name, for instance my_project.models:build_model, got 'my_models'"),
    ("my_modles:build", 2, "there is no module 'my_modles' in"),
    ("my_models:biuld", 2, "my_models has no 'biuld'; did you mean 'build'?"),
    ("my_models.py:build", 2, "and none is installed; write my_models:build"),
    ("./my_models.py:build", 2, "must be pkg.module:name, got './my_models.py:build'; write my_models:build"),
    (":build", 2, "must be pkg.module:name, for instance my_project.models:build_model, got ':build'"),
    ("my_models.py", 2, "must be pkg.module:name, for instance my_models:build_model, got 'my_models.py'"),
    ("/my_models.py:build", 2, "must be pkg.module:name, for instance my_project.models:build_model, got"),
    ("my_models:build --data my_models.py:batches", 2, "and none is installed; write my_models:batches"),
    ("my_script:build", 1, "my_script cannot be imported: SystemExit: 2 ("),
    ("my_models:build --data my_models:mixed", 1, "the model cannot be run on all batches, in training and in testing"),
    ("my_models:torn --data my_models:batches", 1, "in training and in testing mode: RuntimeError: not for tests ("),
    ("my_models:build --data my_models:failing", 1, "my_models:failing failed: KeyError: 'gone' ("),
    ("my_models:build --data number.pt", 1, "examples along the first axis, got a number"),
    ("my_models:needs", 2, "my_models:needs needs arguments (width); name a function that needs none"),
    ("my_models:number", 2, "must be or return a torch.nn.Module, got int"),
    ("my_models:broken", 1, "my_models:broken failed: IndexError: list index out of range ("),
    ("my_broken:build", 1, "my_broken cannot be imported: RuntimeError: not yet ("),
    ("my_needy:build", 1, "my_needy cannot be imported: it needs a_package_that_is_not_there, which is not installed"),
    ("my_models:build --data none.pt", 2, "there is no file 'none.pt'"),
    ("my_models:build --data none", 2, "must be a file (.pt, .pth, .npy, .npz) or pkg.module:name of batches"),
    ("my_models:build --data my_models:number", 2, "must be or return batches, a DataLoader or a list, got int"),
    ("my_models:build --data my_models:nothing", 1, "my_models:nothing is empty"),
    (
        "my_models:build --data text.pt",
        1,
        "text.pt cannot be read: it is damaged, or holds something other than tensors",
    ),
    (
        "my_models:build --data text.npy",
        1,
        "text.npy cannot be read: it is damaged, or holds something other than arrays",
    ),
    ("my_models:build --data many.npz", 1, "many.npz must hold one array, or the inputs as x; it holds a, b"),
    (
        "my_models:build --data words.pt",
        1,
        "words.pt must hold inputs as tensors, examples along the first axis, got str",
    ),
    ("my_models:build --data wide.pt", 1, "cannot be run on the first batch, float32 (20, 7): RuntimeError: mat1"),
    ("my_models:build --data nan.npy", 1, "nan.npy has inputs that are not a number (NaN)"),
    ("my_models:build --weights whole.pt", 1, "other than tensors in plain containers; of a model, save model.state_"),
    ("my_models:build --weights words.pt", 1, "words.pt must hold a state_dict, tensors by name, got str"),
    ("my_models:build --weights wrapped.pt", 1, "the name of every weight in it begins with 'module.'. Save the state"),
    ("my_models:build --weights other.pt", 1, "other.pt does not fit the model: Error(s) in loading state_dict"),
]


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_mistakes_are_told_in_a_line(line: str, code: int, message: str, here: Path, capsys: Any) -> None:
    (here / "text.pt").write_text("hello")
    (here / "text.npy").write_text("hello")
    np.save(here / "nan.npy", np.full((20, 6), np.nan, np.float32))
    np.savez(here / "many.npz", a=np.zeros(3), b=np.zeros(3))
    torch.save("hello", here / "words.pt")
    torch.save(torch.nn.Linear(2, 2), here / "whole.pt")
    state = runpy.run_path(str(here / "my_models.py"))["build"]().state_dict()
    torch.save({f"module.{name}": value for name, value in state.items()}, here / "wrapped.pt")
    torch.save({f"module.{name}": value for name, value in [*state.items()][:-1]}, here / "other.pt")
    torch.save(torch.randn(20, 7), here / "wide.pt")
    torch.save(torch.tensor(1.0), here / "number.pt")
    assert cli.main(["diagnose", *line.split(), "--device", "cpu"]) == code
    err = said(capsys)
    assert message in err
    assert "Traceback" not in err
