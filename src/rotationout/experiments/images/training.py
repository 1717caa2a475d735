"""Training runs on folders of images."""

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

__all__ = ["ImageClassification", "ImageData", "Pictures", "load_pictures"]


class Pictures(Protocol):
    """The images of a split, wherever they are."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those that are known to be bad."""

    @property
    def converted(self) -> int:
        """How many are known not to be in RGB."""

    def __len__(self) -> int: ...

    def source(self, rows: int, device: torch.device) -> Source:
        """Batches of so many."""


@dataclass(frozen=True)
class ImageData:
    """What to learn from and what to test on, and the names of the classes."""

    train: Pictures
    test: Pictures
    classes: tuple[str, ...]


def load_pictures(config: ImagesConfig, data: Path, device: torch.device) -> ImageData:
    """The images in a folder with a folder for each split, or packed (`rotationout.experiments.images.files`)."""
    train, test = (open_split(data, split) for split in (config.train_split, config.test_split))
    check_classes(train, test)

    def pictures(files: Files) -> Pictures:
        if config.held:
            return hold(files, config.size, config.short_side, device)
        return LoadedImages(files, config.size, config.short_side)

    return ImageData(pictures(train), pictures(test), tuple(train.classes))


class ImageClassification(Classifier[Pictures]):
    """A run on a folder of images.

    Args:
        config: what to run.
        data: what to learn from and to test on.
        device: where.
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
        """What was learnt from and tested on, what was left out of it, and how fast it was learnt."""
        train, test = self.data.train, self.data.test
        problems, converted = self.met()
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
        """With as many outputs as there are classes."""
        return channels_last(build_network(self.config, len(self.data.classes)))

    def build_source(self, images: Pictures, rows: int) -> Source:
        """On the device or from the disk, as they are."""
        return images.source(rows, self.device)

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which are alike."""
        return residual_blocks(self.network)

    def begin_epoch(self) -> None:
        """With a look at the clock."""
        super().begin_epoch()
        self._begun = self.step, time.monotonic()

    def test(self) -> dict[str, float]:
        """With a look at the clock before it: all that was learnt is learnt by now, as the loss is known."""
        if self._begun is not None:  # a run that was resumed inside this epoch has not seen it begin
            step, then = self._begun
            self._rates.append(self.config.batch * (self.step - step) / (time.monotonic() - then))
            self._begun = None
        return super().test()
