"""The base of all image classification runs (Tables 1 and 2): cross-entropy loss, and test accuracy in per cent."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import processes
from .sources import NO_IMAGE
from .vision import Data, VisionConfig, VisionRun

__all__ = ["Classifier", "ClassifierConfig"]

LAST_EPOCHS = 10
"""A result is the best epoch, and the mean of so many last ones."""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(VisionConfig):
    """A run of image classification.

    Args:
        network_options: further keyword arguments of the network.
    """

    network_options: dict[str, Any] = field(default_factory=dict)


class Classifier(VisionRun[Data]):
    """A run of image classification. A subclass builds the network, and the source of its batches.

    Args:
        config: what to run.
        train: the training images.
        test: the test images.
        device: the device to train on.
    """

    config: ClassifierConfig
    curve_names: ClassVar[dict[int, str]] = {1: "test_curve"}
    """The k of every top-k accuracy that is measured, and the name of its curve in the record."""

    def __init__(self, config: ClassifierConfig, train: Data, test: Data, device: torch.device) -> None:
        super().__init__(config, train, test, device)
        self.counts = torch.zeros(1 + len(self.curve_names), dtype=torch.int64, device=device)
        self._count_correct_graph = self.action(self._count_correct)

    @property
    def result(self) -> dict[str, float]:
        """The best test accuracy of an epoch, and the mean over the last ten epochs, in per cent."""
        found = {}
        for guesses, name in self.curve_names.items():
            curve = self.curves[name]
            found[f"best_top{guesses}"] = 100 * max(curve)
            found[f"last10_top{guesses}"] = 100 * statistics.fmean(curve[-LAST_EPOCHS:])
        return found

    @property
    def status(self) -> str:
        """The last test accuracy."""
        return f"{100 * self.curves['test_curve'][-1]:.1f} %" if self.curves else ""

    @property
    def summary(self) -> str:
        """The best test accuracy, and the mean over the last ten epochs, in a line."""
        result = self.result
        return f"best {result['best_top1']:.2f} %, mean of the last 10 epochs {result['last10_top1']:.2f} %"

    def batch_loss(self) -> Tensor:
        """Mean cross-entropy over the images of the current batch; rows that are `NO_IMAGE` do not count."""
        images, labels = self.train_source.batch()
        logits: Tensor = self.network(images)
        total = F.cross_entropy(logits.float(), labels, ignore_index=NO_IMAGE, reduction="sum")
        return total / (labels != NO_IMAGE).sum().clamp(min=1)

    def test(self) -> dict[str, float]:
        """The fraction of test images classified correctly; the processes share the test images."""
        self.counts.zero_()
        for _ in self.test_batches():
            self._count_correct_graph()
        processes.sum_(self.counts)
        seen, *right = self.counts.tolist()
        return {name: count / max(1, seen) for name, count in zip(self.curve_names.values(), right, strict=True)}

    @torch.no_grad()
    def _count_correct(self) -> None:
        """Add to ``counts`` the number of images in the current test batch, and the correct ones for each top-k."""
        self.network.eval()
        images, labels = self.test_source.batch()
        with self.autocast():
            logits: Tensor = self.network(images)
        found = [(labels != NO_IMAGE).sum()]
        for guesses in self.curve_names:
            best = logits.argmax(1, keepdim=True) if guesses == 1 else logits.topk(min(guesses, logits.size(1))).indices
            found.append((best == labels.unsqueeze(1)).sum())
        self.counts += torch.stack(found)
