"""`Schedule`: change the strength of noises while a model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from .. import strength
from ..nn.base import Noise
from ._report import Report
from ._slot import check_attached

if TYPE_CHECKING:
    from typing_extensions import Self

    _Noises = nn.Module | Report | Iterable[nn.Module]

__all__ = ["Schedule"]

_MEMORY = "_scheduled"
"""An attribute of scheduled noises, kept by copies: the p that the noise was given, and what a schedule made of it."""


class Schedule:
    """Sets the strength of noises step by step: p = factor(step) times the p that the noise was given.

    Call `step` once after every optimizer step. A compiled model follows without recompiling, except once when p
    becomes exactly zero or stops being zero (`early`, `late`, `fade_out`): noise that is off costs nothing.

    p is not part of a model's state_dict: save ``schedule.state_dict()`` too. To resume, build model and schedule as
    before and load both. A trainer that counts its steps can say where it is instead: ``schedule.step(to=…)``.

    A new schedule of the same noises replaces the one before: it starts from the p that they were given, not from what
    the other schedule has made of it. A p that is set by hand in between is a new p.

    Args:
        noises: a model, all of whose `rotationout` layers are scheduled; the report of `rotationout.insert`; modules
            with a ``p``; or another schedule, whose factor is multiplied by this one. (Torch's own Dropout can be given
            as a module, but a compiled model then recompiles at every change.)
        factor: a function of the step, which counts from 0.

    >>> import rotationout as ro
    >>> layer = ro.RotationOut(0.5)
    >>> schedule = ro.Schedule.ramp(layer, steps=4)
    >>> for _ in range(5):
    ...     print(layer.p, end=" ")
    ...     schedule.step()
    0.125 0.25 0.375 0.5 0.5

    >>> layer = ro.RotationOut(0.5)
    >>> schedule = ro.Schedule.fade_out(ro.Schedule.ramp(layer, steps=2), start=3, steps=2)
    >>> for _ in range(6):
    ...     print(layer.p, end=" ")
    ...     schedule.step()
    0.25 0.5 0.5 0.5 0.25 0.0
    """

    noises: list[Any]
    base: list[float]
    factor: Callable[[int], float]

    def __init__(self, noises: _Noises | Schedule, factor: Callable[[int], float]) -> None:
        if not callable(factor):
            raise TypeError(f"factor must be a function of the step, got {type(factor).__name__} {factor!r}")
        if isinstance(noises, Schedule):
            first = noises.factor
            self.noises, self.base = noises.noises, list(noises.base)
            self.factor = _Product(first, factor)
        else:
            self.noises, self.factor = _check_noises(noises), factor
            self.base = [_given(noise) for noise in self.noises]
        self.last_step = 0
        self._set(0, self.base)

    def __repr__(self) -> str:
        rates = sorted({float(noise.p) for noise in self.noises}) or [0.0]
        p = f"{rates[0]:.3g}" + (f" to {rates[-1]:.3g}" if len(rates) > 1 else "")
        count = f"{len(self.noises)} layer{'' if len(self.noises) == 1 else 's'}"
        return f"{type(self).__name__}(step {self.last_step}, p now {p} over {count})"

    @classmethod
    def constant(cls, noises: _Noises | Schedule) -> Self:
        """Keep the strength that the noises were given."""
        return cls(noises, _constant)

    @classmethod
    def ramp(cls, noises: _Noises | Schedule, *, steps: int) -> Self:
        """Grow linearly over the first ``steps`` steps; the authors' code took 1,000 to 2,000.

        It starts at 1 / steps and not at zero, so that a compiled model has one graph.
        """
        steps = strength.check_integer("steps", steps, 1)
        return cls(noises, partial(_ramp, steps))

    @classmethod
    def early(cls, noises: _Noises | Schedule, *, until: int) -> Self:
        """Switch noise off at step ``until`` ("early dropout", Liu et al. 2023)."""
        until = strength.check_integer("until", until, 0)
        return cls(noises, partial(_early, until))

    @classmethod
    def late(cls, noises: _Noises | Schedule, *, start: int) -> Self:
        """Switch noise on at step ``start`` ("late dropout", Liu et al. 2023)."""
        start = strength.check_integer("start", start, 0)
        return cls(noises, partial(_late, start))

    @classmethod
    def fade_out(cls, noises: _Noises | Schedule, *, steps: int, start: int = 0) -> Self:
        """Fall linearly to zero over ``steps`` steps, beginning at step ``start``."""
        steps = strength.check_integer("steps", steps, 1)
        start = strength.check_integer("start", start, 0)
        return cls(noises, partial(_fade_out, start, steps))

    def step(self, to: int | None = None) -> None:
        """Go on to the next step, or to the one that a trainer is at, so that the schedule resumes with the trainer.

        Args:
            to: the number of optimizer steps that are done.

        >>> import rotationout as ro
        >>> layer = ro.RotationOut(0.5)
        >>> schedule = ro.Schedule.ramp(layer, steps=10)
        >>> schedule.step(to=4)
        >>> layer.p
        0.25
        """
        step = self.last_step + 1 if to is None else strength.check_integer("to", to, 0)
        self._set(step, self.base)
        self.last_step = step

    def state_dict(self) -> dict[str, Any]:
        """The step and the strengths that the noises were given; the factor is not saved."""
        return {"last_step": self.last_step, "base": list(self.base)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of a schedule for the same noises."""
        if set(state) != {"last_step", "base"}:
            raise ValueError(f"state must be that of a Schedule, last_step and base, got {', '.join(map(str, state))}")
        if len(state["base"]) != len(self.noises):
            raise ValueError(f"state is of {len(state['base'])} noises, but this schedule has {len(self.noises)}")
        base, last_step = [strength.check_rate(p, "base") for p in state["base"]], int(state["last_step"])
        self._set(last_step, base)
        self.base, self.last_step = base, last_step

    def _set(self, step: int, base: list[float]) -> None:
        """Set all strengths, or none if one of them is refused."""
        factor = strength.check_number("factor", self.factor(step))
        rates = [strength.check_rate(factor * p, f"p at step {step}") for p in base]
        before = [noise.p for noise in self.noises]
        try:
            for noise, rate in zip(self.noises, rates, strict=True):
                if noise.p != rate:  # setting it costs a launch on a GPU, and most steps change nothing
                    noise.p = rate
        except ValueError:  # Shake-Shake has a limit of its own
            for noise, rate in zip(self.noises, before, strict=True):
                noise.p = rate
            raise
        for noise, given in zip(self.noises, base, strict=True):
            setattr(noise, _MEMORY, (given, noise.p))


