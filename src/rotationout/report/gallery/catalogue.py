"""All figures: those of the theory, and those of experiments that have records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...strength import check_choice
from . import Drawing, batchnorm, linear, noise, shift_theory, trained

__all__ = ["all_figures", "chosen_figures"]


def all_figures(results: Path) -> list[Drawing]:
    """Every figure; those of experiments only if their records are under ``results``."""
    found = [*shift_theory.FIGURES, *noise.FIGURES, *linear.FIGURES, *batchnorm.FIGURES]
    record = results / "small_batch.json"
    if record.is_file():
        found.append(batchnorm.experiment(record))
    return found + trained.figures(results)


def chosen_figures(results: Path, names: Sequence[str]) -> list[Drawing]:
    """The figures of these names, all of them if there is none."""
    known = {drawing.name: drawing for drawing in all_figures(results)}
    return [known[check_choice("figure", name, known)] for name in names] if names else list(known.values())
