"""Where kernels are tested, a GPU if there is one, and in which of many cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
MARKS = [pytest.mark.gpu] if GPU else []


def crossed(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of values, one of each kind: all on a GPU; without one, so many that every two values meet.

    A kernel that is wrong is so for a value, or for two that come together; seldom for three alone.
    """
    every = list(itertools.product(*values))
    if GPU:
        return every

    def pairs(case: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    chosen, missing = [], set().union(*map(pairs, every))
    while missing:
        chosen.append(max(every, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(chosen[-1])
    return chosen
