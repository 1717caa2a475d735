"""Bad examples of a data set: each is reported, counted in the record and left out; too many of them are an error."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import processes

__all__ = ["Problem", "UnusableError", "counts", "facts", "refuse_if_many", "report", "report_all"]

MOST_BAD = 0.1
"""The largest share of a split that may be left out: if more is bad, the data set or its path is wrong."""
NAMED = 50
"""A record names at most so many examples that were left out; it counts all."""


@dataclass(frozen=True)
class Problem:
    """An example that is left out, and why: ``reason`` is what records count, ``message`` what people read."""

    split: str
    name: str
    reason: str
    message: str


class UnusableError(ValueError):
    """An example that cannot be used. The message names it; records count it under ``reason``.

    >>> UnusableError("empty file", "a.jpg is empty").problem("train", "a.jpg").reason
    'empty file'
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def problem(self, split: str, name: str) -> Problem:
        """The problem of the example ``name`` in ``split``."""
        return Problem(split, name, self.reason, str(self))


def refuse_if_many(problems: Iterable[Problem], splits: Iterable[str] | Mapping[str, int], things: str) -> None:
    """An error if more than a tenth of a split is bad.

    Args:
        problems: the problems of all bad examples.
        splits: the split of every example, good or bad; or how many examples each split has.
        things: what the examples are, for the message.
    """
    bad: dict[str, list[Problem]] = {}
    for problem in problems:
        bad.setdefault(problem.split, []).append(problem)
    for split, total in Counter(splits).items():
        mine = bad.get(split, [])
        if mine and len(mine) > MOST_BAD * total:
            raise ValueError(
                f"{len(mine)} of {total} {things} of {split!r} cannot be used, more than one in ten "
                f"({_listed(counts(mine))}); the first: {mine[0].message}"
            )


def counts(problems: Iterable[Problem]) -> dict[str, int]:
    """The number of problems for each reason.

    >>> counts([Problem("train", "a", "missing file", "a.wav is not there")])
    {'missing file': 1}
    """
    return dict(Counter(problem.reason for problem in problems))


def facts(problems: Sequence[Problem]) -> dict[str, Any]:
    """The fields of a record about problems.

    >>> facts([Problem("train", "a", "missing file", "a.wav is not there")])
    {'skipped': {'train': {'missing file': 1}}, 'skipped_names': ['train/a: missing file']}
    """
    splits = sorted({problem.split for problem in problems})
    return {
        "skipped": {split: counts(problem for problem in problems if problem.split == split) for split in splits},
        "skipped_names": [f"{problem.split}/{problem.name}: {problem.reason}" for problem in problems][:NAMED],
    }


def report(problem: Problem) -> None:
    """Print on stderr what is left out and why."""
    print(f"{problem.split}, {problem.message}; it is left out", file=sys.stderr)


def report_all(problems: Iterable[Problem]) -> None:
    """Report problems that all processes find, as each reads the whole data set: only the first one prints them."""
    if processes.rank() == 0:
        for problem in problems:
            report(problem)


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in found.items())
