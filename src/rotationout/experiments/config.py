"""The config of a training run: one frozen, JSON-able dataclass. Each task subclasses it with fields of its own."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..strength import check_choice, check_rate

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PRECISIONS", "Config"]

PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields that every run has. Recipes return complete configs; `replace` makes a variant of one.

    A field that is added later needs a default under which old records keep their meaning. Fields that choose the
    kernels of a run, and not what it computes, have ``compare=False``: runs that differ in them alone are the same
    experiment and have the same record name; the record tells which kernels were used.

    Args:
        recipe: the table that the run belongs to.
        row: the row of that table.
        noise: the kind of noise, see `rotationout.noise`.
        p: the strength of the noise, as a drop probability.
        noise_options: further keyword arguments of the noise.
        ramp: number of steps at the start over which p grows linearly, see `rotationout.Schedule.ramp`.
        fade_out: number of steps at the end over which p falls linearly to zero, see `rotationout.Schedule.fade_out`.
        steps: total number of updates.
        batch: examples per update, over all processes.
        learning_rate: the learning rate after the warm-up, if there is one, and before the first milestone.
        milestones: steps at which the learning rate is multiplied by ``rate_factor``.
        rate_factor: the factor by which the learning rate is multiplied at each milestone.
        warmup: number of steps at the start over which the learning rate grows linearly (Goyal et al. 2017).
        weight_decay: weight decay of the optimizer.
        precision: bf16 and fp16 use autocast; fp16 also scales the loss, and needs a GPU.
        sync_batchnorm: if several processes share each batch, compute the batch statistics of BatchNorm and of centred
            noises over the whole batch, not over each process's share. The number of processes then changes only
            the noise that is drawn. No effect on a single process.
        seed: seed of the initial weights, the order of the examples and the noise.

    >>> config = Config(recipe="table", row="none", learning_rate=0.1, milestones=(100,))
    >>> config.rate_at(99), config.replace(rate_factor=0.5).rate_at(100)
    (0.1, 0.05)
    >>> [round(config.replace(warmup=4).rate_at(step), 3) for step in (0, 1, 2, 3, 4)]
    [0.025, 0.05, 0.075, 0.1, 0.1]
    """

    recipe: str
    row: str
    noise: str = "none"
    p: float = 0.0
    noise_options: dict[str, Any] = field(default_factory=dict)
    ramp: int = 0
    fade_out: int = 0
    steps: int = 64_000
    batch: int = 128
    learning_rate: float = 0.1
    milestones: tuple[int, ...] = ()
    rate_factor: float = 0.1
    warmup: int = 0
    weight_decay: float = 1e-4
    precision: str = "bf16"
    sync_batchnorm: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.p)
        check_choice("precision", self.precision, PRECISIONS)
        self._check_least(1, "steps", "batch")
        self._check_least(0, "ramp", "fade_out", "learning_rate", "rate_factor", "warmup", "weight_decay")
        self._make_tuples("milestones")
        if self.fade_out > self.steps:
            raise ValueError(f"fade_out must be at most steps = {self.steps}, got {self.fade_out!r}")

    def _check_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
            if value < least:
                bound = f"be at least {least}" if least else "not be negative"
                raise ValueError(f"{name} must {bound}, got {value!r}")

    def _make_tuples(self, *names: str) -> None:
        """Convert fields to tuples: they are lists if the config was read from JSON."""
        for name in names:
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def replace(self, **changes: Any) -> Self:
        """A copy of the config with some fields changed."""
        return dataclasses.replace(self, **changes)

    def rate_at(self, step: int) -> float:
        """The learning rate of update number ``step``, counted from 0."""
        rate = self.learning_rate * self.rate_factor ** sum(step >= milestone for milestone in self.milestones)
        return rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate
