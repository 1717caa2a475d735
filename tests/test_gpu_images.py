"""On a GPU: crops, and runs of Table 2 captured in CUDA graphs, from images that are held and from a disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests.test_images_data import data_set, spoil
from tests.test_images_training import ROWS, SMALL, TINY

from rotationout import cli
from rotationout.experiments import results, sweep
from rotationout.experiments.images import loaded
from rotationout.experiments.images.config import ImagesConfig
from rotationout.experiments.images.crops import draw_boxes, resample
from rotationout.experiments.images.files import open_split
from rotationout.experiments.images.training import ImageClassification, load_pictures
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "workers", lambda: 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_set(tmp_path_factory.mktemp("made"), train=12, val=5)


def config(row: str, **changes: Any) -> ImagesConfig:
    (found,) = (found for found in TABLES["imagewoof"]() if found.row == row)
    return found.replace(**{**SMALL, "batch": 8, "steps": 8, "milestones": (6,), "learning_rate": 0.003, **changes})


def run(settings: ImagesConfig, data: Path, device: torch.device = GPU) -> ImageClassification:
    return ImageClassification(settings, load_pictures(settings, data, device), device)


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
def test_a_captured_run_is_that_of_a_cpu(held: bool, made: Path) -> None:
    """Without noise, which is another one on a GPU."""
    settings = config("none", held=held)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        runs = [run(settings, made, device) for device in (CPU, GPU)]
        for one in runs:
            while not one.finished:
                one.advance()
    assert len(runs[0].losses) == 3
    torch.testing.assert_close(runs[1].losses, runs[0].losses, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, made: Path, tmp_path: Path) -> None:
    settings = config(row, precision="bf16")
    first, second = run(settings, made), run(settings, made)
    for _ in range(4):
        first.advance()
    results.save_checkpoint(tmp_path / "run.pt", settings, first.state(), {})
    second.restore(results.load_checkpoint(tmp_path / "run.pt", settings)[0])
    for one in (first, second):
        while not one.finished:
            one.advance()
    torch.testing.assert_close(second.losses, first.losses, rtol=0.1, atol=0.1)
    assert second.facts["images_per_second"] > 0


@pytest.mark.parametrize("row", ["rotation", "rotation block", "dropblock keep 0.9", "droppath keep 0.9"])
def test_compiled_runs(row: str, made: Path) -> None:
    settings = config(row, precision="bf16", steps=3)
    one = run(settings, made)
    one.compile()
    while not one.finished:
        one.advance()
    assert one.compiled
    assert one.losses[-1] > 0


def test_bad_images_on_the_way(made: Path, tmp_path: Path) -> None:
    root = data_set(tmp_path / "data")
    spoil(root / "train" / "n0" / "03.JPEG", "damaged image")
    settings = config("cutout", held=False, steps=6)
    assert sweep.sweep([settings], maker(root, GPU), folder=tmp_path, checkpoints=tmp_path / "c") == []
    (record,) = results.read_records(tmp_path, "imagewoof")
    assert record["skipped"] == {"train": {"damaged image": 1}}


def test_runs_side_by_side(made: Path, tmp_path: Path) -> None:
    rows = [config(row, seed=seed) for row in ("none", "rotation block") for seed in (0, 1)]
    for together in (1, 4):
        places = {"folder": tmp_path / str(together), "checkpoints": tmp_path / "c"}
        sweep.sweep(rows, maker(made, GPU), **places, together=together)
    alone, beside = (results.read_records(tmp_path / str(n), "imagewoof") for n in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=5e-2, atol=5e-2)


def test_the_command_on_packed_images(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", str(made), "packed"]) == 0
    assert len(open_split("packed", "train")) == 24
    options = ["--size", "72", "--short-side", "72", "--batch", "8", "--steps", "4"]
    tiny = str(TINY).replace("'", '"')
    assert cli.main(["train", "imagewoof", "--data", "packed", *options, "--network-options", tiny]) == 0
    assert len(list(Path("results").rglob("*.json"))) == 1
