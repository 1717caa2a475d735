"""Training runs of Table 2, on a folder of images."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from ..classifier import Classifier
from ..problems import Problem, facts
from ..resnet import residual_blocks
from ..sources import Source
from ..vision import channels_last
from .config import ImagesConfig
from .files import Files, check_classes, open_split
from .held import hold
from .loaded import LoadedImages
from .network import build_network

__all__ = ["ImageClassification", "ImageData", "ImageSplit", "load_image_data"]


class ImageSplit(Protocol):
    """The images of a split: `HeldImages` or `LoadedImages`."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Images known to be bad before training."""

    @property
    def converted(self) -> int:
        """The number of images known not to be in RGB before training."""

    def __len__(self) -> int: ...

    def source(self, rows: int, device: torch.device) -> Source:
        """The source of batches of ``rows`` images."""


@dataclass(frozen=True)
class ImageData:
    """The training images, the test images and the names of the classes."""

    train: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]


def load_image_data(config: ImagesConfig, data: Path, device: torch.device) -> ImageData:
    """Open the images of a config, in folders or packed (`rotationout.experiments.images.files`)."""
    train, test = (open_split(data, split) for split in (config.train_split, config.test_split))
    check_classes(train, test)

    def opened(files: Files) -> ImageSplit:
        if config.held:
            return hold(files, config.size, config.short_side, device)
        return LoadedImages(files, config.size, config.short_side)

    return ImageData(opened(train), opened(test), tuple(train.classes))


class ImageClassification(Classifier[ImageSplit]):
    """A run on a folder of images.

    Args:
        config: what to run.
        data: the training images and the test images.
        device: the device to train on.
    """

    config: ImagesConfig
    curve_names: ClassVar[dict[int, str]] = {1: "test_curve", 5: "top5_curve"}
    test_rows = 500

    def __init__(self, config: ImagesConfig, data: ImageData, device: torch.device) -> None:
        self.data = data
        self._begun: tuple[int, float] | None = None
        self._rates: list[float] = []
        super().__init__(config, data.train, data.test, device)

    @property
    def facts(self) -> dict[str, Any]:
        """The numbers of images and classes, what was left out, and the training speed."""
        train, test = self.data.train, self.data.test
        problems, converted = self.gather_problems()
        bad = Counter(problem.split for problem in problems)
        return {
            "train_images": len(train) - bad[self.config.train_split],
            "test_images": len(test) - bad[self.config.test_split],
            "classes": len(self.data.classes),
            **facts([*train.problems, *test.problems, *problems]),
            "converted": train.converted + test.converted + len(converted),
            "images_per_second": round(statistics.median(self._rates)) if self._rates else None,
        }

    def build_network(self) -> nn.Module:
        """ResNet-50 with its noise, an output for every class, in channels_last."""
        return channels_last(build_network(self.config, len(self.data.classes)))

    def build_source(self, images: ImageSplit, rows: int) -> Source:
        """The source of these images, held on the device or read from the disk."""
        return images.source(rows, self.device)

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which have the same shapes."""
        return residual_blocks(self.network)

    def begin_epoch(self) -> None:
        """Draw the plan of an epoch, and note the time."""
        super().begin_epoch()
        self._begun = self.step, time.monotonic()

    def test(self) -> dict[str, float]:
        """Measure the training speed of the epoch, whose work is done as its loss is known; then test."""
        if self._begun is not None:  # None if the run was resumed within this epoch
            step, then = self._begun
            self._rates.append(self.config.batch * (self.step - step) / (time.monotonic() - then))
            self._begun = None
        return super().test()