# The factors, as functions of a module and not as lambdas: a schedule goes to other processes by pickle.


def _constant(step: int) -> float:
    return 1.0


def _ramp(steps: int, step: int) -> float:
    return min((step + 1) / steps, 1.0)


def _early(until: int, step: int) -> float:
    return 1.0 if step < until else 0.0


def _late(start: int, step: int) -> float:
    return 1.0 if step >= start else 0.0


def _fade_out(start: int, steps: int, step: int) -> float:
    return min(max(1.0 - (step - start) / steps, 0.0), 1.0)


@dataclass(frozen=True)
class _Product:
    """The product of two factors."""

    first: Callable[[int], float]
    second: Callable[[int], float]

    def __call__(self, step: int) -> float:
        return self.first(step) * self.second(step)


def _given(noise: Any) -> float:
    """The p that a noise was given: its own p, unless a schedule has set that."""
    given, scheduled = getattr(noise, _MEMORY, (noise.p, noise.p))
    return float(given if noise.p == scheduled else noise.p)


def _check_noises(noises: _Noises) -> list[Any]:
    if isinstance(noises, Report) and noises.noises:
        return [part for noise in noises.noises for part in _with_strength(noise)]
    if isinstance(noises, Report):
        noises = noises.noises
    if isinstance(noises, nn.Module):
        check_attached(noises)
        found: list[Any] = [module for module in noises.modules() if isinstance(module, Noise)]
        if not found:
            raise ValueError(
                "the model has no noise of rotationout to schedule: insert it first, or give the modules to schedule"
            )
        return found
    if not isinstance(noises, Iterable):
        raise TypeError(f"noises must be a model, a report or modules, got {type(noises).__name__}")
    found = list(noises)
    for noise in found:
        if not isinstance(noise, nn.Module) or not _has_strength(noise):
            raise _without_strength(noise)
    if not found:
        raise ValueError("there is no noise to schedule")
    return found


def _with_strength(noise: nn.Module) -> list[nn.Module]:
    """The parts of a noise of a report which have a strength: several in a nn.Sequential, none in an identity."""
    found = [part for part in noise.modules() if _has_strength(part)]
    if not found and not isinstance(noise, nn.Identity):
        raise _without_strength(noise)
    return found


def _has_strength(noise: nn.Module) -> bool:
    return isinstance(getattr(noise, "p", None), float | int)


def _without_strength(noise: object) -> TypeError:
    return TypeError(f"only modules with a strength p can be scheduled, got {type(noise).__name__} {noise!r}")
