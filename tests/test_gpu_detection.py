"""On a GPU: detection runs captured in a graph do what is done without it, every row goes on, side by side or not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.detection_album import write_album
from tests.test_detection_training import config

from rotationout.experiments import results, sweep
from rotationout.experiments.detection import crops
from rotationout.experiments.detection.config import DetectionConfig
from rotationout.experiments.detection.loss import detection_loss
from rotationout.experiments.detection.network import Detector
from rotationout.experiments.detection.training import Detection
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = [row.row for row in TABLES["bccd"]()]
SMALL: dict[str, Any] = {"batch": 8, "steps": 24, "milestones": (18,), "test_every": 3, "learning_rate": 0.02}
SMALL |= {"backbone_options": {"layers": [1, 1, 1, 1], "width": 64}, "crop": 256, "scales": (224, 320)}


@pytest.fixture(autouse=True)
def _no_tf32() -> Any:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("painted") / "album", {"train": 24, "test": 9})


def small(row: str, **changes: Any) -> DetectionConfig:
    return config(row, **{**SMALL, **changes})


def run_of(settings: DetectionConfig, album: Path, device: str = "cuda") -> Detection:
    made = maker(album, torch.device(device))(settings)
    assert isinstance(made, Detection)
    return made


def finish(run: Detection) -> Detection:
    while not run.finished:
        run.advance()
    return run


@pytest.mark.parametrize("held", [True, False])
def test_captured_steps_are_those_done_one_by_one(held: bool, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise; and both are what a CPU does."""
    runs = [run_of(small("none", held=held), album, device) for device in ("cuda", "cuda", "cpu")]
    monkeypatch.setattr(runs[1], "captured", False)
    for run in runs:
        finish(run)
    assert runs[0]._graphs.captured
    assert not runs[1]._graphs.captured
    torch.testing.assert_close(runs[0].losses, runs[1].losses, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(runs[0].losses, runs[2].losses, rtol=5e-2, atol=2e-2)
    assert runs[0].losses[-1] < 0.8 * runs[0].losses[0]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, album: Path, tmp_path: Path) -> None:
    settings = small(row, precision="bf16")
    whole, first, second = (run_of(settings, album) for _ in range(3))
    finish(whole)
    for _ in range(13):
        first.advance()
    results.save_checkpoint(tmp_path / "run.pt", settings, first.state(), {})
    second.restore(results.load_checkpoint(tmp_path / "run.pt", settings)[0])
    finish(second)
    torch.testing.assert_close(second.losses, whole.losses, rtol=1e-1, atol=5e-2)
    assert whole.losses[-1] < whole.losses[0]
    assert len(whole.facts["shown"]) == 4


def test_runs_side_by_side_are_what_they_are_alone(album: Path, tmp_path: Path) -> None:
    rows = [small(row, seed=seed, steps=12) for row in ("none", "rotation block") for seed in (0, 1)]
    for together in (1, 4):
        make = maker(album, torch.device("cuda"))
        sweep.sweep(rows, make, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), "bccd") for n in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=5e-2, atol=2e-2)


def test_the_loss_and_the_windows_are_those_of_a_cpu() -> None:
    torch.manual_seed(0)
    anchors = torch.cat(Detector(3, "resnet18", layers=(1, 1, 1, 1), width=16).anchors(256))
    corner, size = torch.rand(4, 6, 2) * 180, 20 + torch.rand(4, 6, 2) * 50
    boxes, labels = torch.cat([corner, corner + size], 2), torch.randint(-1, 3, (4, 6))
    given = [torch.randn(4, len(anchors), 3), torch.randn(4, len(anchors), 4), anchors, boxes, labels]
    expected = detection_loss(*given, gamma=1.5)
    found = detection_loss(*(tensor.cuda() for tensor in given), gamma=1.5)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    pixels, sizes = torch.randint(256, (4, 3, 200, 300), dtype=torch.uint8), torch.tensor([[200, 300], [150, 220]] * 2)
    plans = crops.draw_plans(4, (200, 400), torch.Generator().manual_seed(0))
    seen = [crops.cut(*(t.to(device) for t in (pixels, sizes, plans)), 256).cpu().int() for device in ("cpu", "cuda")]
    assert (seen[0] - seen[1]).abs().max() <= 1
    moved = [
        crops.move(*(t.to(device) for t in (boxes, labels, sizes, plans)), 256)[0].cpu() for device in ("cpu", "cuda")
    ]
    torch.testing.assert_close(*moved)
