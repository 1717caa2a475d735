"""The examples run, learn something, and are short."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES: dict[str, tuple[list[str], dict[str, Any], float]] = {
    "plain_loop": (["sklearn"], {"epochs": 6}, 0.7),
    "timm_resnet": (["sklearn", "timm"], {"name": "resnet10t", "epochs": 2, "channels": (16, 32, 64, 128)}, 0.7),
    "hf_text": (["transformers", "accelerate"], {"steps": 60}, 0.9),
    "lightning_digits": (
        ["sklearn", "lightning"],
        {"epochs": 4, "accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False},
        0.7,
    ),
}
"""What each needs, how it is run here, and the accuracy that it must reach."""


def test_every_example_is_run_and_short() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.mark.filterwarnings("ignore")  # what the frameworks say of themselves
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, arguments, accuracy = EXAMPLES[name]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module(f"examples.{name}").main(**arguments) >= accuracy
