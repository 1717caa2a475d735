"""Data-parallel processes: a batch mean over all of them is that of one process with the whole batch; DDP trains."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from tests.launching import in_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import rotationout as ro


def forward_and_gradient(x: Tensor, weight: Tensor, *, sync: bool) -> tuple[Tensor, Tensor, Tensor]:
    """One P and one angle for the batch, so that the draw does not depend on how the batch is split."""
    choices = {"pairing": "permutation", "pairing_per": "batch", "angle_per": "batch", "sync": sync}
    centred = ro.RotationOut(0.5, center="batch", **choices)
    running = ro.RotationOut(0.5, center="running", num_features=x.size(-1), momentum=1.0, **choices)
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = centred(x)
    (gradient,) = torch.autograd.grad((y.square() * weight).sum(), x)
    running(x)
    assert running.running_mean is not None
    return y.detach(), gradient, running.running_mean


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 8, generator=generator)


def run(rank: int, folder: str) -> None:
    in_group(lambda: _run(rank, folder), init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)


def _run(rank: int, folder: str) -> None:
    x, weight = (t[:2] if rank == 0 else t[2:] for t in batch())  # ranks of unequal size
    torch.save(forward_and_gradient(x, weight, sync=True), f"{folder}/{rank}.pt")
    # A process without examples must not leave the other one waiting.
    x, weight = (t[:6] if rank == 0 else t[:0] for t in batch())
    torch.save(forward_and_gradient(x, weight, sync=True), f"{folder}/{rank}_uneven.pt")


def test_synchronised_centring_equals_one_process(tmp_path: Path) -> None:
    expected = forward_and_gradient(*batch(), sync=False)
    mp.spawn(run, args=(str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(torch.cat([parts[0][0], parts[1][0]]), expected[0])
    torch.testing.assert_close(torch.cat([parts[0][1], parts[1][1]]), expected[1])
    for part in parts:
        torch.testing.assert_close(part[2], expected[2])
    alone = torch.load(tmp_path / "0_uneven.pt", weights_only=True)
    for ours, theirs in zip(alone, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def drop(rank: int, folder: str) -> None:
    in_group(lambda: _drop(rank, folder), init_method=f"file://{folder}/drop", rank=rank, world_size=2)


def _drop(rank: int, folder: str) -> None:
    x = batch()[0][:2] if rank == 0 else batch()[0][2:]
    torch.save(ro.nn.CentredDropout(0.5, sync=True)(x), f"{folder}/dropped_{rank}.pt")
    turned = ro.RotationOut(0.5, center="batch", sync=True, gradient="plane")(x)
    torch.save(turned, f"{folder}/turned_{rank}.pt")
    x = batch()[0][: 6 if rank == 0 else 0]  # a process without examples must not leave the other one waiting
    torch.save(ro.nn.CentredDropout(0.5, sync=True)(x), f"{folder}/uneven_{rank}.pt")


def test_synchronised_noise_is_about_the_mean_of_all_processes(tmp_path: Path) -> None:
    mp.spawn(drop, args=(str(tmp_path),), nprocs=2)
    x = batch()[0]
    mean = x.mean(0)
    for name in ("dropped", "uneven"):
        y = torch.cat([torch.load(tmp_path / f"{name}_{rank}.pt", weights_only=True) for rank in (0, 1)])
        dropped = (y - mean).abs() < 1e-6
        assert 0 < dropped.sum() < x.numel()
        torch.testing.assert_close(y, torch.where(dropped, mean, 2 * x - mean))
    added = torch.cat([torch.load(tmp_path / f"turned_{rank}.pt", weights_only=True) for rank in (0, 1)]) - x
    assert ((added * (x - mean)).sum(1).abs() < 1e-5).all(), "what a rotation adds is perpendicular to x − m"
    assert (added.norm(dim=1) > 1e-3).all()


def train(rank: int, folder: str) -> None:
    in_group(lambda: _train(rank, folder), init_method=f"file://{folder}/train", rank=rank, world_size=2)


def _train(rank: int, folder: str) -> None:
    torch.manual_seed(0)
    noise = ro.nn.RotationOutSequence(0.3)
    model = ro.nn.NoisyLSTM(8, 6, 2, bidirectional=True, layer_noise=noise, weight_drop=0.3, variational=True)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    torch.manual_seed(rank)  # noise of its own
    losses = []
    for x in torch.randn(4, 5, 3, 8):
        optimizer.zero_grad()
        losses.append(parallel(x)[0].square().sum())
        losses[-1].backward()
        optimizer.step()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.save((torch.stack(losses).detach(), gradients, model.state_dict()), f"{folder}/trained_{rank}.pt")


def test_weight_drop_trains_in_data_parallel(tmp_path: Path) -> None:
    """Every process draws for itself; the gradients of the raw weights are averaged, so the weights stay the same."""
    mp.spawn(train, args=(str(tmp_path),), nprocs=2)
    ours, theirs = (torch.load(tmp_path / f"trained_{rank}.pt", weights_only=True) for rank in (0, 1))
    assert not torch.equal(ours[0], theirs[0])
    for name, gradient in ours[1].items():
        assert gradient.abs().sum() > 0, name
        assert torch.equal(gradient, theirs[1][name]), name
    assert all(torch.equal(value, theirs[2][name]) for name, value in ours[2].items())


def _spread() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    x = distribute_tensor(torch.randn(4, 6), init_device_mesh("cpu", (1,)), [Replicate()])
    layer = ro.RotationOut(0.5)
    turn = ro.functional.rotate, ro.sample_rotation(x.shape)
    for call in (layer, lambda x: turn[0](x, turn[1])):
        with pytest.raises(TypeError, match=r"got a DTensor; .* x\.to_local\(\)"):
            call(x)
    assert layer.eval()(x) is x


def test_a_tensor_that_is_spread_over_processes_is_refused_in_training(tmp_path: Path) -> None:
    in_group(_spread, init_method=f"file://{tmp_path}/spread", rank=0, world_size=1)


def _shard() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, x = init_device_mesh("cpu", (1,)), torch.randn(3, 4)
    for sharded_first in (False, True):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

        def shard(model: nn.Sequential = model) -> None:
            fully_shard(model[0], mesh=mesh)
            fully_shard(model, mesh=mesh)

        def place(model: nn.Sequential = model) -> None:
            ro.swap(model)
            ro.insert(model, ro.RotationOut(0.3), before="3")

        for change in (shard, place) if sharded_first else (place, shard):
            change()
        before = [weight.full_tensor().detach().clone() for weight in model.parameters()]
        model(x).square().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        after = [weight.full_tensor() for weight in model.parameters()]
        assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        assert not torch.equal(model(x), model(x)), "noise acts"


def test_noise_in_a_sharded_model(tmp_path: Path) -> None:
    """FSDP2, with noise that was there before and noise that came later."""
    in_group(_shard, init_method=f"file://{tmp_path}/shard", rank=0, world_size=1)
