"""What is measured of a trained network for its record: the variance shift and its repairs, co-adaptation by layer.

A study takes a finished run and gives numbers that JSON knows. The network of the run is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..analysis import coadaptation_of, correct_batchnorm_, recalibrate_batchnorm_, variance_shift
from . import cifar

if TYPE_CHECKING:
    from .classification import Classification

__all__ = ["STUDIES", "TrainingImages"]

BATCHES = 20
"""Of training images. Few, because other runs on the device wait meanwhile."""
TEST_BATCH = 1000
NORM_BEHIND: dict[str, dict[str, str]] = {
    "resnet110": {"conv1": "bn1", "bn1": "bn1", "conv2": "bn2"},
    "wrn28_10": {"conv1": "bn2"},
}
"""By network the BatchNorm layer of the same block that noise at a place reaches first, over no sum."""


class TrainingImages:
    """Batches as training has them, cropped and mirrored; the same ones whenever one goes through them."""

    def __init__(self, run: Classification, batches: int) -> None:
        self.run, self.batches = run, min(batches, len(run.train) // run.config.batch)
        generator = torch.Generator().manual_seed(run.config.seed)
        chosen = torch.randperm(len(run.train), generator=generator)[: self.batches * run.config.batch]
        self.chosen = chosen.to(run.device)
        self.cuts = cifar.draw_cuts(len(chosen), generator).to(run.device)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Tensor]:
        run, batch = self.run, self.run.config.batch
        for chosen, cuts in zip(self.chosen.split(batch), self.cuts.split(batch), strict=True):
            yield run.prepare(cifar.augment(run.train.pixels[chosen], cuts))


def _variance_shift(run: Classification) -> dict[str, Any]:
    """Section 3.2 on the BatchNorm layers behind a noise: r and test accuracy, as trained and after each repair.

    The paper's own repair divides the running variance by 1/p_keep, wherever the noise is; `correct_batchnorm_` does
    so where that is right, and `recalibrate_batchnorm_` takes the statistics again without noise.
    """
    images = TrainingImages(run, BATCHES)
    options: dict[str, Any] = {"forward": _forward(run), "show_progress": False}
    behind = _behind_noise(run)

    def divided(network: nn.Module) -> None:
        for name in behind:
            running = network.get_submodule(name).running_var
            assert isinstance(running, Tensor)
            running.mul_(1 - run.config.p)

    repairs: dict[str, Callable[[nn.Module], object]] = {
        "trained": lambda network: None,
        "divided": divided,
        "corrected": lambda network: correct_batchnorm_(network, images, **options),
        "recalibrated": lambda network: recalibrate_batchnorm_(network, images, **options),
    }
    states: dict[str, Any] = {}
    for name, repair in repairs.items():
        network = copy.deepcopy(run.network)
        try:
            repair(network)
        except ValueError as error:
            states[name] = {"refused": str(error)}
            continue
        shift = variance_shift(network, images, **options)
        ratios = [shift[layer].r for layer in behind]
        states[name] = {
            "top1": 100 * _accuracy(run, network),
            "r_mean": [round(r.mean().item(), 5) for r in ratios],
            "r_max": [round(r.max().item(), 5) for r in ratios],
        }
    return {"batches": len(images), "layers": behind, "states": states}


def _coadaptation(run: Classification) -> dict[str, Any]:
    """co(x) of section 3.1 for the output of every block of the stages that can have noise, without noise."""
    layers = _blocks(run)
    table = coadaptation_of(
        run.network, TrainingImages(run, BATCHES), layers, dim=1, forward=_forward(run), show_progress=False
    )
    return {"layers": layers, "value": [round(table[layer].value, 5) for layer in layers]}


STUDIES: dict[str, Callable[[Classification], dict[str, Any]]] = {
    "variance_shift": _variance_shift,
    "coadaptation": _coadaptation,
}
"""By the names that configs and records use."""


def _blocks(run: Classification) -> list[str]:
    stages = run.network.get_submodule("stages")
    each = len(list(stages.children())) // 3
    return [f"stages.{each * (stage - 1) + k}" for stage in run.config.stages for k in range(each)]


def _behind_noise(run: Classification) -> list[str]:
    behind = NORM_BEHIND[run.config.network]
    places = run.config.network_options.get("places", ("conv1", "conv2"))
    norms = sorted({behind[place] for place in places if place in behind})
    return [f"{block}.{norm}" for block in _blocks(run) for norm in norms]


def _forward(run: Classification) -> Callable[[nn.Module, Tensor], Tensor]:
    def forward(network: nn.Module, images: Tensor) -> Tensor:
        with run.autocast():
            logits: Tensor = network(images)
        return logits

    return forward


@torch.no_grad()
def _accuracy(run: Classification, network: nn.Module) -> float:
    network.eval()
    forward, correct = _forward(run), 0
    for pixels, labels in zip(
        run.examined.pixels.split(TEST_BATCH), run.examined.labels.split(TEST_BATCH), strict=True
    ):
        correct += int((forward(network, run.prepare(pixels)).argmax(1) == labels).sum())
    return correct / len(run.examined)
