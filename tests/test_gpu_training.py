"""On a GPU: a run captured in CUDA graphs learns, resumes, and does not disturb its neighbours."""

from pathlib import Path

import pytest
import torch
from tests.test_cifar import images
from tests.test_training import TABLE, config, make

from rotationout.experiments import networks, results, sweep
from rotationout.experiments.cifar import Images
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NOISES = ["none", "dropout keep 0.6", "rotation default sigma 0.816", "rotation authors sigma 0.816"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "resnet110", lambda **options: networks.ResNet(1, **options))


def on_gpu(count: int, seed: int = 0) -> Images:
    return images(count, seed).to("cuda")


@pytest.mark.parametrize("row", NOISES)
def test_a_captured_run_learns(row: str) -> None:
    labels = torch.arange(64) % 2
    pixels = (labels * 200).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    data = Images(pixels, labels).to("cuda")
    run = make(data, data)(config(row, steps=24, milestones=(), precision="bf16", ramp=0))
    assert run.step == 0
    while not run.finished:
        run.advance()
    assert run.losses[0] > 1.5
    assert run.losses[-1] < 0.3
    assert run.result["best_top1"] == 100


@pytest.mark.parametrize("row", NOISES)
def test_a_resumed_run_goes_on_with_the_same_numbers(row: str, tmp_path: Path) -> None:
    new = make(on_gpu(64), on_gpu(20, seed=1))
    settings = config(row, ramp=5 if row.startswith("rotation") else 0)
    whole, first = new(settings), new(settings)
    while not whole.finished:
        whole.advance()
    for _ in range(5):
        first.advance()
    path = tmp_path / "run.pt"
    results.save_checkpoint(path, settings, first.state(), {})
    second = new(settings)
    second.restore(results.load_checkpoint(path, settings)[0])
    while not second.finished:
        second.advance()
    torch.testing.assert_close(second.losses, whole.losses, rtol=1e-2, atol=1e-2)  # cuDNN adds in any order


def test_runs_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    data = make(on_gpu(64), on_gpu(20, seed=1))
    rows = [config(row, seed=seed, ramp=0) for row in NOISES for seed in (0, 1)]
    for together in (1, 4):
        sweep.sweep(rows, data, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), TABLE) for n in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=1e-2, atol=1e-2)
        assert one["device"] == torch.cuda.get_device_name()


def test_every_row_can_be_captured(tmp_path: Path) -> None:
    data = make(on_gpu(32), on_gpu(20))
    rows = [row.replace(steps=2, batch=16, ramp=min(row.ramp, 1)) for row in TABLES[TABLE]()]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", together=4) == []
