"""What is claimed of every kind of the registry: one case or more for each, for the tests that run over all of them."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rotationout.registry import KINDS

VECTORS, MAPS, STEPS = (6, 4), (2, 4, 2, 2), (3, 2, 4)
RUNNING = {"center": "running", "num_features": 4, "momentum": 1.0}
"""About the mean of the last batch."""


def same(x: Tensor) -> Tensor:
    return x


def centred(x: Tensor) -> Tensor:
    """Features on the last axis minus their means."""
    return x - x.flatten(0, -2).mean(0)


def centred_maps(x: Tensor) -> Tensor:
    return x - x.mean((0, 2, 3), keepdim=True)


def multiplied(x: Tensor) -> Tensor:
    """Var / λ where every element is multiplied by 1 + noise."""
    return x**2


def turned(dim: int) -> Callable[[Tensor], Tensor]:
    """Var / λ where features along ``dim`` are turned: the diagonal of Lemma 1."""
    return lambda x: ((x**2).sum(dim, keepdim=True) - x**2) / (x.size(dim) - 1)


def alone(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


def branches(module: nn.Module, x: Tensor) -> Tensor:
    """Two branches made from one tensor."""
    return module(x, x.flip(1))


def recurrent(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)[0]


def fresh_rnn() -> nn.Module:
    """A recurrent module that leans on its recurrent weights, the same one every time."""
    rnn = nn.RNN(4, 4, nonlinearity="relu")
    generator = torch.Generator().manual_seed(5)
    for weight in rnn.parameters():
        weight.data = torch.rand(weight.shape, generator=generator)
    return rnn


@dataclass(frozen=True)
class Case:
    """A noise with options, features for it, and what is claimed.

    Attributes:
        shape: of the features x.
        options: makes those of the registry.
        p: a strength to test at.
        call: calls the module on x.
        still: what comes out without noise.
        about: what is disturbed: x, x − m, or half the difference of two branches.
        variance: Var[x̃ | x] / λ of what is disturbed; None if nothing is claimed.
        share: how much of the variance is left, where only a part of x is disturbed.
        derivative: whether backward is the derivative of forward.
        second: whether the derivative of backward is; not if backward holds constant what depends on x.
        transforms: whether torch.vmap and torch.compile(fullgraph=True) take what it is made of.
    """

    shape: tuple[int, ...]
    options: Callable[[], dict[str, Any]] = dict
    p: float = 0.3
    call: Callable[[nn.Module, Tensor], Tensor] = alone
    still: Callable[[Tensor], Tensor] = same
    about: Callable[[Tensor], Tensor] = same
    variance: Callable[[Tensor], Tensor] | None = multiplied
    share: float = 1.0
    derivative: bool = True
    second: bool = True
    transforms: bool = True


def elementwise(center: str | None) -> list[Case]:
    """About the origin or a mean, of vectors and of maps."""
    found = [
        Case(VECTORS, lambda: RUNNING, about=centred),
        Case(MAPS, lambda: {**RUNNING, "dim": 1}, about=centred_maps),
    ]
    if center is None:
        return [Case(VECTORS), *found]
    return [Case(VECTORS, about=centred), Case(MAPS, lambda: {"dims": 2}, about=centred_maps), *found]


def shaken(**options: str) -> Case:
    return Case(
        VECTORS,
        lambda: options,
        p=0.2,
        call=branches,
        still=lambda x: (x + x.flip(1)) / 2,
        about=lambda x: (x - x.flip(1)) / 2,
        derivative=options.get("backward") == "keep",
    )


WEIGHT_DROP = Case(
    STEPS,
    lambda: {"module": fresh_rnn()},
    call=recurrent,
    still=lambda x: fresh_rnn()(x)[0],
    variance=None,
    transforms=False,  # torch's recurrent modules
)

CASES: dict[str, list[Case]] = {
    "none": [Case(VECTORS, variance=torch.zeros_like)],
    "dropout": elementwise(None),
    "gaussian": elementwise(None),
    "uout": elementwise(None),
    "centred-dropout": elementwise("batch"),
    "centred-gaussian": elementwise("batch"),
    "centred-uout": elementwise("batch"),
    "spatial": [
        Case((2, 3, 3), lambda: {"dims": 1}),
        Case(MAPS),
        Case((2, 3, 1, 2, 2), lambda: {"dims": 3}),
    ],
    "locked": [Case(STEPS), Case(STEPS, lambda: {"batch_first": True})],
    "rotation": [
        Case(VECTORS, variance=turned(1)),
        Case(VECTORS, lambda: {"preset": "paper"}, about=centred, variance=turned(1)),
        Case((3, 5, 2), lambda: {"dims": 1, "center": None}, variance=turned(1)),
        Case(MAPS, lambda: {"dims": 2}, about=centred_maps, variance=turned(1)),
        Case(MAPS, lambda: {"dims": 2, "preset": "authors"}, about=centred_maps, variance=turned(1)),
        Case(
            (2, 4, 3, 3),
            lambda: {"dims": 2, "block_size": 2, "coverage": 0.6},
            about=centred_maps,
            variance=turned(1),
            share=0.6,
        ),
        Case((2, 3, 1, 2, 2), lambda: {"dims": 3, "center": None}, variance=turned(1)),
        Case(VECTORS, lambda: {"gradient": "plane"}, variance=turned(1), derivative=False, second=False),
        Case(
            MAPS,
            lambda: {"dims": 2, "gradient": "plane", "side": "symmetric"},
            about=centred_maps,
            variance=turned(1),
            derivative=False,
            second=False,
        ),
    ],
    "rotation-sequence": [
        Case(STEPS, variance=turned(2)),
        Case(STEPS, lambda: {"batch_first": True, "center": "batch"}, about=centred, variance=turned(2)),
    ],
    "isotropic": [
        Case(VECTORS, variance=turned(1)),
        Case(MAPS, lambda: {"dims": 2, "center": "batch"}, about=centred_maps, variance=turned(1)),
        Case(MAPS, lambda: {"dim": 1, **RUNNING}, about=centred_maps, variance=turned(1)),
    ],
    "dropblock": [
        Case((1, 2, 5, 5), lambda: {"block_size": 3}, variance=None),
        Case((1, 1, 3, 5, 5), lambda: {"dims": 3, "block_size": 3}, variance=None),
    ],
    "droppath": [Case(VECTORS), Case(VECTORS, lambda: {"mode": "batch"})],
    "shake-shake": [shaken(), shaken(backward="keep"), shaken(per="batch", backward="even")],
    "cutout": [Case((2, 1, 4, 4), variance=None), Case((2, 5, 4), variance=None)],
    "weight-drop": [WEIGHT_DROP],
    "variational-weight-drop": [WEIGHT_DROP],
}

TORCHVISION = ("dropblock", "droppath")
"""Kinds that need it."""


def parameters(most: int | None = None) -> list[Any]:
    """(kind, case) for every kind of the registry, for `pytest.mark.parametrize`; ``most`` cases of each."""
    absent = pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None, reason="this noise is torchvision's, which is not installed"
    )
    return [
        pytest.param(kind, case, id=f"{kind}-{n}", marks=absent if kind in TORCHVISION else ())
        for kind in KINDS
        for n, case in enumerate(CASES.get(kind, ())[:most])
    ]
