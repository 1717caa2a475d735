"""Image classification: CIFAR-100 on the device, cropped and mirrored there, SGD, accuracy in per cent."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..registry import noise as make_noise
from ..strength import check_choice
from . import cifar, processes
from .cifar import Images
from .config import Config
from .networks import NETWORKS
from .norms import LABELS as NORMS
from .norms import normalized
from .run import Run
from .studies import STUDIES

__all__ = ["Classification", "ClassificationConfig", "build_network", "load_images"]

TEST_BATCH = 1000
LAST_EPOCHS = 10
HELD_OUT_SEED = 0
"""All runs that hold out images hold out the same ones."""


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(Config):
    """A run of image classification.

    Args:
        network: one of `rotationout.experiments.networks.NETWORKS`.
        network_options: keyword arguments of the network, besides noise and stages.
        noise_options: ``num_features="channels"`` is filled in for each place.
        stages: the stages that have the noise.
        norm: what normalises in the place of BatchNorm, of `rotationout.experiments.norms.LABELS`.
        ghost_batch: how many examples of a batch are normalised together, 0 for all.
        momentum: of SGD.
        held_out: train without this many of the training images, and test on them instead of the test set.
        studies: what is measured of the trained network, of `rotationout.experiments.studies.STUDIES`.
    """

    network: str
    network_options: dict[str, Any] = field(default_factory=dict)
    stages: tuple[int, ...] = (3,)
    norm: str = "batch"
    ghost_batch: int = 0
    milestones: tuple[int, ...] = (32_000, 48_000)
    momentum: float = 0.9
    held_out: int = 0
    studies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("network", self.network, NETWORKS)
        check_choice("norm", self.norm, NORMS)
        self._check_least(0, "momentum", "held_out", "ghost_batch")
        self._make_tuples("stages", "studies")
        for study in self.studies:
            check_choice("studies", study, STUDIES)
        if not set(self.stages) <= {1, 2, 3}:
            raise ValueError(f"stages are 1, 2 and 3, got {self.stages!r}")
        if self.ghost_batch == 1 or self.ghost_batch > self.batch:
            raise ValueError(
                f"ghost_batch must be 0, for the whole batch, or 2 to batch = {self.batch} examples, got "
                f"{self.ghost_batch!r}"
            )
        if self.ghost_batch and self.norm == "group":
            raise ValueError(
                f"norm = 'group' normalises every example alone: ghost_batch must be 0, got {self.ghost_batch!r}"
            )


def load_images(config: ClassificationConfig, data: Path, device: torch.device) -> tuple[Images, Images]:
    """The images to learn from and to test on."""
    train = cifar.load(data, "train")
    if config.held_out:
        train, test = train.split(config.held_out, HELD_OUT_SEED)
    else:
        test = cifar.load(data, "test")
    return train.to(device), test.to(device)


def build_network(config: ClassificationConfig) -> nn.Module:
    """The network of a config, with its noise in place; initial weights by torch's default generator."""

    def noise(channels: int) -> nn.Module:
        options = {k: channels if v == "channels" else v for k, v in config.noise_options.items()}
        return make_noise(config.noise, config.p, **options)

    network = NETWORKS[config.network](noise=noise, stages=config.stages, **config.network_options)
    return normalized(network, config.norm, config.batch, config.ghost_batch)


