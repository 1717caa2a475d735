"""What decides a training run: one frozen, JSON-able config. Each task adds its own fields to those that all have."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..strength import check_choice, check_rate

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PRECISIONS", "Config"]

PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every run has. Recipes return complete configs of a task; a variant is `replace` with a field or two.

    Fields that are added later need a default under which old records mean what they meant. Fields that say by which
    kernels a run is computed, and not what, are not compared: runs that differ in them alone are the same experiment,
    with the same name, and a record tells which they were.

    Args:
        recipe: the table it belongs to.
        row: the row of that table.
        noise: a kind of `rotationout.noise`.
        p: its drop probability.
        noise_options: keyword arguments of the noise.
        ramp: steps over which p grows linearly, see `rotationout.Schedule.ramp`.
        fade_out: steps at the end over which p falls linearly, see `rotationout.Schedule.fade_out`.
        steps: updates in all.
        batch: examples of an update.
        learning_rate: that of the first steps, or of those after the warm-up.
        milestones: steps at which the learning rate is multiplied by ``rate_factor``.
        rate_factor: what the learning rate is multiplied by at each of the milestones.
        warmup: steps over which the learning rate first grows linearly (Goyal et al. 2017).
        weight_decay: of the optimizer.
        precision: bf16 and fp16 are by autocast, the latter with scaled losses and on a GPU only.
        sync_batchnorm: if several processes share the batches, take BatchNorm's statistics and the means that noises
            turn about over all of them, not over a process's share: the number of processes then changes nothing but
            the noise that is drawn. Alone it means nothing.
        seed: of the initial weights, the order of the examples, and the noise.

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
            if not value >= least:  # NaN is not either
                bound = f"be at least {least}" if least else "not be negative"
                raise ValueError(f"{name} must {bound}, got {value!r}")

    def _make_tuples(self, *names: str) -> None:
        """Fields that are lists if they come from JSON."""
        for name in names:
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def replace(self, **changes: Any) -> Self:
        """The same config with some fields changed."""
        return dataclasses.replace(self, **changes)

    def rate_at(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        rate = self.learning_rate * self.rate_factor ** sum(step >= milestone for milestone in self.milestones)
        return rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate
