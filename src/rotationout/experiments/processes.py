"""Data-parallel training under torchrun: several processes, each on its own device, share every batch of one run.

The number of processes does not change the initial weights, the order of the examples or their augmentation. As
gradients are averaged, all processes have the same weights after every update. Noise differs: the random numbers of a
process start at seed + `random_stream.SEED_STRIDE` · rank. With ``sync_batchnorm``, the default, batch statistics
(BatchNorm's, and the means of centred noises) are those of the whole batch, else those of each process's share. Running
statistics are averaged with the gradients, so that all processes have one network.

Gradients go through one plain all-reduce, which can be captured in a CUDA graph. Torch's DistributedDataParallel, whose
buckets overlap the backward pass, needs the host at every step.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..functional.inputs import feature_mean
from ..nn.base import CentredNoise

__all__ = [
    "any_of",
    "average_",
    "from_first",
    "gather",
    "joined",
    "launched",
    "rank",
    "share",
    "size",
    "sum_",
    "synchronized",
]

T = TypeVar("T")


@contextmanager
def joined(name: str | None = None) -> Iterator[torch.device]:
    """The device to work on, as a context. Under torchrun the process group exists inside it.

    Args:
        name: the name of the device. By default a GPU if there is one (each process of a machine gets its own), else
            the CPU.
    """
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check_device(device)
    if launched() and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if not launched() or dist.is_initialized():
        yield device
        return
    # If torch._dynamo is first imported while there is a process group, it keeps the group alive for good. A thread of
    # the group that then frees a tensor while Python exits aborts the process.
    importlib.import_module("torch._dynamo")
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def _check_device(device: torch.device) -> None:
    """A clear error if torch cannot compute on this device."""
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not 0 <= (device.index or 0) < count:  # torch reads cuda:128 and above as negative indices
            raise ValueError(f"device '{device}' was asked for, but torch finds {count or 'no'} GPU here")
        return
    try:
        usable = torch.zeros(1, device=device).item() == 0  # a meta tensor has no value
    except (RuntimeError, NotImplementedError, AssertionError):  # backends differ in what they raise
        usable = False
    if not usable:
        raise ValueError(f"device '{device}' was asked for, but torch cannot compute there; use cpu or cuda")


def launched() -> bool:
    """Whether torchrun has started this process, even if it is the only one."""
    return dist.is_available() and dist.is_torchelastic_launched()


def _together() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def size() -> int:
    """How many processes share the run; 1 without torchrun."""
    return dist.get_world_size() if _together() else 1


def rank() -> int:
    """The rank of this process. The first, 0, does all the writing."""
    return dist.get_rank() if _together() else 0


def share(batch: int) -> slice:
    """This process's part of a batch.

    >>> share(128)
    slice(0, 128, None)
    """
    if batch % size():
        raise ValueError(f"batch = {batch} cannot be shared equally by {size()} processes")
    part = batch // size()
    return slice(rank() * part, (rank() + 1) * part)


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in place, in one all-reduce."""
    if not _together() or not tensors:
        return
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= size()
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def sum_(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes, in place."""
    if _together():
        dist.all_reduce(tensor)


def any_of(*flags: bool) -> list[bool]:
    """For each flag, whether it is true in any process."""
    if not _together():
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(raised, dist.ReduceOp.MAX)
    return [bool(flag) for flag in raised]


def from_first(value: T) -> T:
    """The value that the first process has, in every process."""
    if not _together():
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]  # type: ignore[no-any-return]


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks."""
    if not _together():
        return [value]
    box: list[Any] = [None] * size()
    dist.all_gather_object(box, value)
    return box


def synchronized(network: nn.Module, device: torch.device) -> nn.Module:
    """Make a network take batch statistics over all processes: those of BatchNorm, and the means of centred noises.

    Torch's SyncBatchNorm needs a GPU; on a CPU `_GlobalBatchNorm` does the same in plain operations.
    """
    if size() == 1:
        return network
    for module in network.modules():
        if isinstance(module, CentredNoise) and module.center is not None:
            module.sync = True
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-any-return]
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _GlobalBatchNorm.like(child))
    return network


class _GlobalBatchNorm(_BatchNorm):
    """BatchNorm over the batches of all processes, on any device."""

    @classmethod
    def like(cls, other: _BatchNorm) -> _GlobalBatchNorm:
        """A layer with the parameters and buffers of ``other``, the same tensors."""
        new = cls(other.num_features, other.eps, other.momentum, other.affine, other.track_running_stats)
        new._parameters, new._buffers, new.training = other._parameters, other._buffers, other.training
        return new

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any shape with channels on the second axis."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        along = (1, -1) + (1,) * (input.ndim - 2)
        mean, count = feature_mean(input, None, 1, sync=True)
        centred = input - mean.view(along)
        variance, _ = feature_mean(centred.square(), None, 1, sync=True)
        self._track(mean, variance, count)
        normal = centred * (variance + self.eps).rsqrt().view(along)
        return normal * self.weight.view(along) + self.bias.view(along) if self.affine else normal

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor | int) -> None:
        """Update the running statistics, if there are any."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        weight = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, weight)
        self.running_var.lerp_(variance * count / (count - 1), weight)
