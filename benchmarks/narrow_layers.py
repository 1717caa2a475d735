"""Layers of ResNet110 that ``benchmarks/narrow.py`` times: by torch, and by the kernels for few channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.experiments.networks import ResNet
from rotationout.experiments.vision import channels_last

BATCH = 128
LAYERS = {16: 32, 32: 16, 64: 8}
"""Channels, and the size of the maps."""
Ways = dict[str, Callable[[], object]]


def layers(channels: int) -> dict[str, Ways]:
    """What there is to time for so many channels: by its name, and by who does it."""
    from rotationout.experiments.narrow import convolving, weighing
    from rotationout.experiments.narrow.batchnorm import Normalisation, Running
    from rotationout.experiments.narrow.handing import PrecedingNorm

    shape = BATCH, channels, LAYERS[channels], LAYERS[channels]
    x, residual, given = (_maps(shape) for _ in range(3))
    weight = torch.randn(channels, channels, 3, 3, device="cuda").contiguous(memory_format=torch.channels_last) / 12
    rounded = weight.bfloat16()
    gamma, beta = (torch.rand(channels, device="cuda").requires_grad_() for _ in range(2))
    mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
    running = Running(mean, var, torch.zeros((), dtype=torch.int64, device="cuda"), 0.1)
    counter = torch.zeros((), dtype=torch.int32, device="cuda")
    training_norm = convolving.TrainingNorm(mean, var, running.batches, counter, 1e-5, running.momentum)
    statistics = convolving.convolve(x, weight, mirrored=False, training_norm=training_norm)[1]
    totals = torch.ones(2, channels, device="cuda")
    preceding_norm = PrecedingNorm(x, residual, totals, gamma, beta, "output")
    same = [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def backward(wanted: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(given, x, rounded, None, *same, wanted)

    def by_torch(x: Tensor, residual: Tensor) -> Tensor:
        return F.relu(residual + F.batch_norm(x, mean, var, gamma, beta, True, 0.1, 1e-5))

    def by_us(x: Tensor, residual: Tensor, statistics: Tensor | None = None) -> Tensor:
        y: Tensor = Normalisation.apply(x, residual, gamma, beta, running, 1e-5, True, statistics)  # type: ignore[no-untyped-call]
        return y

    def forward(norm: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        return torch.no_grad()(lambda: norm(x, residual))

    def both(norm: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        leaves = x.detach().requires_grad_(), residual.detach().requires_grad_()
        return lambda: torch.autograd.grad(norm(*leaves), (*leaves, gamma, beta), given)

    def handed() -> object:
        leaves = x.detach().requires_grad_(), residual.detach().requires_grad_()
        y: Any = by_us(*leaves, statistics)
        y.grad_fn.answer.give(given, totals)  # as a convolution behind it would
        return torch.autograd.grad(y, (*leaves, gamma, beta), given)

    return {
        "convolution": {
            "torch": lambda: F.conv2d(x, rounded, padding=1),
            "fused": lambda: convolving.convolve(x, weight, mirrored=False),
        },
        "convolution, statistics": {
            "fused": lambda: convolving.convolve(x, weight, mirrored=False, training_norm=training_norm)
        },
        "gradient of input": {
            "torch": backward([True, False, False]),
            "fused": lambda: convolving.convolve(given, weight, mirrored=True),
        },
        "gradient of input at a fork": {
            "fused": lambda: convolving.convolve(given, weight, mirrored=True, added=residual)
        },
        "gradient of input at a fork, sums": {
            "fused": lambda: convolving.convolve(
                given, weight, mirrored=True, added=residual, preceding_norm=preceding_norm
            )
        },
        "gradient of weight": {
            "torch": backward([False, True, False]),
            "fused": lambda: weighing.weight_gradient(x, given, weight),
        },
        "norm": {"torch": forward(by_torch), "fused": forward(by_us)},
        "norm after statistics": {"fused": forward(partial(by_us, statistics=statistics))},
        "norm and gradient": {"torch": both(by_torch), "fused": both(by_us)},
        "norm and gradient after statistics and sums": {"fused": handed},
        "two blocks": {kernels: blocks(channels, kernels, x, given) for kernels in ("torch", "fused")},
        "copy": {"torch": x.clone},
    }


def blocks(channels: int, kernels: str, x: Tensor, given: Tensor) -> Callable[[], object]:
    """Two residual blocks, forward and backward."""

    @cache
    def made() -> tuple[nn.Module, tuple[Tensor, ...]]:  # only if they are timed
        stages = ResNet(3, fused=kernels == "fused").stages
        first = 3 * list(LAYERS).index(channels) + 1  # the first of a stage may have other sizes
        network = channels_last(stages[first : first + 2]).cuda()
        return network, (x.detach().requires_grad_(), *network.parameters())

    def work() -> object:
        network, leaves = made()
        with torch.autocast("cuda", torch.bfloat16):
            y = network(leaves[0])
        return torch.autograd.grad(y, leaves, given)

    return work


def _maps(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
