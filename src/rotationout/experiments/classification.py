"""Training runs of Table 1: image classification on CIFAR-100, which is held, cropped and mirrored on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..registry import noise as make_noise
from ..strength import check_choice, check_rate
from . import cifar, processes
from .cifar import Images
from .classifier import Classifier, ClassifierConfig
from .narrow.layers import KERNELS
from .networks import NETWORKS
from .norms import LABELS as NORMS
from .norms import normalized
from .pixels import Normalize
from .sources import Held
from .studies import STUDIES
from .vision import VisionConfig, channels_last

__all__ = ["Classification", "ClassificationConfig", "build_network", "load_images"]

HELD_OUT_SEED = 0
"""The seed that chooses held-out images: the same ones in every run."""
SUBSET_SEED = 1
"""The seed that chooses a subset of the training images, likewise."""
NARROW = ("resnet20", "resnet110")
"""Networks with few channels, which ``kernels="fused"`` is for."""
OWN_OPTIONS = ("noise", "stages", "fused")
"""The options of networks that other fields of a config set."""
OPTIMIZERS = ("sgd", "adamw")
WITHOUT_BATCHNORM = ("mlp", "vit")
"""Networks without BatchNorm, so that there is nothing to replace, and no variance of it to study."""


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(ClassifierConfig):
    """A run on CIFAR-100.

    Args:
        network: the network to train.
        stages: the stages of the network that get noise, counted from 1.
        norm: the kind of normalisation layers.
        ghost_batch: how many examples of a batch are normalised together, 0 for the whole batch.
        dropout: drop probability of an element-wise Dropout that follows the noise wherever it is placed.
        optimizer: ``adamw`` (Loshchilov and Hutter 2019) has momentum of its own, 0.9.
        held_out: hold this many training images out, and test on them instead of the test set.
        subset: train on only this many of the training images, the same ones in every run; 0 for all.
        kernels: ``fused`` runs the convolutions and BatchNorm (with the sum and the ReLU after it) of a ResNet in
            Triton kernels for few channels, with which libraries are slow (`rotationout.experiments.narrow`). Results
            differ by rounding only. BatchNorm that several processes share stays torch's. No effect on a CPU.
        studies: what to measure of the trained network, for its record.
    """

    network: str
    stages: tuple[int, ...] = (3,)
    norm: str = "batch"
    ghost_batch: int = 0
    dropout: float = 0.0
    milestones: tuple[int, ...] = (32_000, 48_000)
    optimizer: str = "sgd"
    held_out: int = 0
    subset: int = 0
    kernels: str = field(default="torch", compare=False)
    studies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("network", self.network, NETWORKS)
        check_choice("norm", self.norm, NORMS)
        check_choice("kernels", self.kernels, KERNELS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_rate(self.dropout, "dropout")
        self._check_least(0, "held_out", "subset", "ghost_batch")
        self._make_tuples("stages", "studies")
        for study in self.studies:
            check_choice("studies", study, STUDIES)
        known = [name for name in signature(NETWORKS[self.network]).parameters if name not in OWN_OPTIONS]
        for option in self.network_options:
            check_choice(f"network_options of {self.network!r}", option, known)
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
        if self.optimizer == "adamw" and self.momentum != VisionConfig.momentum:
            raise ValueError(
                f"momentum is SGD's: with optimizer = 'adamw' leave it at {VisionConfig.momentum}, got "
                f"{self.momentum!r}"
            )
        of_batchnorm = {
            "norm": self.norm != "batch",
            "ghost_batch": self.ghost_batch > 0,
            "studies": not set(self.studies) <= {"coadaptation"},
        }
        for name, given in of_batchnorm.items():
            if given and self.network in WITHOUT_BATCHNORM:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} is for networks with BatchNorm; network = {self.network!r} has "
                    "none: leave it out"
                )
        if self.kernels == "fused" and self.network not in NARROW:
            raise ValueError(
                f"kernels = 'fused' is for networks with few channels, {' and '.join(NARROW)}; network = "
                f"{self.network!r} needs kernels = 'torch'"
            )


def load_images(config: ClassificationConfig, data: Path, device: torch.device) -> tuple[Images, Images]:
    """The training images and the test images of a config, on the device."""
    train = cifar.load(data, "train")
    if config.held_out:
        train, test = train.split(config.held_out, HELD_OUT_SEED)
    else:
        test = cifar.load(data, "test")
    if config.subset > len(train):
        raise ValueError(f"subset must be at most {len(train)}, the number of training images, got {config.subset}")
    if config.subset:
        _, train = train.split(config.subset, SUBSET_SEED)
    return train.to(device), test.to(device)


def build_network(config: ClassificationConfig) -> nn.Module:
    """The network of a config with its noise; torch's default generator draws the initial weights."""

    def noise(channels: int) -> nn.Module:
        made = make_noise(config.noise, config.p, **config.options_at(channels))
        return nn.Sequential(made, nn.Dropout(config.dropout)) if config.dropout else made

    options = {**config.network_options, "fused": True} if config.kernels == "fused" else config.network_options
    network = NETWORKS[config.network](noise=noise, stages=config.stages, **options)
    return normalized(network, config.norm, config.batch, config.ghost_batch)


class Classification(Classifier[Images]):
    """A run on CIFAR-100.

    Args:
        config: what to run.
        images: the training images and the test images, on the device.
        device: the device to train on.
    """

    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig, images: tuple[Images, Images], device: torch.device) -> None:
        _check_chunks(config)
        self.prepare = Normalize(device, cifar.MEAN, cifar.STD)
        super().__init__(config, *images, device)

    @property
    def facts(self) -> dict[str, Any]:
        """The results of the config's studies. A study that fails does not cost the run its record."""
        found: dict[str, Any] = {}
        for name in self.config.studies:
            try:
                with self.execution_context():
                    found[name] = STUDIES[name](self)
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
        return found

    def build_network(self) -> nn.Module:
        """The network of the config, in channels_last."""
        return channels_last(build_network(self.config))

    def build_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum, or AdamW."""
        if self.config.optimizer == "sgd":
            return super().build_optimizer()
        return torch.optim.AdamW(
            self.network.parameters(),
            self.rate,
            weight_decay=self.config.weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )

    def build_source(self, images: Images, rows: int) -> CifarSource:
        """Batches of ``rows`` of these images."""
        return CifarSource(images, rows, self.prepare)

    def compile(self) -> None:
        """Compile the residual blocks, see `Run.compile`; an error with fused kernels, which it would replace."""
        if self.config.kernels == "fused":
            raise ValueError(
                "--compile is for torch's kernels, and would not use those of kernels='fused': leave --compile out, "
                "or add --kernels torch"
            )
        super().compile()

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which have the same shapes, and what follows them in a WideResNet."""
        blocks, pool = self.network.get_submodule("stages").children(), getattr(self.network, "pool", None)
        return [*blocks] if pool is None else [*blocks, pool]


class CifarSource(Held):
    """Batches of CIFAR's images, cropped and mirrored on the device.

    Args:
        images: all images, on the device.
        rows: images per batch.
        prepare: turns their bytes into the network's input.
    """

    def __init__(self, images: Images, rows: int, prepare: Callable[[Tensor], Tensor]) -> None:
        super().__init__(rows, 4, images.pixels.device)
        self.images, self.prepare = images, prepare

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, generator: torch.Generator) -> Tensor:
        """The number of each image and its random crop, (images, 4)."""
        order = torch.randperm(len(self), generator=generator)
        return torch.cat([order.unsqueeze(1), cifar.draw_cuts(len(self), generator)], dim=1)

    def fixed_plan(self) -> Tensor:
        """The middle of every padded image: the image as it is."""
        middle = torch.tensor([cifar.PADDING, cifar.PADDING, 0]).expand(len(self), 3)
        return torch.cat([torch.arange(len(self)).unsqueeze(1), middle], dim=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The current batch, cropped and mirrored: the network's input, and labels."""
        pixels = cifar.augment(self.images.pixels[self.chosen[:, 0]], self.chosen[:, 1:])
        return self.prepare(pixels), self.labels_of(self.images.labels)


def _check_chunks(config: ClassificationConfig) -> None:
    """Refuse sync_batchnorm for layers that normalise chunks of a batch: they see one process's share of it only."""
    chunked = config.norm in ("cross", "poly") or config.ghost_batch > 0
    if processes.size() > 1 and config.sync_batchnorm and chunked:
        raise ValueError(
            f"norm = {config.norm!r} with ghost_batch = {config.ghost_batch} normalises within a process; with "
            f"{processes.size()} of them sync_batchnorm must be False, got True"
        )
