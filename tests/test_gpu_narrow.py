"""On a GPU: runs with kernels for few channels, captured in CUDA graphs, learn what runs with torch's own learn."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.narrow_maps import Counted
from tests.test_gpu_training import NOISES, on_gpu, two_classes
from tests.test_gpu_training import _small as _small  # a fixture: one block a stage
from tests.test_training import TABLE, config, make

from rotationout.experiments import networks, results, sweep
from rotationout.experiments.narrow import batchnorm, conditions, handing, layers
from rotationout.experiments.narrow.batchnorm import Normalisation
from rotationout.experiments.narrow.convolution import Convolution, Fork
from rotationout.experiments.narrow.convolving import TrainingNorm, convolve
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def exact() -> object:
    """Fp32 in cuDNN too, which else rounds to TF32."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("authors", [True, False], ids=["projections", "padding"])
@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-3), ("bf16", 5e-2), ("fp16", 2e-2)])
def test_steps_are_torchs(precision: str, close: float, authors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a stage, captured: losses, weights and statistics after some steps, and kernels that were used."""
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 2))
    new = make(on_gpu(64), on_gpu(20, seed=1))
    settings = config(
        "none", precision=precision, learning_rate=0.01, ramp=0, network_options={"authors": authors}, batch=32
    )
    runs = [new(settings.replace(kernels=kernels)) for kernels in ("torch", "fused")]
    used = {"Convolution": 0, "Fork": 0, "Normalisation": 0}
    for function in (Convolution, Fork, Normalisation):

        def counted(*args: object, name: str = function.__name__, apply: object = function.apply) -> object:
            used[name] += 1
            return apply(*args)  # type: ignore[operator]

        monkeypatch.setattr(function, "apply", counted)
    for run in runs:
        assert not any(used.values())
        while not run.finished:
            run.advance()
        torch.cuda.synchronize()
    assert all(used.values())
    theirs, mine = runs
    torch.testing.assert_close(mine.losses, theirs.losses, rtol=close, atol=close)
    expected = theirs.network.state_dict()
    assert mine.network.state_dict().keys() == expected.keys()
    for name, value in mine.network.state_dict().items():
        if value.is_floating_point():
            scale = expected[name].abs().max().clamp(min=0.1)
            assert (value - expected[name]).abs().max() <= close * scale, name
        else:
            assert torch.equal(value, expected[name]), name
    assert mine.network.stages[0].bn1.num_batches_tracked == mine.step


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-3), ("bf16", 5e-2)])
@pytest.mark.parametrize(
    ("module", "switch", "spared"),
    [
        (handing, "HANDED", "sums_kernel"),
        (conditions, "SUMMED", "moments_kernel"),
        (conditions, "STRIDES", "moments_kernel"),
    ],
)
def test_what_launches_do_for_others_changes_little(
    module: ModuleType, switch: str, spared: str, precision: str, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In captured steps, where gradients come from threads of autograd: and few are taken a second time."""
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 2))
    new = make(on_gpu(64), on_gpu(20, seed=1))
    settings = config("none", precision=precision, learning_rate=0.01, ramp=0, batch=32, kernels="fused")
    launches, losses = [], []
    for on in (True, False):
        kernel = Counted(getattr(batchnorm, spared))
        with monkeypatch.context() as patch:
            patch.setattr(module, switch, on)
            patch.setattr(batchnorm, spared, kernel)
            run = new(settings)
            while not run.finished:
                run.advance()
        launches.append(kernel.launches)
        losses.append(run.losses)
    assert launches[0] < launches[1]
    torch.testing.assert_close(*losses, rtol=close, atol=close)


