"""Time and memory of noise layers beside each other.

Machines are noisy, so every noise is timed in turn, round after round, and what counts is the ratio to nn.Dropout.
"""

from __future__ import annotations

import functools
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .noises import Noise, noises

__all__ = ["bytes_kept", "compare", "record", "time_side_by_side"]

WARM_UP = 2
"""Turns that do not count."""


def compare(
    shape: Sequence[int],
    *,
    p: float = 0.2,
    rounds: int = 15,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """Time forward + backward of every noise that fits features of a shape, as they are called from Python.

    Args:
        shape: (N, D), tokens (N, T, D) or maps (N, C, H, W).
        p: the drop probability of all.
        rounds: turns that are timed, at least two.
        device: where.
        dtype: of the features.

    Returns:
        A row for each noise, with ``tensor``, ``noise``, ``ms``, and ``bytes_kept`` for backward.

    >>> rows = compare((8, 16), rounds=2)
    >>> rows[0]["tensor"], rows[0]["noise"], rows[0]["ms"] > 0
    ('(8, 16)', 'nn.Dropout', True)
    """
    size = tuple(shape)
    if len(size) not in (2, 3, 4) or min(size) < 1:
        raise ValueError(f"shape must be (N, D), (N, T, D) or (N, C, H, W), got {size}")
    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, got {rounds!r}")
    x = torch.randn(size, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)
    found = noises(size, p)
    for noise in found.values():
        if isinstance(noise, nn.Module):
            noise.to(device)
    actions = {name: functools.partial(_step, noise, x, grad) for name, noise in found.items()}
    seconds = time_side_by_side(actions, rounds)
    return [
        {"tensor": str(size), "noise": name, "ms": 1e3 * seconds[name], "bytes_kept": bytes_kept(noise, x)}
        for name, noise in found.items()
    ]


def record(rows: Sequence[dict[str, Any]], p: float, device: str | torch.device = "cpu") -> dict[str, Any]:
    """What was measured and on what, to be written as JSON.

    >>> sorted(record([], 0.2))
    ['machine', 'p', 'rows', 'threads', 'torch']
    """
    on_gpu = torch.device(device).type == "cuda"
    machine = torch.cuda.get_device_name(device) if on_gpu else platform.machine()
    surroundings = {"torch": str(torch.__version__), "threads": torch.get_num_threads(), "machine": machine}
    return {**surroundings, "p": p, "rows": list(rows)}


def _step(noise: Noise, x: Tensor, grad: Tensor) -> None:
    """Forward and backward, once, and on a GPU until they are done."""
    noise(x).backward(grad)
    x.grad = None
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def time_side_by_side(actions: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of each action, the actions taking turns: the 20th percentile, since other processes only add time.

    In every round they have another order: what an action leaves in the caches can help or hinder the next.

    >>> list(time_side_by_side({"nothing": lambda: None}, rounds=2))
    ['nothing']
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    order, shuffler = list(actions), random.Random(0)
    for turn in range(rounds + WARM_UP):
        shuffler.shuffle(order)
        for name in order:
            start = time.perf_counter()
            actions[name]()
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(values, n=5, method="inclusive")[0] for name, values in times.items()}


def bytes_kept(noise: Noise, x: Tensor) -> int:
    """What autograd keeps alive between forward and backward, besides x itself, which other layers may keep anyway.

    >>> bytes_kept(nn.Dropout(0.5), torch.randn(100, 100, requires_grad=True))  # a mask, on a CPU of floats
    40000
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = noise(x)
    kept.pop(x.untyped_storage().data_ptr(), None)
    del output
    return sum(kept.values())
