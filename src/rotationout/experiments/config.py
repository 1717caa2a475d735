"""What decides a training run: one frozen, JSON-able config."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..strength import check_choice, check_rate
from .networks import NETWORKS

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run of image classification. Recipes return complete ones; a variant is `replace` with a field or two.

    Args:
        recipe: the table it belongs to.
        row: the row of that table.
        network: one of `rotationout.experiments.networks.NETWORKS`.
        network_options: keyword arguments of the network, besides noise and stages.
        noise: a kind of `rotationout.noise`.
        p: its drop probability.
        noise_options: keyword arguments of the noise. ``num_features="channels"`` is filled in for each place.
        stages: the stages that have it.
        ramp: steps over which p grows linearly, see `rotationout.Schedule.ramp`.
        steps: updates in all.
        batch: images of an update.
        learning_rate: at the start.
        milestones: steps at which it is divided by 10.
        momentum: of SGD.
        weight_decay: of SGD.
        held_out: train without this many of the training images, and test on them instead of the test set.
        precision: ``"bf16"`` (autocast) or ``"fp32"``.
        seed: of the initial weights, the order of the images, and the noise.
    """

    recipe: str
    row: str
    network: str
    network_options: dict[str, Any] = field(default_factory=dict)
    noise: str = "none"
    p: float = 0.0
    noise_options: dict[str, Any] = field(default_factory=dict)
    stages: tuple[int, ...] = (3,)
    ramp: int = 0
    steps: int = 64_000
    batch: int = 128
    learning_rate: float = 0.1
    milestones: tuple[int, ...] = (32_000, 48_000)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    held_out: int = 0
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.p)
        check_choice("network", self.network, NETWORKS)
        check_choice("precision", self.precision, ("bf16", "fp32"))
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("ramp", "held_out", "learning_rate", "momentum", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        object.__setattr__(self, "stages", tuple(self.stages))  # lists, if they come from JSON
        if not set(self.stages) <= {1, 2, 3}:
            raise ValueError(f"stages are 1, 2 and 3, got {self.stages!r}")
        object.__setattr__(self, "milestones", tuple(self.milestones))

    def replace(self, **changes: Any) -> Config:
        """The same config with some fields changed."""
        return dataclasses.replace(self, **changes)

    def rate_at(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        return self.learning_rate * 0.1 ** sum(step >= milestone for milestone in self.milestones)
