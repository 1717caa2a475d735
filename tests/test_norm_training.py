"""CrossNorm, PolyBatchNorm and GhostBatchNorm under torch.compile and in data-parallel processes."""

import copy
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from tests.launching import in_group
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from rotationout.nn import norm

LAYERS = [
    norm.CrossNorm2d(4, ghost_batch=5, momentum=None),
    norm.GhostBatchNorm2d(4, ghost_batch=4),
    norm.PolyBatchNorm2d(4, batch_size=8),
]


@pytest.mark.parametrize("layer", LAYERS, ids=["cross", "ghost", "poly"])
def test_compiled_layers_equal_eager_ones(layer: nn.Module) -> None:
    torch._dynamo.reset()
    counters.clear()
    eager, twin = copy.deepcopy(layer), copy.deepcopy(layer)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x = torch.randn(11, 4, 3, 3, requires_grad=True)
        ours, expected = compiled(x), eager(x)
        torch.testing.assert_close(ours, expected)
        gradients = [torch.autograd.grad(y.square().sum() + y.sum(), x)[0] for y in (ours, expected)]
        torch.testing.assert_close(*gradients)
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(twin.state_dict(), eager.state_dict())
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x))


def run_process(rank: int, folder: str) -> None:
    in_group(lambda: _learn(rank, folder), init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)


def _learn(rank: int, folder: str) -> None:
    torch.manual_seed(0)
    layers = [norm.CrossNorm1d(6), norm.GhostBatchNorm1d(6, ghost_batch=5), norm.PolyBatchNorm1d(6, batch_size=8)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(10, 4)).square().mean().backward()
        optimizer.step()
    torch.save(model.module.state_dict(), f"{folder}/{rank}.pt")


def test_data_parallel_processes_agree_on_the_weights(tmp_path: Path) -> None:
    mp.spawn(run_process, args=(str(tmp_path),), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in one:
        assert torch.equal(one[name], two[name]) == (not name.endswith(("running_mean", "running_var"))), name
