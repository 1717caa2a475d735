"""Models with noise before BatchNorm, their batches, and what the tests of repairs look at."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.analysis import variance_shift

CHANNELS = 12


def images(count: int = 20, rows: int = 32) -> list[Tensor]:
    scale = torch.linspace(0.5, 2, 3).view(3, 1, 1)
    return [scale * torch.randn(rows, 3, 7, 7) + 1 for _ in range(count)]


def before_norm(noise: nn.Module, **norm: Any) -> nn.Sequential:
    """A noise directly before a BatchNorm layer, and weights after it."""
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3), noise, nn.BatchNorm2d(CHANNELS, **norm), nn.ReLU(), nn.Conv2d(CHANNELS, 2, 3)
    )


def trained(model: nn.Module, batches: list[Any], times: int = 3) -> nn.Module:
    """Running statistics as training leaves them."""
    model.train()
    with torch.no_grad():
        for batch in batches * times:
            model(batch)
    return model


def clean_variance(model: nn.Module, name: str, batches: list[Any]) -> Tensor:
    """That of the layer's input in testing mode."""
    return variance_shift(model, batches)[name].test


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], value) for name, value in before.items())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.dropout(self.conv(x), 0.5, self.training))


class Tokens(nn.Module):
    """Features on the last axis for the noise, moved to that of channels for the layer; fx cannot read the code."""

    def __init__(self, noise: nn.Module) -> None:
        super().__init__()
        self.noise, self.norm = noise, nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return self.norm(self.noise(x).transpose(1, 2))
