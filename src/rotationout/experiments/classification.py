"""A training run of image classification: data, network, updates and tests on one device, on a GPU in CUDA graphs.

Nothing of a step but its launch happens on the host: images, their augmentation, the loss and the accuracy stay on the
device until an epoch ends. Several runs can so share a GPU, each on a stream of its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..nn.base import Noise
from ..placing import Schedule
from ..registry import noise as make_noise
from . import cifar
from .cifar import Images
from .config import Config
from .networks import NETWORKS
from .numbers import Numbers

__all__ = ["Run", "build_network"]

TEST_BATCH = 1000
LAST_EPOCHS = 10


def build_network(config: Config) -> nn.Module:
    """The network of a config, with its noise in place; initial weights by torch's default generator."""

    def noise(channels: int) -> nn.Module:
        options = {k: channels if v == "channels" else v for k, v in config.noise_options.items()}
        return make_noise(config.noise, config.p, **options)

    return NETWORKS[config.network](noise=noise, stages=config.stages, **config.network_options)


class Run:
    """One training run, from its first step or from where a checkpoint left it.

    Args:
        config: what to run.
        train: the images to learn from, on the device.
        test: the images to test on, on the device.
    """

    def __init__(self, config: Config, train: Images, test: Images) -> None:
        self.config, self.train, self.test = config, train, test
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training images, fewer than a batch of {config.batch}")
        device = self.device = train.pixels.device
        self.numbers = Numbers(config.seed, device)
        self.mean, self.std = cifar.statistics(device)
        with self.numbers.initial():
            self.network = build_network(config)
        self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        noises = [module for module in self.network.modules() if isinstance(module, Noise)]
        if config.ramp and config.p and not noises:
            raise ValueError(f"ramp = {config.ramp}: the strength of {config.noise!r} cannot be changed while it runs")
        self.schedule = Schedule.ramp(noises, steps=config.ramp) if config.ramp and noises else None
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            self.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.shuffler = torch.Generator().manual_seed(config.seed)
        self.step, self.order = 0, torch.empty(0, dtype=torch.int64)
        self.curve: list[float] = []
        self.losses: list[float] = []
        self.loss = torch.zeros((), device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.chosen = torch.zeros(config.batch, dtype=torch.int64, device=device)
        rows = next(n for n in range(min(TEST_BATCH, len(test)), 0, -1) if len(test) % n == 0)
        self.tested = torch.arange(rows, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._update: Callable[[], None] = self._learn
        self._examine: Callable[[], None] = self._count_correct
        if self.stream is not None:
            self._update, self._examine = self._capture(self._learn), self._capture(self._count_correct)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training images; what is left over waits for another epoch."""
        return len(self.train) // self.config.batch

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.config.steps

    @property
    def result(self) -> dict[str, float]:
        """Best test accuracy of an epoch, and the mean of the last ten, in per cent."""
        last = self.curve[-LAST_EPOCHS:]
        return {"best_top1": 100 * max(self.curve), "last10_top1": 100 * statistics.fmean(last)}

    def advance(self) -> None:
        """One step, and a test if it ends an epoch or the run."""
        config = self.config
        place = self.step % self.steps_per_epoch
        if place == 0:
            self.order = torch.randperm(len(self.train), generator=self.shuffler).to(self.chosen.device)
        with self.numbers.used(), self._on_stream():
            self.chosen.copy_(self.order[place * config.batch : (place + 1) * config.batch])
            if self.step == 0 or config.rate_at(self.step) != config.rate_at(self.step - 1):
                self.rate.fill_(config.rate_at(self.step))
            self._update()
            self.step += 1
            if self.step < config.ramp and self.schedule is not None:
                self.schedule.step()
            if place + 1 == self.steps_per_epoch or self.finished:
                self._end_epoch(place + 1)

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on, as tensors and plain types."""
        if self.stream is not None:
            self.stream.synchronize()
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": {k: v for k, v in self.optimizer.state_dict().items() if k == "state"},
            "order": self.order.cpu(),
            "shuffler": self.shuffler.get_state(),
            "numbers": self.numbers.state(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "loss": self.loss.cpu(),
            "losses": self.losses,
            "curve": self.curve,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`: on a CPU exactly as if the run had never stopped."""
        self.step, self.losses, self.curve = state["step"], state["losses"], state["curve"]
        self.network.load_state_dict(state["network"])
        for parameter, kept in zip(self.network.parameters(), state["optimizer"]["state"].values(), strict=False):
            mine = self.optimizer.state[parameter]
            if mine.get("momentum_buffer") is None:
                mine["momentum_buffer"] = torch.zeros_like(parameter)
            mine["momentum_buffer"].copy_(kept["momentum_buffer"])
        self.order = state["order"].to(self.chosen.device)
        self.shuffler.set_state(state["shuffler"])
        self.loss.copy_(state["loss"])
        self.rate.fill_(self.config.rate_at(max(self.step - 1, 0)))
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.numbers.restore(state["numbers"])
        if self.stream is not None:
            torch.cuda.synchronize(self.device)

    def _learn(self) -> None:
        self.network.train()
        images = cifar.normalize(cifar.augment(self.train.pixels[self.chosen]), self.mean, self.std)
        with self._autocast():
            logits = self.network(images.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits.float(), self.train.labels[self.chosen])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss += loss.detach()

    @torch.no_grad()
    def _count_correct(self) -> None:
        self.network.eval()
        images = cifar.normalize(self.test.pixels[self.tested], self.mean, self.std)
        with self._autocast():
            logits = self.network(images.contiguous(memory_format=torch.channels_last))
        self.correct += (logits.argmax(1) == self.test.labels[self.tested]).sum()

    def _end_epoch(self, steps: int) -> None:
        rows = len(self.tested)
        self.correct.zero_()
        for start in range(0, len(self.test), rows):
            self.tested.copy_(torch.arange(start, start + rows, device=self.tested.device))
            self._examine()
        loss = self.loss.item() / steps
        self.loss.zero_()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss of {self.config.recipe}, row {self.config.row!r}, seed {self.config.seed} is {loss} at step "
                f"{self.step}; try precision='fp32' or a smaller learning rate"
            )
        self.losses.append(loss)
        self.curve.append(self.correct.item() / len(self.test))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def _capture(self, action: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of ``action``. What its trial runs change is put back."""
        kept = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        numbers = self.numbers.state()
        with self.numbers.used():
            with self._on_stream():
                for _ in range(3):
                    action()
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                action()
        self.network.load_state_dict(kept)
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        self.loss.zero_()
        self.numbers.restore(numbers)
        torch.cuda.synchronize(self.device)
        return graph.replay
