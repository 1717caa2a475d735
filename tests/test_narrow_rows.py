"""Networks of the recipes' rows, with their noises and norms, by kernels for few channels against plain torch: all
gradients and statistics. On a GPU if there is one, else interpreted."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import LAST, error
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import _few_programs as _few_programs
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.experiments import networks
from rotationout.experiments.classification import ClassificationConfig, build_network
from rotationout.recipes.cifar100 import TABLES

pytestmark = [pytest.mark.usefixtures("_poisoned", "_everywhere", "_few_programs"), *MARKS]
EVERY = 1, 2, 3
ROWS = [
    ("cifar100_resnet110_authors", "dropout keep 0.8", EVERY),
    ("cifar100_resnet110_paper", "rotation authors sigma 0.500", (3,)),
    ("cifar100_resnet110_shift", "Dropout-a, centred", EVERY),
    ("cifar100_ghost", "BatchNorm of 4", EVERY),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block a stage."""
    for name in ("resnet20", "resnet110"):
        monkeypatch.setitem(networks.NETWORKS, name, partial(networks.ResNet, 1))


def trained(row: ClassificationConfig, x: Tensor) -> dict[str, Tensor]:
    """Gradients of two batches, which add up, and what the network keeps of them."""
    torch.manual_seed(0)
    network: Any = build_network(row).to(DEVICE).to(memory_format=LAST).train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # what a noise sets to the mean is otherwise zero, up to rounding,
            nn.init.normal_(module.bias, std=0.3)  # and whether a ReLU lets that through is anybody's guess
        if isinstance(module, networks._Block):
            nn.init.ones_(module.bn2.weight)  # also where branches are silent at first
    torch.manual_seed(1)
    for images in x.split(len(x) // 2):
        F.cross_entropy(network(images), torch.arange(len(images), device=DEVICE)).backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    return gradients | {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}


@pytest.mark.parametrize(("table", "name", "stages"), ROWS)
def test_rows_learn_as_torchs(table: str, name: str, stages: tuple[int, ...]) -> None:
    """On two of three inputs: where rounding decides about a ReLU, a gradient of so few values differs visibly."""
    (row,) = (row for row in TABLES[table]() if row.row == name)
    errors: dict[str, list[float]] = {}
    for seed in (2, 3, 4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 3, 8, 8, generator=generator).to(DEVICE).contiguous(memory_format=LAST)
        ours, theirs = (trained(row.replace(stages=stages, kernels=kind), x) for kind in ("fused", "torch"))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            errors.setdefault(key, []).append(error(ours[key], value.double()))
    for key, found in errors.items():
        assert statistics.median(found) < 1e-2, (key, found)
