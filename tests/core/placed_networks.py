"""A network to place noise in, its images, and all there is to see of it; and what `swap` did to a model."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import rotationout as ro


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


def swapped(model: nn.Module, *unsure: str, **choices: object) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The noises that were placed, and why others were left alone; a warning names those of an unknown axis."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "swap left Dropout as it was")
        report = ro.swap(model, **choices)
    assert [str(warning.message).partition(". ")[0].partition(": ")[2] for warning in caught] == (
        [", ".join(unsure)] if unsure else []
    )
    return {change.name: change.noise for change in report.changed}, {left.name: left.why for left in report.left}


def drop_block(package: str, dims: int = 2, **attributes: object) -> nn.Module:
    """One of another package, as far as `swap` looks at it."""
    module = type(f"DropBlock{dims}d", (nn.Module,), {"__module__": f"{package}.drop"})()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module
