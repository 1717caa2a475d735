"""What was done to a model, and what was left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

__all__ = ["Change", "Left", "Report", "named"]


def named(name: str) -> str:
    """The name of a module as messages have it; the name of the model itself is empty.

    >>> named("layer1.0"), named("")
    ("'layer1.0'", 'the model')
    """
    return repr(name) if name else "the model"


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
        lines += [f"  {what}: {', '.join(places)}" for what, places in groups.items()]
        if self.left:
            alike: dict[tuple[str, str], list[str]] = {}
            for name, module, why in self.left:
                alike.setdefault((module, why), []).append(name or "the model")
            lines.append(f"{len(self.left)} left alone")
            lines += [f"  {Left(', '.join(names), module, why)}" for (module, why), names in alike.items()]
        return "\n".join(lines)
