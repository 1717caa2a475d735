"""What was done to a model, and what was left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from torch import nn

__all__ = ["SINGLE_FEATURE", "Change", "Left", "Report", "fold", "named"]

_IN_PLACE = "swap, insert and remove change the model in place and return a report: keep using the model itself"
SINGLE_FEATURE = "there is a single feature, which has no other to be paired with"
FOLDED = 4
"""So many names, or more, that differ in the numbers of layers only are shown as one."""


def named(name: str) -> str:
    """The name of a module as messages have it; the name of the model itself is empty.

    >>> named("layer1.0"), named("")
    ("'layer1.0'", 'the model')
    """
    return repr(name) if name else "the model"


def fold(names: Iterable[str]) -> list[str]:
    """Names for a message: many that differ in the numbers of layers only become one, with their count.

    >>> fold(["drop", *(f"layers.{k}.mlp.2" for k in range(12))])
    ['drop', 'layers.*.mlp.2 (12 times)']
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"(^|[._])\d+(?=\.)", r"\1*", name), []).append(name or "the model")
    return [
        shown
        for pattern, some in alike.items()
        for shown in ([f"{pattern} ({len(some)} times)"] if len(some) >= FOLDED else some)
    ]


class Change(NamedTuple):
    """A noise and where it went.

    Attributes:
        name: the name of the module at which it was placed, or which it replaced; empty for the model itself.
        module: that module, in words.
        side: ``"before"``, ``"after"`` or ``"instead of"`` it.
        noise: the noise itself, now part of the model.
        also: other names of the module, if it is used in several places.

    >>> change = Change("fc", "Linear", "before", nn.Dropout(0.2), also=("head",))
    >>> f"{change.side} {change.place}"
    'before fc (also head)'
    """

    name: str
    module: str
    side: str
    noise: nn.Module
    also: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """All names of the module, for messages."""
        also = f" (also {', '.join(self.also)})" if self.also else ""
        return f"{self.name or 'the model'}{also}"


class Left(NamedTuple):
    """A module that was left alone, and why.

    >>> print(Left("fc", "Linear", "it was not called in a run of the model"))
    fc (Linear): it was not called in a run of the model
    """

    name: str
    module: str
    why: str

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.module}): {self.why}"


@dataclass(frozen=True)
class Report:
    """A report of what was placed where; ``print`` it.

    Attributes:
        changed: the noises that were placed, or taken away.
        left: modules that were candidates but were left alone, and why.
        done: ``"placed"`` or ``"removed"``.

    >>> report = Report((Change("fc", "Linear", "before", nn.Dropout(0.2)),))
    >>> print(report)
    1 placed
      Dropout(p=0.2, inplace=False) before Linear: fc
    >>> len(report), report.noises
    (1, [Dropout(p=0.2, inplace=False)])
    """

    changed: tuple[Change, ...] = ()
    left: tuple[Left, ...] = ()
    done: str = "placed"

    @property
    def noises(self) -> list[nn.Module]:
        """The noises themselves, e.g. for `rotationout.Schedule`."""
        return [change.noise for change in self.changed]

    def __len__(self) -> int:
        return len(self.changed)

    def __add__(self, other: Report) -> Report:
        return Report(self.changed + other.changed, self.left + other.left, self.done)

    def __str__(self) -> str:
        lines = [f"{len(self.changed)} {self.done}"]
        groups: dict[str, list[str]] = {}
        for change in self.changed:
            groups.setdefault(f"{change.noise!r} {change.side} {change.module}", []).append(change.place)
        lines += [f"  {what}: {', '.join(fold(places))}" for what, places in groups.items()]
        if self.left:
            alike: dict[tuple[str, str], list[Left]] = {}
            for left in self.left:
                alike.setdefault((left.module.partition("(")[0], left.why), []).append(left)
            lines.append(f"{len(self.left)} left alone")
            for (kind, why), some in alike.items():
                (module, *others) = {left.module for left in some}
                lines.append(f"  {Left(', '.join(fold(left.name for left in some)), kind if others else module, why)}")
        return "\n".join(lines)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"a Report is not the model; {_IN_PLACE}")

    def __getattr__(self, name: str) -> NoReturn:
        advice = f"; {_IN_PLACE}" if hasattr(nn.Module, name) else ""
        raise AttributeError(f"a Report has no {name!r}{advice}")