class Classification(Run):
    """A run of image classification.

    Args:
        config: what to run.
        images: those to learn from and those to test on, on the device.
        device: where.
    """

    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig, images: tuple[Images, Images], device: torch.device) -> None:
        self.train, self.examined = images
        if len(self.train) < config.batch:
            raise ValueError(f"there are {len(self.train)} training images, fewer than a batch of {config.batch}")
        _check_chunks(config)
        super().__init__(config, device)
        self.mean, self.std = cifar.statistics(device)
        self.plan = torch.empty(0, 4, dtype=torch.int64)
        self.chosen = torch.zeros(self.share.stop - self.share.start, 4, dtype=torch.int64, device=device)
        most = min(TEST_BATCH, -(-len(self.examined) // processes.size()))
        rows = next(n for n in range(most, 0, -1) if len(self.examined) % n == 0)
        self.tested = torch.arange(rows, device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self._examine = self.action(self._count_correct)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training images; what is left over waits for another epoch."""
        return len(self.train) // self.config.batch

    @property
    def result(self) -> dict[str, float]:
        """Best test accuracy of an epoch, and the mean of the last ten, in per cent."""
        curve = self.curves["test_curve"]
        return {"best_top1": 100 * max(curve), "last10_top1": 100 * statistics.fmean(curve[-LAST_EPOCHS:])}

    @property
    def facts(self) -> dict[str, Any]:
        """What the studies of the config find. One that fails must not cost the run its record: that says why."""
        found: dict[str, Any] = {}
        for name in self.config.studies:
            try:
                with self.at_work():
                    found[name] = STUDIES[name](self)
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
        return found

    @property
    def status(self) -> str:
        """The last test accuracy."""
        return f"{100 * self.curves['test_curve'][-1]:.1f} %" if self.curves else ""

    @property
    def summary(self) -> str:
        """Best and last test accuracy."""
        result = self.result
        return f"best {result['best_top1']:.2f} %, mean of the last 10 epochs {result['last10_top1']:.2f} %"

    def build_network(self) -> nn.Module:
        """In the layout that convolutions are fastest in."""
        return build_network(self.config).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def build_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        config = self.config
        return torch.optim.SGD(
            self.network.parameters(),
            self.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which are alike."""
        blocks: nn.Module = self.network.get_submodule("stages")
        return blocks.children()

    def begin_epoch(self) -> None:
        """A new order of the training images, and for each how it will be cut out and mirrored."""
        order = torch.randperm(len(self.train), generator=self.shuffler)
        self.plan = _plan(order, self.shuffler).to(self.device)

    def take_batch(self, place: int) -> None:
        """Which images are next; they are on the device already."""
        batch = self.config.batch
        self.chosen.copy_(self.plan[place * batch : (place + 1) * batch][self.share])

    def batch_loss(self) -> Tensor:
        """Cross-entropy of the chosen images."""
        images = self.chosen[:, 0]
        logits = self._logits(cifar.augment(self.train.pixels[images], self.chosen[:, 1:]))
        return F.cross_entropy(logits.float(), self.train.labels[images])

    def test(self) -> dict[str, float]:
        """The fraction of test images that is told right; every process looks at some of them."""
        rows = len(self.tested)
        self.correct.zero_()
        for start in range(processes.rank() * rows, len(self.examined), processes.size() * rows):
            self.tested.copy_(torch.arange(start, start + rows, device=self.device))
            self._examine()
        processes.sum_(self.correct)
        return {"test_curve": self.correct.item() / len(self.examined)}

    def state(self) -> dict[str, Any]:
        """With the plan of this epoch."""
        return {**super().state(), "plan": self.plan.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        state = _brought_up_to_date(state)
        super().restore(state)
        self.plan = state["plan"].to(self.device)

    @torch.no_grad()
    def _count_correct(self) -> None:
        self.network.eval()
        with self.autocast():
            logits = self._logits(self.examined.pixels[self.tested])
        self.correct += (logits.argmax(1) == self.examined.labels[self.tested]).sum()

    def prepare(self, pixels: Tensor) -> Tensor:
        """What the network is given for bytes of images."""
        return cifar.normalize(pixels, self.mean, self.std).contiguous(memory_format=torch.channels_last)

    def _logits(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.network(self.prepare(pixels))
        return logits


def _check_chunks(config: ClassificationConfig) -> None:
    """Layers that normalise chunks of a batch see a process's share of it: they cannot be synchronised."""
    chunked = config.norm in ("cross", "poly") or config.ghost_batch > 0
    if processes.size() > 1 and config.sync_batchnorm and chunked:
        raise ValueError(
            f"norm = {config.norm!r} with ghost_batch = {config.ghost_batch} normalises within a process; with "
            f"{processes.size()} of them sync_batchnorm must be False, got True"
        )


def _plan(order: Tensor, generator: torch.Generator) -> Tensor:
    """What an epoch learns from: which image, and its cut, (images, 4)."""
    return torch.cat([order.unsqueeze(1), cifar.draw_cuts(len(order), generator)], dim=1)


def _brought_up_to_date(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a run that was stopped before processes could share one: it goes on, with other cuts."""
    if "plan" in state:
        return state
    plan = _plan(state["order"], torch.Generator().manual_seed(state["step"]))
    curves = state["curves"] if "curves" in state else {"test_curve": state["curve"]}  # there was one task once
    return {**state, "curves": curves, "numbers": [state["numbers"]], "plan": plan}
