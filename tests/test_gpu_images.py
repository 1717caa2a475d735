"""On a GPU: crops, and runs of Table 2 captured in CUDA graphs, from images that are held and from a disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests.test_images_data import data_set, spoil
from tests.test_images_training import ROWS, SMALL, TINY

from rotationout import cli
from rotationout.experiments import results, streamed, sweep
from rotationout.experiments.images.config import ImagesConfig
from rotationout.experiments.images.crops import draw_boxes, resample
from rotationout.experiments.images.files import open_split
from rotationout.experiments.images.training import ImageClassification, load_pictures
from rotationout.experiments.resnet import residual_blocks
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _as_exact_as_can_be(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Algorithms that do not change, in full fp32; and images are read in this process."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_set(tmp_path_factory.mktemp("made"), train=4, val=3)


def config(row: str, **changes: Any) -> ImagesConfig:
    """A batch is an epoch, and its loss is known."""
    (found,) = (found for found in TABLES["imagewoof"]() if found.row == row)
    return found.replace(**{**SMALL, "batch": 8, "steps": 3, "milestones": (2,), "learning_rate": 0.001, **changes})


def run(settings: ImagesConfig, data: Path) -> ImageClassification:
    return ImageClassification(settings, load_pictures(settings, data, GPU), GPU)


def finish(*runs: ImageClassification) -> None:
    for one in runs:
        while not one.finished:
            one.advance()


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
    """Without noise. Rounding is all that is between them; ten times what it has grown to after the last update.

    Were an update left out, or a batch met twice, it would be ten times as much again.
    """
    captured, plain = (run(config("none", held=held), made) for _ in range(2))
    monkeypatch.setattr(plain, "captured", False)
    finish(captured, plain)
    assert (captured._graphs.captured, plain._graphs.captured) == (True, False)
    torch.testing.assert_close(captured.losses[0], plain.losses[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(captured.losses, plain.losses, rtol=3e-3, atol=0)
    assert len({round(loss, 2) for loss in plain.losses}) == 3, "no batch is like another"
    for name, curve in plain.curves.items():
        assert captured.curves[name] == pytest.approx(curve, abs=1.01 / 6)  # one image of six


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, made: Path, tmp_path: Path) -> None:
    """The step after a checkpoint is the same: so are weights, random numbers, crops and the learning rate."""
    settings = config(row, precision="bf16")
    first, second = run(settings, made), run(settings, made)
    for _ in range(2):
        first.advance()
    results.save_checkpoint(tmp_path / "run.pt", settings, first.state(), {})
    second.restore(results.load_checkpoint(tmp_path / "run.pt", settings)[0])
    finish(first, second)
    torch.testing.assert_close(second.losses, first.losses, rtol=1e-3, atol=0)
    assert second.facts["images_per_second"] > 0


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
    """Two seeds of a noise, on the images they share, step by step in turn."""
    settings = [config("rotation block", seed=seed) for seed in (0, 1)]
    data = load_pictures(settings[0], made, GPU)
    alone, beside = ([ImageClassification(one, data, GPU) for one in settings] for _ in range(2))
    finish(*alone)
    for _ in range(3):
        for one in beside:
            one.advance()
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one.losses, other.losses, rtol=3e-3, atol=0)
    assert alone[0].losses != alone[1].losses


def test_the_command_on_packed_images(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", str(made), "packed"]) == 0
    assert len(open_split("packed", "train")) == 8
    options = ["--size", "72", "--short-side", "72", "--batch", "8", "--steps", "2"]
    tiny = str(TINY).replace("'", '"')
    assert cli.main(["train", "imagewoof", "--data", "packed", *options, "--network-options", tiny]) == 0
    assert len(list(Path("results").rglob("*.json"))) == 1
