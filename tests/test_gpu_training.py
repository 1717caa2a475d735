"""On a GPU: runs captured in CUDA graphs learn, resume, and leave their neighbours alone, also compiled and shared."""

import gc
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.cifar_images import images
from tests.test_snapshot import odd_tensors
from tests.test_torchrun import arguments, launch, records
from tests.test_torchrun import data as data  # a fixture
from tests.test_training import TABLE, Make, config, make
from tests.training_runs import carry_over, finish

from rotationout import cli
from rotationout.experiments import graphs, networks, results, sweep
from rotationout.experiments.cifar import Images
from rotationout.experiments.classification import ClassificationConfig
from rotationout.experiments.snapshot import snapshot
from rotationout.recipes import TABLES, cifar100

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NOISES = ["none", "dropout keep 0.6", "rotation default sigma 0.816", "rotation authors sigma 0.816"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 1))


def on_gpu(count: int, seed: int = 0) -> Images:
    return images(count, seed).to("cuda")


def two_classes() -> Images:
    """Dark and bright images."""
    labels = torch.arange(64) % 2
    pixels = (labels * 200).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    return Images(pixels, labels).to("cuda")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", NOISES)
def test_a_captured_run_learns(row: str, precision: str, compiled: bool) -> None:
    if compiled and (precision == "fp32" or row == "none"):
        pytest.skip("compiling takes its time; the others do")
    data = two_classes()
    run = make(data, data)(config(row, steps=24, milestones=(), precision=precision, ramp=0, kernels="torch"))
    if compiled:
        run.compile()
    assert run.step == 0
    finish(run)
    assert run.losses[0] > 1.5
    assert run.losses[-1] < 0.3
    assert run.result["best_top1"] == 100


def test_a_scale_that_is_too_large_skips_steps_and_is_halved(tmp_path: Path) -> None:
    """In fp16, inside a captured graph; and a checkpoint has the scale."""
    data = two_classes()
    settings = config("none", steps=8, milestones=(), precision="fp16", ramp=0)
    run = make(data, data)(settings)
    run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 2.0**40})
    before = {name: value.detach().clone() for name, value in run.network.named_parameters()}
    run.advance()
    torch.cuda.synchronize()  # runs have streams of their own
    assert run.scaler.get_scale() == 2.0**39
    assert all(torch.equal(value, before[name]) for name, value in run.network.named_parameters())
    results.save_checkpoint(tmp_path / "run.pt", settings, run.state(), {})
    resumed = make(data, data)(settings)
    resumed.restore(results.load_checkpoint(tmp_path / "run.pt", settings)[0])
    resumed.advance()
    torch.cuda.synchronize()
    assert resumed.scaler.get_scale() == 2.0**38


def test_processes_share_a_captured_run(data: Path) -> None:
    """Under torchrun, as many as there are GPUs: with one the exchanges are in the graph all the same."""
    launch(data, torch.cuda.device_count(), "cuda")
    assert cli.main([*arguments(data, "alone"), "--device", "cuda"]) == 0
    shared, alone = records(data / "shared"), records(data / "alone")
    assert [record["processes"] for record in shared] == [torch.cuda.device_count()] * 2
    assert shared[0]["train_loss"] == pytest.approx(alone[0]["train_loss"], rel=1e-3)
    assert shared[1]["train_loss"] == pytest.approx(alone[1]["train_loss"], rel=0.05)


@pytest.mark.parametrize("row", NOISES)
def test_a_resumed_run_goes_on_with_the_same_numbers(row: str, tmp_path: Path) -> None:
    new = make(on_gpu(64), on_gpu(20, seed=1))
    settings = config(row, ramp=5 if row.startswith("rotation") else 0)
    assert_goes_on(new, settings, tmp_path)


def test_a_resumed_transformer_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    """With AdamW, which is captured, too."""
    found = {row.row: row for row in cifar100.vit_rows()}["rotation plane sigma 0.500"]
    settings = found.replace(steps=7, batch=16, subset=0, warmup=3, milestones=(5,), network_options={"width": 12})
    assert_goes_on(make(on_gpu(64), on_gpu(20, seed=1)), settings, tmp_path)


def assert_goes_on(new: Make, settings: ClassificationConfig, tmp_path: Path) -> None:
    whole, first, second = (new(settings) for _ in range(3))
    for _ in range(5):
        first.advance()
    carry_over(first, second, tmp_path)
    finish(whole, second)
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


def _add_one(x: torch.Tensor) -> None:
    x.add_(1)


def test_garbage_is_left_alone_while_a_graph_is_captured() -> None:
    """That of a run which has ended: its graphs hang in a cycle."""
    stream, x = torch.cuda.Stream(), torch.zeros(1000, device="cuda")

    class Ended:
        def __init__(self) -> None:
            self.itself = self
            self.action = graphs.Action(lambda: _add_one(x))
            self.action.capture(stream)

    running = [Ended()]
    ended = weakref.ref(running[0])
    left: list[bool] = []

    def work() -> None:
        if torch.cuda.is_current_stream_capturing():
            running.clear()
            kept: list[list[int]] = [[] for _ in range(200_000)]  # python looks for garbage long before so many
            left.append(len(kept) > 0 and ended() is not None)
        _add_one(x)

    action = graphs.Action(work)
    action.capture(stream)
    assert left == [True]
    assert gc.isenabled()
    gc.collect()
    assert ended() is None
    action()
    torch.cuda.synchronize()
    assert bool((x == 1).all())


def test_every_row_can_be_captured(tmp_path: Path) -> None:
    data = make(on_gpu(32), on_gpu(20))
    rows = [row.replace(steps=2, batch=16, ramp=min(row.ramp, 1)) for row in TABLES[TABLE]()]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", together=4) == []


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_ghost_batches_can_be_captured_and_are_what_they_are_alone(precision: str, tmp_path: Path) -> None:
    """Every norm, side by side and alone, with the studies of its record."""
    data = make(on_gpu(64), on_gpu(20, seed=1))
    small = {"steps": 6, "batch": 32, "milestones": (), "precision": precision}
    rows = [row.replace(**small) for row in TABLES["cifar100_ghost"]()]
    rows.append(rows[1].replace(row="PolyBatchNorm of 8", norm="poly"))
    for together in (1, 5):
        sweep.sweep(rows, data, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), "cifar100_ghost") for n in (1, 5))
    assert len(alone) == len(beside) == 10
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=1e-2, atol=1e-2)
        assert "failed" not in one.get("test_modes", {}), one["test_modes"]


def test_shift_rows_are_captured_and_studied(tmp_path: Path) -> None:
    data = make(on_gpu(64), on_gpu(20, seed=1))
    rows = [row.replace(steps=4, batch=32, milestones=()) for row in TABLES["cifar100_resnet110_shift"]()]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", together=3) == []
    for record in results.read_records(tmp_path, "cifar100_resnet110_shift"):
        assert "top1" in record["variance_shift"]["states"]["recalibrated"], record["variance_shift"]
        assert record["coadaptation"]["value"][0] > 0


def test_a_snapshot_of_a_gpu_is_on_the_cpu() -> None:
    tensors = odd_tensors("cuda")
    kept = snapshot({"there": tensors, "here": torch.ones(2)})
    assert all(copied.device.type == "cpu" for copied in kept["there"])
    for tensor, copied in zip(tensors, kept["there"], strict=True):
        assert torch.equal(copied, tensor.cpu())
