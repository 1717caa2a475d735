"""On a GPU: crops, and runs of Table 2 captured in CUDA graphs, from images that are held and from a disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests.image_folders import data_set, spoil
from tests.test_images_training import ROWS, SMALL, TINY
from tests.training_runs import _as_exact_as_can_be as _as_exact_as_can_be  # a fixture
from tests.training_runs import assert_beside_as_alone, assert_captured_as_plain, assert_goes_on_captured, finish

from rotationout import cli
from rotationout.experiments import results, streamed, sweep
from rotationout.experiments.images.config import ImagesConfig
from rotationout.experiments.images.crops import draw_boxes, resample
from rotationout.experiments.images.files import open_split
from rotationout.experiments.images.training import ImageClassification, load_image_data
from rotationout.experiments.resnet import residual_blocks
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_set(tmp_path_factory.mktemp("made"), train=4, val=3)


def config(row: str, **changes: Any) -> ImagesConfig:
    """A batch is an epoch, and its loss is known."""
    (found,) = (found for found in TABLES["imagewoof"]() if found.row == row)
    return found.replace(**{**SMALL, "batch": 8, "steps": 3, "milestones": (2,), "learning_rate": 0.001, **changes})


def run(settings: ImagesConfig, data: Path) -> ImageClassification:
    return ImageClassification(settings, load_image_data(settings, data, GPU), GPU)


def test_crops_are_those_of_a_cpu_also_in_a_graph() -> None:
    pixels = torch.randint(256, (16, 3, 44, 60), dtype=torch.uint8)
    first, second = (draw_boxes(torch.tensor([[44, 60]] * 16), torch.Generator().manual_seed(k)) for k in (0, 1))
    boxes, there, out = first.cuda(), pixels.cuda(), torch.zeros(16, 3, 32, 32, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        out.copy_(resample(there, boxes, 32))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out.copy_(resample(there, boxes, 32))
    boxes.copy_(second)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out.cpu(), resample(pixels, second, 32), rtol=0, atol=2e-2)


@pytest.mark.parametrize("held", [True, False])
def test_captured_steps_are_those_done_one_by_one(held: bool, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, plain = assert_captured_as_plain(lambda: run(config("none", held=held), made), monkeypatch)
    for name, curve in plain.curves.items():
        assert captured.curves[name] == pytest.approx(curve, abs=1.01 / 6)  # one image of six


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, made: Path, tmp_path: Path) -> None:
    resumed = assert_goes_on_captured(lambda: run(config(row, precision="bf16"), made), tmp_path)
    assert resumed.facts["images_per_second"] > 0


def test_a_compiled_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its blocks the last, which has noise: each takes its time."""
    compiled = run(config("rotation block", precision="bf16", steps=2), made)
    monkeypatch.setattr(compiled, "regions", lambda: residual_blocks(compiled.network)[-1:])
    compiled.compile()
    finish(compiled)
    assert compiled.compiled
    assert all(0 < loss < 10 for loss in compiled.losses)


def test_bad_images_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by another process, while steps are captured."""
    monkeypatch.setattr(streamed, "workers", lambda: 1)
    root = data_set(tmp_path / "data", train=12, val=2)
    spoil(root / "train" / "n0" / "03.JPEG", "damaged image")
    settings = config("cutout", held=False)
    assert sweep.sweep([settings], maker(root, GPU), folder=tmp_path, checkpoints=tmp_path / "c") == []
    (record,) = results.read_records(tmp_path, "imagewoof")
    assert sum(record["skipped"]["train"].values()) == 1  # some Pillows say that it is damaged, some that it is none


def test_runs_side_by_side_are_what_they_are_alone(made: Path) -> None:
    """On the images they share."""
    data = load_image_data(config("rotation block"), made, GPU)
    assert_beside_as_alone(lambda seed: ImageClassification(config("rotation block", seed=seed), data, GPU))


def test_the_command_on_packed_images(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", str(made), "packed"]) == 0
    assert len(open_split("packed", "train")) == 8
    options = ["--size", "72", "--short-side", "72", "--batch", "8", "--steps", "2"]
    tiny = str(TINY).replace("'", '"')
    assert cli.main(["train", "imagewoof", "--data", "packed", *options, "--network-options", tiny]) == 0
    assert len(list(Path("results").rglob("*.json"))) == 1
