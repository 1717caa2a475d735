"""What all training runs of image classification share: SGD, epochs by plan, accuracy in per cent."""

from __future__ import annotations

import abc
import statistics
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import processes
from .config import Config
from .run import Run
from .sources import NOBODY, Source

__all__ = ["Classifier", "ClassifierConfig"]

LAST_EPOCHS = 10
Data = TypeVar("Data", bound=Sized)


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(Config):
    """A run of image classification.

    Args:
        network_options: keyword arguments of the network, besides its noise.
        noise_options: ``num_features="channels"`` is filled in for each place.
        momentum: of SGD.
    """

    network_options: dict[str, Any] = field(default_factory=dict)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(0, "momentum")

    def options_at(self, channels: int) -> dict[str, Any]:
        """The options of the noise where there are so many channels."""
        return {name: channels if value == "channels" else value for name, value in self.noise_options.items()}


class Classifier(Run, Generic[Data]):
    """A run of image classification. A subclass says what its network is, and how a source is made of its images.

    Args:
        config: what to run.
        train: the images to learn from.
        test: those to test on.
        device: where.

    Attributes:
        plan: what this epoch learns from, see `rotationout.experiments.sources`.
    """

    config: ClassifierConfig
    curve_names: ClassVar[dict[int, str]] = {1: "test_curve"}
    """What is scored: the share of images whose class is among so many guesses, and what a record calls it."""
    test_rows = 1000

    def __init__(self, config: ClassifierConfig, train: Data, test: Data, device: torch.device) -> None:
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training images, fewer than a batch of {config.batch}")
        self.train, self.examined = train, test
        super().__init__(config, device)
        self.learnt = self.build_source(train, self.share.stop - self.share.start)
        self.tested = self.build_source(test, min(self.test_rows, -(-len(test) // processes.size())))
        self.plan = self.learnt.still()[:0]
        self.scored = torch.zeros(1 + len(self.curve_names), dtype=torch.int64, device=device)
        self._examine = self.action(self._score)

    @abc.abstractmethod
    def build_source(self, images: Data, rows: int) -> Source:
        """Batches of so many of these images."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training images; what is left over waits for another epoch."""
        return len(self.train) // self.config.batch

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

    def begin_epoch(self) -> None:
        """A new order of the training images, and for each how it will be cut out and mirrored."""
        self.plan = self.learnt.draw(self.shuffler)
        self._follow_plan()

    def _follow_plan(self) -> None:
        used = self.plan[: self.steps_per_epoch * self.config.batch]
        self.learnt.begin(used.unflatten(0, (-1, self.config.batch))[:, self.share])

    def take_batch(self, place: int) -> None:
        """The images that are next."""
        self.learnt.take(place)

    def batch_loss(self) -> Tensor:
        """Cross-entropy of the present batch."""
        images, labels = self.learnt.batch()
        logits: Tensor = self.network(images)
        return F.cross_entropy(logits.float(), labels)

    def test(self) -> dict[str, float]:
        """The fraction of test images that is told right; every process looks at some of them."""
        plan, rows = self.tested.still(), self.tested.rows
        filling = plan[:1].repeat(-len(plan) % (rows * processes.size()), 1)
        filling[:, 0] = NOBODY
        mine = torch.cat([plan, filling]).unflatten(0, (-1, processes.size(), rows))[:, processes.rank()]
        self.tested.begin(mine)
        self.scored.zero_()
        for place in range(len(mine)):
            self.tested.take(place)
            self._examine()
        processes.sum_(self.scored)
        seen, *right = self.scored.tolist()
        return {name: count / seen for name, count in zip(self.curve_names.values(), right, strict=True)}

    def state(self) -> dict[str, Any]:
        """With the plan of this epoch."""
        return {**super().state(), "plan": self.plan}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self.plan = state["plan"]
        if len(self.plan):
            self._follow_plan()

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


def channels_last(network: nn.Module) -> nn.Module:
    """In the layout that convolutions are fastest in."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
