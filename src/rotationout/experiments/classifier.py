"""What all training runs of image classification share: cross-entropy, accuracy in per cent."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import processes
from .sources import NOBODY
from .vision import Data, VisionConfig, VisionRun

__all__ = ["Classifier", "ClassifierConfig"]

LAST_EPOCHS = 10


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(VisionConfig):
    """A run of image classification.

    Args:
        network_options: keyword arguments of the network, besides its noise.
    """

    network_options: dict[str, Any] = field(default_factory=dict)


class Classifier(VisionRun[Data]):
    """A run of image classification. A subclass says what its network is, and how a source is made of its images.

    Args:
        config: what to run.
        train: the images to learn from.
        test: those to test on.
        device: where.
    """

    config: ClassifierConfig
    curve_names: ClassVar[dict[int, str]] = {1: "test_curve"}
    """What is scored: the share of images whose class is among so many guesses, and what a record calls it."""

    def __init__(self, config: ClassifierConfig, train: Data, test: Data, device: torch.device) -> None:
        super().__init__(config, train, test, device)
        self.scored = torch.zeros(1 + len(self.curve_names), dtype=torch.int64, device=device)
        self._examine = self.action(self._score)

    @property
    def result(self) -> dict[str, float]:
        """Best test accuracy of an epoch, and the mean of the last ten, in per cent."""
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
        """Best and last test accuracy."""
        result = self.result
        return f"best {result['best_top1']:.2f} %, mean of the last 10 epochs {result['last10_top1']:.2f} %"

    def batch_loss(self) -> Tensor:
        """Cross-entropy of the present batch, the mean of its images; nobody counts for nothing."""
        images, labels = self.learnt.batch()
        logits: Tensor = self.network(images)
        total = F.cross_entropy(logits.float(), labels, ignore_index=NOBODY, reduction="sum")
        return total / (labels != NOBODY).sum().clamp(min=1)

    def test(self) -> dict[str, float]:
        """The fraction of test images that is told right; every process looks at some of them."""
        self.scored.zero_()
        for _ in self.test_batches():
            self._examine()
        processes.sum_(self.scored)
        seen, *right = self.scored.tolist()
        return {name: count / max(1, seen) for name, count in zip(self.curve_names.values(), right, strict=True)}

    @torch.no_grad()
    def _score(self) -> None:
        """Add up how many images were seen, and how many of them were told right with so many guesses."""
        self.network.eval()
        images, labels = self.tested.batch()
        with self.autocast():
            logits: Tensor = self.network(images)
        found = [(labels != NOBODY).sum()]
        for guesses in self.curve_names:
            best = logits.argmax(1, keepdim=True) if guesses == 1 else logits.topk(min(guesses, logits.size(1))).indices
            found.append((best == labels.unsqueeze(1)).sum())
        self.scored += torch.stack(found)
