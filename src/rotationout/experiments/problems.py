"""Examples that cannot be used: named, counted by kind, and refused if there are too many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Problem", "counts", "facts", "refuse_if_many"]

MOST_BAD = 0.1
"""If more of a split is bad than this, it is the data that are wrong, or the path, and not an example."""
NAMED = 50
"""A record names so many of the examples that were left out; all are counted."""


@dataclass(frozen=True)
class Problem:
    """An example that is left out, and why."""

    split: str
    name: str
    reason: str
    message: str


def refuse_if_many(problems: Iterable[Problem], splits: Iterable[str], what: str) -> None:
    """An error if more than a tenth of a split is bad, or all of it; ``splits`` has that of every example."""
    bad: dict[str, list[Problem]] = {}
    for problem in problems:
        bad.setdefault(problem.split, []).append(problem)
    for split, total in Counter(splits).items():
        mine = bad.get(split, [])
        if mine and len(mine) > MOST_BAD * total:
            raise ValueError(
                f"{len(mine)} of {total} {what} of {split!r} cannot be used, more than one in ten "
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


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in found.items())
