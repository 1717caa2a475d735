"""The examples run, learn something, and are short."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import rotationout as ro

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
        assert len(path.read_text().splitlines()) < 70, path.name


@pytest.mark.filterwarnings("ignore")  # what the frameworks say of themselves
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, arguments, accuracy = EXAMPLES[name]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module(f"examples.{name}").main(**arguments) >= accuracy


@pytest.mark.filterwarnings("ignore")
def test_the_schedule_of_lightning_counts_optimizer_steps(tmp_path: Path) -> None:
    lightning, example = pytest.importorskip("lightning"), importlib.import_module("examples.lightning_digits")
    batches = DataLoader(TensorDataset(torch.randn(32, 64), torch.arange(32) % 10), batch_size=4)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}

    def train(steps: int, **options: Any) -> tuple[Any, ro.Schedule]:
        model = example.Classifier()
        ro.insert(model, ro.RotationOut(0.3), before="net.2")
        schedule = ro.Schedule.ramp(model, steps=100)
        trainer = lightning.Trainer(
            max_steps=steps,
            accumulate_grad_batches=4,
            callbacks=[example.ScheduleCallback(schedule)],
            enable_checkpointing=False,
            **quiet,
        )
        trainer.fit(model, batches, **options)
        return trainer, schedule

    trainer, schedule = train(3)
    assert (trainer.global_step, schedule.last_step) == (3, 2)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    trainer, schedule = train(5, ckpt_path=tmp_path / "run.ckpt", weights_only=False)
    assert (trainer.global_step, schedule.last_step) == (5, 4)


@pytest.mark.filterwarnings("ignore")
def test_the_schedule_of_hugging_face_resumes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    example = importlib.import_module("examples.hf_text")

    def train(steps: int, resume: bool) -> ro.Schedule:
        model = example.build()
        schedule = ro.Schedule.ramp(model, steps=100)
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=4, report_to="none", disable_tqdm=True, use_cpu=True
        )
        callbacks = [example.ScheduleCallback(schedule)]
        trainer = transformers.Trainer(model, arguments, train_dataset=example.DATA, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return schedule

    assert train(4, resume=False).last_step == 3
    assert train(6, resume=True).last_step == 5
