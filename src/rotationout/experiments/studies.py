"""Studies of trained CIFAR-100 networks, for their records: variance shift, co-adaptation by layer, test modes.

A study is a function of a finished run that returns JSON-able numbers. It does not change the network of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..analysis import coadaptation_of, correct_batchnorm_, recalibrate_batchnorm_, variance_shift
from ..analysis.batchnorm import effective_batch_size
from ..nn.norm import PolyBatchNorm2d, convert_batchnorm
from . import cifar
from .networks import use_torch_kernels_
from .norms import average_statistics

if TYPE_CHECKING:
    from .classification import Classification

__all__ = ["STUDIES", "TrainingImages"]

BATCHES = 20
"""Batches of training images per study. Few, because other runs on the device wait meanwhile."""
TEST_BATCH = 1000
_BASIC = {"conv1": "bn1", "bn1": "bn1", "conv2": "bn2"}
NORM_AFTER: dict[str, dict[str, str]] = {
    "resnet20": _BASIC,
    "resnet110": _BASIC,
    "wrn28_10": {"conv1": "bn2"},
}
"""For each network and place of noise: the BatchNorm layer of the same block that the noise reaches first, without a
sum in between."""
TOKENS = ("vit",)
"""Networks in which features are last, (N, tokens, features)."""


class TrainingImages:
    """Batches of training images, cropped and mirrored as in training; every iteration gives the same ones."""

    def __init__(self, run: Classification, batches: int) -> None:
        self.run, self.batches = run, min(batches, len(run.train_images) // run.config.batch)
        generator = torch.Generator().manual_seed(run.config.seed)
        chosen = torch.randperm(len(run.train_images), generator=generator)[: self.batches * run.config.batch]
        self.chosen = chosen.to(run.device)
        self.cuts = cifar.draw_cuts(len(chosen), generator).to(run.device)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Tensor]:
        run, batch = self.run, self.run.config.batch
        for chosen, cuts in zip(self.chosen.split(batch), self.cuts.split(batch), strict=True):
            yield run.prepare(cifar.augment(run.train_images.pixels[chosen], cuts))


def _variance_shift(run: Classification) -> dict[str, Any]:
    """Section 3.2 on the BatchNorm layers that noise reaches: r and test accuracy, as trained and after each repair.

    r is the ratio, at least 1, of the input's variances in training mode and in eval mode; ``stored_r`` has the running
    variance instead of that of training mode. A repair changes ``stored_r``, and r only through the repaired layers
    before it. Mean and maximum are over channels.

    The paper's own repair (``divided``) divides the running variance by 1/p_keep, wherever the noise is.
    `correct_batchnorm_` does so only where that is right; `recalibrate_batchnorm_` measures the statistics without
    noise.
    """
    images = TrainingImages(run, BATCHES)
    options: dict[str, Any] = {"forward": _forward(run), "show_progress": False}
    norm_layers = _norms_after_noise(run)

    def divided(network: nn.Module) -> None:
        for name in norm_layers:
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
        network = _copied(run)
        try:
            repair(network)
        except ValueError as error:
            states[name] = {"refused": str(error).partition("\n")[0]}  # the other lines list the layers
            continue
        shift = variance_shift(network, images, layers=norm_layers, **options)
        states[name] = {"top1": 100 * _accuracy(run, network)}
        for ratio in ("r", "stored_r"):
            found = [getattr(shift[layer], ratio) for layer in norm_layers]
            states[name][f"{ratio}_mean"] = [round(r.mean().item(), 5) for r in found]
            states[name][f"{ratio}_max"] = [round(r.max().item(), 5) for r in found]
    return {"batches": len(images), "layers": norm_layers, "states": states}


def _coadaptation(run: Classification) -> dict[str, Any]:
    """co(x) of section 3.1 for the output of every block of the stages that can have noise, in eval mode."""
    layers, dim = _blocks(run), -1 if run.config.network in TOKENS else 1
    table = coadaptation_of(
        _copied(run), TrainingImages(run, BATCHES), layers, dim=dim, forward=_forward(run), show_progress=False
    )
    return {"layers": layers, "value": [round(table[layer].value, 5) for layer in layers]}


def _test_modes(run: Classification) -> dict[str, Any]:
    """Appendix B: test accuracy with the running statistics of training, and with statistics averaged over batches.

    A network trained with BatchNorm is also tested as PolyBatchNorm, which differs in eval mode only. Its f_poly is
    taken for two batch sizes: the number of examples that were normalised together (``poly``), and the measured number
    of independent values in them, layer by layer (``poly_measured``, see ``batch_size`` of
    `rotationout.nn.PolyBatchNorm2d`).
    """
    config, images = run.config, TrainingImages(run, BATCHES)
    size = config.ghost_batch or config.batch
    top1: dict[str, dict[str, float]] = {}
    for statistics in ("running", "averaged"):
        network = _copied(run)
        if statistics == "averaged":
            average_statistics(network, images, _forward(run))
        modes = {config.norm: network}
        if config.norm == "batch":
            modes["poly"] = convert_batchnorm(copy.deepcopy(network), "poly", batch_size=size)
            modes["poly_measured"] = _measured(run, copy.deepcopy(modes["poly"]), next(iter(images)), size)
        top1[statistics] = {name: 100 * _accuracy(run, mode) for name, mode in modes.items()}
    found: dict[str, Any] = {"batches": len(images), "top1": top1}
    if config.norm == "batch":
        found["measured_sizes"] = [
            round(layer.batch_size, 1)
            for layer in modes["poly_measured"].modules()
            if isinstance(layer, PolyBatchNorm2d)
        ]
    return found


STUDIES: dict[str, Callable[[Classification], dict[str, Any]]] = {
    "variance_shift": _variance_shift,
    "coadaptation": _coadaptation,
    "test_modes": _test_modes,
}
"""The studies by the names that configs and records use."""


def _copied(run: Classification) -> nn.Module:
    """A copy of the network that a study may change. It uses torch's kernels, as nothing is captured here."""
    return use_torch_kernels_(copy.deepcopy(run.network))


