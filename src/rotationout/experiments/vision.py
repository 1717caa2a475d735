"""The base of all runs on images (Tables 1 to 3): SGD, sources of batches, tests shared by processes, bad images."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sized
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from . import processes
from .config import Config
from .problems import Problem
from .run import Run
from .sources import NO_IMAGE, Source

__all__ = ["VisionConfig", "VisionRun", "channels_last"]

Data = TypeVar("Data", bound=Sized)


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """A run on images.

    Args:
        noise_options: further keyword arguments of the noise; the value ``"channels"``, as in
            ``num_features="channels"``, stands for the number of channels at each place.
        momentum: momentum of SGD.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_least(0, "momentum")

    def options_at(self, channels: int) -> dict[str, Any]:
        """The options of the noise at a place with so many channels."""
        return {name: channels if value == "channels" else value for name, value in self.noise_options.items()}


class VisionRun(Run, Generic[Data]):
    """A run on images. A subclass provides the network, the loss, the tests, and the source of its batches.

    Args:
        config: what to run.
        train: the training images.
        test: the test images.
        device: the device to train on.

    Attributes:
        train_source: the source of training batches.
        test_source: the source of test batches.
        plan: the plan of the current epoch, see `rotationout.experiments.sources`.
    """

    config: VisionConfig
    test_rows = 1000
    """Images per test batch, unless there are fewer."""

    def __init__(self, config: VisionConfig, train: Data, test: Data, device: torch.device) -> None:
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training images, fewer than a batch of {config.batch}")
        self.train_images, self.test_images = train, test
        super().__init__(config, device)
        self.train_source = self.build_source(train, self.share.stop - self.share.start)
        self.test_source = self.build_source(test, min(self.test_rows, -(-len(test) // processes.size())))
        self.plan = self.train_source.fixed_plan()[:0]

    @abc.abstractmethod
    def build_source(self, images: Data, rows: int) -> Source:
        """Build the source that makes batches of ``rows`` of these images."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of whole batches of training images; what is left over is not used in this epoch."""
        return len(self.train_images) // self.config.batch

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
        """Draw a plan: a new order of the training images, and a random crop for each.

        Before the first one, check the test images: otherwise the first test would find out, when the work is done.
        """
        if self.step == 0:
            self.test_source.check()
        self.plan = self.train_source.draw(self.shuffler)
        self._follow_plan()

    def _follow_plan(self) -> None:
        used = self.plan[: self.steps_per_epoch * self.config.batch]
        self.train_source.begin(used.unflatten(0, (-1, self.config.batch))[:, self.share])

    def take_batch(self, place: int) -> None:
        """Make batch number ``place`` the current one of ``train_source``."""
        self.train_source.take(place)

    def test_batches(self) -> Iterator[Tensor]:
        """Make each batch of this process's part of the test the current one of ``test_source``, and yield its rows.

        All batches have the same number of rows, and all processes the same number of batches: rows of `NO_IMAGE` fill
        them up.
        """
        plan, rows = self.test_source.fixed_plan(), self.test_source.rows
        filling = plan[:1].repeat(-len(plan) % (rows * processes.size()), 1)
        filling[:, 0] = NO_IMAGE
        mine = torch.cat([plan, filling]).unflatten(0, (-1, processes.size(), rows))[:, processes.rank()]
        self.test_source.begin(mine)
        for place, batch in enumerate(mine):
            self.test_source.take(place)
            yield batch

    def gather_problems(self) -> tuple[list[Problem], list[str]]:
        """The bad images, and the names of converted ones, that any process has read so far, without duplicates.

        All processes must call this at the same time.
        """
        sources = (self.train_source, self.test_source)
        problems = processes.gather([problem for source in sources for problem in source.problems])
        converted = processes.gather([name for source in sources for name in source.converted])
        each = {(problem.split, problem.name): problem for part in problems for problem in part}
        return [each[key] for key in sorted(each)], sorted({name for part in converted for name in part})

    def close(self) -> None:
        """Close both sources."""
        for source in (self.train_source, self.test_source):
            source.close()

    def state(self) -> dict[str, Any]:
        """The state of `Run`, with the plan of this epoch, and the images found to be bad or not in RGB."""
        problems, converted = self.gather_problems()
        found = {"problems": [asdict(problem) for problem in problems], "converted": converted}
        return {**super().state(), "plan": self.plan, **found}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; an error if there were more or fewer training images, as its plan does not fit."""
        if len(state["plan"]) not in (0, len(self.train_images)):
            raise ValueError(
                f"it has seen {len(state['plan'])} training images; now there are {len(self.train_images)}"
            )
        super().restore(state)
        self.plan = state["plan"]
        if len(self.plan):
            self._follow_plan()
        problems = [Problem(**problem) for problem in state["problems"]]
        for source in (self.train_source, self.test_source):
            source.problems = [problem for problem in problems if problem.split == source.split]
        self.train_source.converted = set(state["converted"])


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its weights in channels_last, in which convolutions are fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
