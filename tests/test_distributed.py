"""A batch mean taken over data-parallel processes equals that of one process with the whole batch."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

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
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        x, weight = (t[:2] if rank == 0 else t[2:] for t in batch())  # ranks of unequal size
        torch.save(forward_and_gradient(x, weight, sync=True), f"{folder}/{rank}.pt")
        # A process without examples must not leave the other one waiting.
        x, weight = (t[:6] if rank == 0 else t[:0] for t in batch())
        torch.save(forward_and_gradient(x, weight, sync=True), f"{folder}/{rank}_uneven.pt")
    finally:
        dist.destroy_process_group()


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
    dist.init_process_group("gloo", init_method=f"file://{folder}/drop", rank=rank, world_size=2)
    try:
        x = batch()[0][:2] if rank == 0 else batch()[0][2:]
        torch.save(ro.nn.CentredDropout(0.5, sync=True)(x), f"{folder}/dropped_{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_synchronised_dropout_is_about_the_mean_of_all_processes(tmp_path: Path) -> None:
    mp.spawn(drop, args=(str(tmp_path),), nprocs=2)
    y = torch.cat([torch.load(tmp_path / f"dropped_{rank}.pt", weights_only=True) for rank in (0, 1)])
    x = batch()[0]
    mean = x.mean(0)
    dropped = (y - mean).abs() < 1e-6
    assert 0 < dropped.sum() < x.numel()
    torch.testing.assert_close(y, torch.where(dropped, mean, 2 * x - mean))