def _blocks(run: Classification) -> list[str]:
    stages = run.network.get_submodule("stages")
    each = len(list(stages.children())) // 3
    return [f"stages.{each * (stage - 1) + k}" for stage in run.config.stages for k in range(each)]


def _norms_after_noise(run: Classification) -> list[str]:
    norm_after = NORM_AFTER[run.config.network]
    places = run.config.network_options.get("places", ("conv1", "conv2"))
    norms = sorted({norm_after[place] for place in places if place in norm_after})
    return [f"{block}.{norm}" for block in _blocks(run) for norm in norms]


@torch.no_grad()
def _measured(run: Classification, network: nn.Module, images: Tensor, size: int) -> nn.Module:
    """Set ``batch_size`` of every PolyBatchNorm layer to the measured number of independent values per channel.

    The median over channels is used.
    """

    def measure(layer: PolyBatchNorm2d) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            positions = args[0][0, 0].numel()
            each = effective_batch_size(args[0], size).nan_to_num(nan=size)  # NaN: a constant channel
            layer.batch_size = float(each.clamp(size, size * positions).median())

        return hook

    layers = [layer for layer in network.modules() if isinstance(layer, PolyBatchNorm2d)]
    hooks = [layer.register_forward_pre_hook(measure(layer)) for layer in layers]
    _forward(run)(network.eval(), images)
    for hook in hooks:
        hook.remove()
    return network


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
        run.test_images.pixels.split(TEST_BATCH), run.test_images.labels.split(TEST_BATCH), strict=True
    ):
        correct += int((forward(network, run.prepare(pixels)).argmax(1) == labels).sum())
    return correct / len(run.test_images)
