"""Maps, weights and layers that tests of kernels for few channels share, and what plain torch makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, GPU
from torch import Tensor, nn

from rotationout.experiments.narrow import conditions, tiles
from rotationout.experiments.narrow.batchnorm import Normalisation, Running
from rotationout.experiments.narrow.convolving import TrainingNorm

HALF = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter multiplies no bf16
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Fp32 in cuDNN too."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on whatever device there is."""
    monkeypatch.setattr(conditions, "_on_gpu", lambda x: True)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts of several steps each, also of small maps."""
    for table in (tiles.NORMALISED, tiles.REVERSED):
        for channels in table:
            monkeypatch.setitem(table, channels, tiles.Sums(512, 4, 5))
    for channels in tiles.CONVOLVED:
        monkeypatch.setitem(tiles.CONVOLVED, channels, tiles.CONVOLVED[channels]._replace(positions=64))
    for channels in tiles.WEIGHED:
        monkeypatch.setitem(tiles.WEIGHED, channels, tiles.WEIGHED[channels]._replace(positions=64, programs=6))
    monkeypatch.setattr(tiles, "ADDED", (2, 512))


@pytest.fixture
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted in few pieces, each of which takes its time whatever its size is; on a GPU as the tables say."""
    if GPU:
        return
    fitted = tiles.fitted
    monkeypatch.setattr(tiles, "fitted", lambda *of: fitted(*of)._replace(positions=128, programs=2))


class Counted:
    """A kernel whose launches are counted."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.launches += 1
        return self.kernel[grid]


def maps(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).contiguous(memory_format=LAST)


def weights(outputs: int, channels: int, memory: torch.memory_format = LAST) -> Tensor:
    return (torch.randn(outputs, channels, 3, 3) / channels**0.5 / 3).to(DEVICE).contiguous(memory_format=memory)


def leaves(*tensors: Tensor | None, dtype: torch.dtype | None = None) -> list[Any]:
    return [t if t is None else t.detach().to(dtype or t.dtype).clone().requires_grad_() for t in tensors]


def error(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest value."""
    return float(
        (found.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max().clamp(min=1e-30)
    )


def convolved(run: Any, x: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    y = run(x, weight)
    y.backward(given)
    return y.detach(), x.grad, weight.grad


def layer(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def normalised(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    y = norm(x) if residual is None else residual + norm(x)
    return y.relu() if relu else y


def fused(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool, computed: bool = False) -> Tensor:
    """By kernels, which may be given the statistics that a convolution computes."""
    running = Running(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)
    statistics = statistics_of(norm, x.detach().float()) if computed else None
    return Normalisation.apply(x, residual, norm.weight, norm.bias, running, norm.eps, relu, statistics)


def statistics_of(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Mean and 1/√(var + ε), as a convolution gives them; that also follows them, which the norm then must not do."""
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return torch.stack([mean, (var + norm.eps).rsqrt()])


def training_norm(norm: nn.BatchNorm2d) -> TrainingNorm:
    """What a convolution is given of the norm that follows."""
    kept, counter = (norm.running_mean, norm.running_var, norm.num_batches_tracked), torch.zeros((), dtype=torch.int32)
    return TrainingNorm(*kept, counter.to(DEVICE), norm.eps, norm.momentum)


def all_of(run: Any, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool, given: Tensor) -> Any:
    """Everything that a layer gives, and keeps: two batches, the second of which is differentiated."""
    run(norm, x.detach() + 1, residual, relu)
    y = run(norm, x, residual, relu)
    y.backward(given)
    found = {"y": y.detach(), "x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return found | dict(norm.named_buffers()) | ({} if residual is None else {"residual": residual.grad})
