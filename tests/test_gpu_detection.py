"""On a GPU: detection runs captured in a graph do what is done without it, every row goes on, side by side or not."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests.detection_album import write_album
from tests.test_detection_training import config
from tests.training_runs import _as_exact_as_can_be as _as_exact_as_can_be  # a fixture
from tests.training_runs import assert_beside_as_alone, assert_captured_as_plain, assert_goes_on_captured

from rotationout.experiments import results, streamed, sweep
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
GPU = torch.device("cuda")
ROWS = [row.row for row in TABLES["bccd"]()]
SMALL: dict[str, Any] = {
    "batch": 8,
    "steps": 3,
    "milestones": (2,),
    "test_every": 3,
    "warmup": 0,
    "learning_rate": 0.001,
}
# On a last map of 2 × 2 places GroupNorm has eight values; of two it would leave but the sign, which is chance.
SMALL |= {"backbone_options": {"layers": [1, 1, 1, 1], "width": 64}, "crop": 256, "scales": (224, 320)}


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("painted") / "album", {"train": 8, "test": 9})


def small(row: str, **changes: Any) -> DetectionConfig:
    """A batch is an epoch, and its loss is known."""
    return config(row, **{**SMALL, **changes})


def run_of(settings: DetectionConfig, album: Path) -> Detection:
    made = maker(album, GPU)(settings)
    assert isinstance(made, Detection)
    return made


@pytest.mark.parametrize("held", [True, False])
def test_captured_steps_are_those_done_one_by_one(held: bool, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, plain = assert_captured_as_plain(lambda: run_of(small("none", held=held), album), monkeypatch)
    torch.testing.assert_close(captured.result["test_loss"], plain.result["test_loss"], rtol=1e-2, atol=0)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, album: Path, tmp_path: Path) -> None:
    resumed = assert_goes_on_captured(lambda: run_of(small(row, precision="bf16"), album), tmp_path)
    assert len(resumed.facts["shown"]) == 4


def test_runs_side_by_side_are_what_they_are_alone(album: Path) -> None:
    """On the images they share."""
    make = maker(album, GPU)
    assert_beside_as_alone(lambda seed: make(small("rotation block", seed=seed)))


def test_bad_images_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by another process, while steps are captured."""
    monkeypatch.setattr(streamed, "workers", lambda: 1)
    root = write_album(tmp_path / "album", {"train": 16, "test": 3})
    (root / "images" / "train_3.png").write_bytes(b"")
    settings = small("dropout keep 0.9", held=False, precision="bf16", steps=2)
    assert sweep.sweep([settings], maker(root, GPU), folder=tmp_path, checkpoints=tmp_path / "c") == []
    (record,) = results.read_records(tmp_path, "bccd")
    assert record["skipped"] == {"train": {"empty file": 1}}


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
