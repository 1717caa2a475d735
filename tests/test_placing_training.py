"""A model with inserted noise in everything that training does to models."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.launching import in_group, torchrun
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

import rotationout as ro


class Network(nn.Module):
    """Maps and vectors; optionally the stage is computed again in backward."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.layer1(x).mean((2, 3)))
        return self.head(checkpoint(self.layer1, x, use_reentrant=self.reentrant).mean((2, 3)))


def noisy(model: nn.Module | None = None, **choices: Any) -> nn.Module:
    model = Network() if model is None else model
    ro.insert(model, ro.RotationOut2d(0.5, **choices), before=nn.Conv2d)
    ro.insert(model, ro.RotationOut(0.5), before=nn.Linear)
    return model


def batch(rows: int = 4) -> Tensor:
    return torch.randn(rows, 3, 9, 9, generator=torch.Generator().manual_seed(4))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    loss = model(x).square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_draws_the_same_noise_again(reentrant: bool) -> None:
    model = noisy()
    again = copy.deepcopy(model)
    again.reentrant = reentrant
    x = batch().requires_grad_()
    expected = gradients(model, x)
    torch.manual_seed(7)
    again(x).square().mean().backward()
    for ours, theirs in zip(again.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs)


def test_gradient_accumulation_is_the_sum_over_parts() -> None:
    model = noisy()
    torch.manual_seed(7)
    parts = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for x in batch().split(2)]
    torch.manual_seed(7)
    for x in batch().split(2):
        model(x).square().sum().backward()
    for weight, *both in zip(model.parameters(), *parts, strict=True):
        torch.testing.assert_close(weight.grad, both[0] + both[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_a_gradient_scaler(dtype: torch.dtype) -> None:
    model = noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    before = [weight.detach().clone() for weight in model.parameters()]
    with torch.autocast("cpu", dtype):
        loss = model(batch()).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 256.0, "nothing overflowed"
    assert all(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True) if a.ndim > 1)


def test_averaged_models() -> None:
    """EMA and SWA: parameters are averaged, eval outputs have no noise, and update_bn runs."""
    model = noisy()
    for average in (
        AveragedModel(model),
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(batch()).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
        update_bn([batch()], average)
        average.eval()
        plain = copy.deepcopy(average)
        assert len(ro.remove(plain)) == 4
        assert torch.equal(average(batch()), plain(batch()))
        average.train()
        assert not torch.equal(average(batch()), average(batch()))


def test_torch_compile_of_the_whole_model_follows_a_schedule() -> None:
    """What is traced, by the backend that is quickly done; below by the one that generates code."""
    torch._dynamo.reset()
    counters.clear()
    model = noisy()
    schedule = ro.Schedule.ramp(model, steps=4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(5):
        compiled(batch()).square().mean().backward()
        schedule.step()
    assert counters["stats"]["unique_graphs"] == 1, "a ramp must not recompile"
    assert all(weight.grad is not None for weight in model.parameters())
    assert not torch.equal(compiled(batch()), compiled(batch()))
    model.eval()
    torch.testing.assert_close(compiled(batch()), model(batch()))
    with ro.sampling(compiled), torch.no_grad():
        assert not torch.equal(compiled(batch()), compiled(batch()))
    torch.testing.assert_close(compiled(batch()), model(batch()))


def test_torch_compile_generates_code_for_inserted_noise() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    ro.insert(model, ro.RotationOut(0.5), before=nn.Linear)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(4, 8)
    y = compiled(x)
    y.square().mean().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not torch.equal(compiled(x), y)


def test_torch_export_of_the_eval_model() -> None:
    model = noisy().eval()
    exported = torch.export.export(model, (batch(),))
    torch.testing.assert_close(exported.module()(batch()), model(batch()))
    assert not any("rand" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.filterwarnings("ignore")
def test_onnx_export_of_the_eval_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    model = noisy().eval()
    torch.onnx.export(model, (batch(),), tmp_path / "model.onnx", dynamo=True, verbose=False)
    graph = onnx.load(tmp_path / "model.onnx")
    (output,) = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: batch().numpy()})
    torch.testing.assert_close(torch.from_numpy(output), model(batch()), rtol=1e-4, atol=1e-5)


def test_functional_call_and_per_example_gradients() -> None:
    model = noisy(center=None).train()
    model.layer1[1].eval()  # BatchNorm would couple the examples
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, x[None]).square().mean()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")(weights, batch())
    assert each["layer1.0.weight"].shape == (4, 8, 3, 3, 3)


SHARED = {"pairing_per": "batch", "angle_per": "batch", "pairing": "permutation", "side": "symmetric"}


def parallel_model(sync: bool) -> nn.Module:
    """Draws that do not depend on how the batch is split; no BatchNorm, whose statistics would."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(6 * 25, 2))
    ro.insert(model, ro.RotationOut2d(0.5, sync=sync, **SHARED), before=nn.Conv2d)
    ro.insert(model, ro.RotationOut(0.5, center="batch", sync=sync, **SHARED), before=nn.Linear)
    return model


def worker(folder: str) -> None:
    """What torchrun starts."""
    in_group(lambda: learn_from_half(folder))


def learn_from_half(folder: str) -> None:
    """Half of the batch, seeded like the other half for this test (see the docstring below)."""
    model = DistributedDataParallel(parallel_model(sync=True))
    half = batch().split(2)[dist.get_rank()]
    torch.manual_seed(7)  # the same draw on all ranks; 7 + rank in a real run, for noise of their own
    model(half).square().mean().backward()
    if dist.get_rank() == 0:
        torch.save([weight.grad for weight in model.parameters()], Path(folder) / "gradients.pt")
    schedule = ro.Schedule.ramp(model, steps=2)
    model(half).square().mean().backward()  # once more, with buffers that have changed
    assert schedule.noises[0].p == 0.25


def test_data_parallel_gradients_equal_those_of_one_process(tmp_path: Path) -> None:
    """DDP on two processes started by torchrun, with synchronised centring and one draw, against the whole batch."""
    script = tmp_path / "run.py"
    script.write_text(f"import sys\nfrom tests.{__name__.rpartition('.')[2]} import worker\nworker(sys.argv[1])\n")
    torchrun(str(script), str(tmp_path))
    ours = torch.load(tmp_path / "gradients.pt", weights_only=True)
    expected = gradients(parallel_model(sync=False), batch())
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_running_mean_is_not_inserted_behind_the_back_of_data_parallel(tmp_path: Path) -> None:
    def wrapped_first() -> None:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
        with pytest.raises(ValueError, match=r"running mean of RotationOut at 'module\.0': insert first, then wrap"):
            ro.insert(model, ro.RotationOut(0.5, center="running", num_features=4), after=nn.Linear)
        assert len(ro.insert(model, ro.RotationOut(0.5), after=nn.Linear)) == 1

    in_group(wrapped_first, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
