"""What is wrong with single pieces of a data set: each is named, counted, and left out; too many are an error."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from . import processes

__all__ = ["Problem", "UnusableError", "counts", "facts", "refuse_if_many", "report", "report_all"]

MOST_BAD = 0.1
"""If more of a split is bad than this, it is the data set that is wrong, or the path, and not a piece of it."""
NAMED = 50
"""A record names so many of what was left out; all are counted."""


@dataclass(frozen=True)
class Problem:
    """An example that is left out, and why."""

    split: str
    name: str
    reason: str
    message: str


class UnusableError(ValueError):
    """Something that cannot be used; its message names it, ``reason`` is what records count it under.

    >>> UnusableError("empty file", "a.jpg is empty").problem("train", "a.jpg").reason
    'empty file'
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def problem(self, split: str, name: str) -> Problem:
        """As what is wrong with a piece of a split."""
        return Problem(split, name, self.reason, str(self))


def refuse_if_many(problems: Iterable[Problem], splits: Iterable[str], things: str = "utterances") -> None:
    """An error if more than a tenth of a split is bad, or all of it; ``splits`` has that of every one of ``things``."""
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
    """How many there are of each kind.

    >>> counts([Problem("train", "a", "missing file", "a.wav is not there")])
    {'missing file': 1}
    """
    return dict(Counter(problem.reason for problem in problems))


def facts(problems: Sequence[Problem]) -> dict[str, Any]:
    """What a record says of them.

    >>> facts([Problem("train", "a", "missing file", "a.wav is not there")])
    {'skipped': {'train': {'missing file': 1}}, 'skipped_names': ['train/a: missing file']}
    """
    splits = sorted({problem.split for problem in problems})
    return {
        "skipped": {split: counts(problem for problem in problems if problem.split == split) for split in splits},
        "skipped_names": [f"{problem.split}/{problem.name}: {problem.reason}" for problem in problems][:NAMED],
    }


def report(problem: Problem, out: TextIO | None = None) -> None:
    """Say what is left out and why, on stderr if ``out`` is not given.

    >>> report(Problem("train", "a.jpg", "missing image", "a.jpg is missing"), sys.stdout)
    train, a.jpg is missing; it is left out
    """
    print(f"{problem.split}, {problem.message}; it is left out", file=sys.stderr if out is None else out)


def report_all(problems: Iterable[Problem], out: TextIO | None = None) -> None:
    """The same of data that every process reads whole: the first of them tells, as all find the same."""
    if processes.rank() == 0:
        for problem in problems:
            report(problem, out)


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in found.items())