def test_statistics_that_the_last_program_finishes_are_whole() -> None:
    """Side by side, and again and again: whichever program is the last, the bits are the same."""
    works = []
    for channels, size in ((16, 32), (32, 16), (64, 8), (16, 32)):
        x = (
            torch.randn(128, channels, size, size, device="cuda")
            .bfloat16()
            .contiguous(memory_format=torch.channels_last)
        )
        weight = torch.randn(channels, channels, 3, 3, device="cuda")
        kept = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
        counts = (torch.zeros((), dtype=dtype, device="cuda") for dtype in (torch.int64, torch.int32))
        works.append((torch.cuda.Stream(), x, weight, TrainingNorm(*kept, *counts, 1e-5, 0.0)))
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[] for _ in works]
    for _ in range(100):
        for (stream, x, weight, training_norm), statistics in zip(works, found, strict=True):
            with torch.cuda.stream(stream):
                y, saved = convolve(x, weight, mirrored=False, training_norm=training_norm)
                statistics.append(saved)
    torch.cuda.synchronize()
    for (_, x, weight, training_norm), statistics in zip(works, found, strict=True):
        assert all(torch.equal(saved, statistics[0]) for saved in statistics)
        y, _ = convolve(x, weight, mirrored=False)
        var, mean = torch.var_mean(y.double(), (0, 2, 3), correction=0)
        torch.testing.assert_close(
            statistics[0].double(), torch.stack([mean, (var + 1e-5).rsqrt()]), rtol=1e-4, atol=1e-4
        )
        assert training_norm.counter == 0
        assert training_norm.batches == 100


def test_a_layer_may_be_new_when_it_is_captured() -> None:
    """Its statistics are whole in the graph, and in what is done before that is replayed."""
    norm, other = (torch.nn.BatchNorm2d(16).cuda() for _ in range(2))
    conv = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False).cuda()
    x = torch.randn(8, 16, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)

    def statistics(norm: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            found = layers.convolve(conv, x, norm=norm)[1]
        assert found is not None
        return found

    expected = statistics(other).clone()  # kernels are compiled
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = statistics(norm)
    torch.testing.assert_close(statistics(norm), expected, rtol=1e-4, atol=1e-4)
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=1e-4, atol=1e-4)  # about another running mean
    assert norm.num_batches_tracked == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", NOISES)
def test_a_captured_run_learns(row: str, precision: str) -> None:
    data = two_classes()
    run = make(data, data)(config(row, steps=24, milestones=(), precision=precision, ramp=0, kernels="fused"))
    while not run.finished:
        run.advance()
    assert run.losses[-1] < 0.3
    assert run.result["best_top1"] == 100


def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    new = make(on_gpu(64), on_gpu(20, seed=1))
    settings = config("rotation default sigma 0.816", kernels="fused", precision="bf16")
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


def test_a_scale_that_is_too_large_skips_steps() -> None:
    """In fp16: what overflows in a kernel must be seen as such."""
    data = two_classes()
    run = make(data, data)(config("none", steps=8, milestones=(), precision="fp16", ramp=0, kernels="fused"))
    run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 2.0**40})
    before = {name: value.detach().clone() for name, value in run.network.named_parameters()}
    run.advance()
    torch.cuda.synchronize()  # runs have streams of their own
    assert run.scaler.get_scale() == 2.0**39
    assert all(torch.equal(value, before[name]) for name, value in run.network.named_parameters())


def test_every_row_can_be_captured_and_studied(tmp_path: Path) -> None:
    data = make(on_gpu(32), on_gpu(20))
    small = {"steps": 2, "batch": 16, "kernels": "fused"}
    rows = [row.replace(**small, ramp=min(row.ramp, 1)) for row in TABLES[TABLE]()]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", together=4) == []
    records = results.read_records(tmp_path, TABLE)
    assert len(records) == len(rows)
    for record in records:
        assert record["config"]["kernels"] == "fused"
        for study in ("variance_shift", "coadaptation"):
            assert "failed" not in record[study], record[study]


def test_other_norms_are_left_as_they_are(tmp_path: Path) -> None:
    data = make(on_gpu(64), on_gpu(20, seed=1))
    small = {"steps": 4, "batch": 32, "milestones": (), "kernels": "fused"}
    rows = [row.replace(**small) for row in TABLES["cifar100_ghost"]()]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", together=3) == []
    for record in results.read_records(tmp_path, "cifar100_ghost"):
        assert "failed" not in record.get("test_modes", {}), record["test_modes"]


def test_runs_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    data = make(on_gpu(64), on_gpu(20, seed=1))
    rows = [config(row, seed=seed, ramp=0, kernels="fused") for row in NOISES for seed in (0, 1)]
    for together in (1, 4):
        sweep.sweep(rows, data, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), TABLE) for n in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=1e-2, atol=1e-2)
