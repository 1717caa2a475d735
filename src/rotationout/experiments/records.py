"""Records of the demo on digits (`digits`): one for each network, all in one JSON file; and statistics over seeds.

Records of training runs, a file for each run, are in `results`.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["LABELS", "Record", "Study", "mean_sd", "paired_difference", "readable", "surroundings"]

LABELS = {"none": "No noise", "dropout": "Dropout", "rotationout": "RotationOut"}
"""The name of each noise in tables, in the order of their rows."""


@dataclass(frozen=True)
class Record:
    """One training run: its noise and seed, and the accuracies it reached (fractions, not per cent)."""

    noise: str
    p: float
    seed: int
    epochs: list[int]
    test_curve: list[float]
    train_accuracy: float
    seconds: float

    @property
    def test_accuracy(self) -> float:
        """Test accuracy after the last epoch."""
        return self.test_curve[-1]


@dataclass(frozen=True)
class Study:
    """All runs of a study, with the settings they share. ``p`` is the strength of the main comparison."""

    p: float
    settings: dict[str, Any]
    records: list[Record]

    def select(self, noise: str, p: float | None = None) -> list[Record]:
        """The runs with this noise and strength, ordered by seed; for ``"none"`` the strength is ignored."""
        rate = self.p if p is None else p
        found = [r for r in self.records if r.noise == noise and (noise == "none" or r.p == rate)]
        return sorted(found, key=lambda r: r.seed)

    @property
    def rates(self) -> list[float]:
        """Every strength at which a noise was run, in order."""
        return sorted({r.p for r in self.records if r.noise != "none"})

    def paired_difference(self, noise: str, baseline: str, p: float | None = None) -> tuple[float, float]:
        """Mean over seeds of the difference in test accuracy, and its standard error (NaN for one seed)."""
        ours, theirs = ({r.seed: r.test_accuracy for r in self.select(name, p)} for name in (noise, baseline))
        return paired_difference(ours, theirs)

    def save(self, path: Path) -> None:
        """Write the study as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read what `save` wrote."""
        with readable(path):
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(data["p"], data["settings"], [Record(**r) for r in data["records"]])


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors from reading a file whose content is not as expected into a ValueError that names the file.

    >>> with readable(Path("study.json")):
    ...     {}["settings"]
    Traceback (most recent call last):
    ValueError: study.json is damaged, or not what its name says: KeyError('settings')
    """
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged, or not what its name says: {error!r}") from error


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is NaN for a single value.

    >>> mean_sd([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float]:
    """Mean over seeds of the difference between scores, given by seed, and its standard error (NaN for one seed).

    >>> paired_difference({7: 3.0, 8: 5.0}, {8: 2.0, 7: 1.0})
    (2.5, 0.5)
    >>> paired_difference({7: 3.0}, {8: 2.0})
    Traceback (most recent call last):
    ValueError: runs with different seeds cannot be paired: one side has 7, the other 8
    """
    if ours.keys() != theirs.keys():
        mine, others = (", ".join(map(str, sorted(seeds))) for seeds in (ours, theirs))
        raise ValueError(f"runs with different seeds cannot be paired: one side has {mine}, the other {others}")
    mean, sd = mean_sd([value - theirs[seed] for seed, value in ours.items()])
    return mean, sd / math.sqrt(len(ours))


def surroundings() -> dict[str, str]:
    """The versions and the machine, for the settings of a study."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
