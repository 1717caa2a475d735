"""A network to place noise in, its images, and all there is to see of it."""

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attributes called in another order than they are registered, one of them twice, and a shortcut."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv1(x))
        return self.act(x + self.conv2(self.norm(self.act(y))))


class Network(nn.Module):
    """Stages in a nn.Sequential, a block that is used twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer2 = nn.Sequential(Block(), self.layer1[0])
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


IMAGES = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def state(model: nn.Module) -> list[Any]:
    """Everything there is to see of a model's modules, for comparison."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs")
    return [
        (name, id(module), type(module), sorted(vars(module)), {hook: dict(vars(module)[hook]) for hook in hooks})
        for name, module in model.named_modules(remove_duplicate=False)
    ]
