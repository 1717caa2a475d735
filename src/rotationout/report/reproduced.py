"""Which parts of the paper are reproduced, which are not and why, and the results, from the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments.results import read_records
from ..recipes import TABLES
from . import shift, table1, table2, table3, table4, verdicts
from .cells import by_row
from .page import Section, Table

__all__ = ["PARTS", "Part", "section", "table"]


@dataclass(frozen=True)
class Part:
    """A table or figure of the paper.

    Args:
        title: its number.
        what: what it shows, in a few words.
        own: the recipes that repeat it on the same data; empty if it is computed and not trained.
        stand_ins: recipes with the same rows on other data.
        figures: our figures that show the same.
        verdict: says from records of a recipe how RotationOut did.
    """

    title: str
    what: str
    own: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    verdict: Callable[[Sequence[dict[str, Any]]], str] = lambda records: ""


PARTS = (
    Part(
        "Table 1a, 1b",
        "ResNet110 on CIFAR-100",
        ("cifar100_resnet110_authors", "cifar100_resnet110_paper"),
        verdict=table1.verdict,
    ),
    Part(
        "Table 1c, 1d",
        "WideResNet28-10 on CIFAR-100",
        ("cifar100_wrn28_10_authors", "cifar100_wrn28_10_paper"),
        verdict=table1.verdict,
    ),
    Part("Table 2", "ResNet-50 on ImageNet", ("imagenet",), ("imagewoof",), verdict=table2.verdict),
    Part("Table 3", "RetinaNet on COCO", ("coco",), ("bccd",), verdict=table3.verdict),
    Part("Table 4", "LSTM on WSJ", ("wsj",), ("an4",), verdict=table4.verdict),
    Part("Figure 1", "Dropout-a and -b", figures=("dropout_ab",)),
    Part(
        "Figure 2",
        "variance shift, trained",
        (shift.RECIPE,),
        figures=("variance_shift_trained",),
        verdict=shift.compared_shift,
    ),
    Part("Figure 3", "BatchNorm, Gaussian", figures=("batchnorm_gaussian",)),
    Part("Figure 4", "five distributions", figures=("batchnorm_distributions_mean",)),
    Part("Figure 5", "the polynomial", figures=("batchnorm_polynomial",)),
)
"""All there are, in the paper's order."""


def table(results: Path) -> Table:
    """A row for each of PARTS."""
    rows = []
    for part in PARTS:
        own = _state(results, part.own) if part.own else "computed"
        rows.append([_name(part), own, _state(results, part.stand_ins), _outcome(results, part)])
    return Table(["part of the paper", "on its data", "on stand-in data", "result"], rows)


def section(results: Path) -> Section:
    """The section of the report."""
    missing = [_name(part) for part in PARTS if part.own and not _recorded(results, part.own)]
    reasons = [
        "For each table and figure of the paper: how many of its rows have been run, the smallest number n of runs of "
        "such a row, and how RotationOut compares with no noise and with the other noise of the same kind. Where the "
        f"paper says how many runs a row has, it is five. {verdicts.MEANING}",
        "ImageNet, COCO and WSJ must be obtained from their owners. There are recipes for those who have the data, but "
        "this page has no runs on them unless they are counted here. Imagewoof, BCCD and AN4 stand in for them. They "
        "are different data: compare their numbers with each other, not with the paper’s.",
        "CIFAR-100 is freely available: rows that are missing from Table 1 and Figure 2 have not been run yet. Figures "
        "1, 3, 4 and 5 need no training: they are computed, and shown on this page unless it was written with "
        "--no-theory.",
        "The paper’s appendix on small batches trains no network; the networks trained for it here are our addition.",
    ]
    return Section(
        "What is reproduced, and what is not",
        reasons,
        table(results),
        finding=f"There are no records yet of {'; '.join(missing)}." if missing else "Every table has records.",
    )


def _name(part: Part) -> str:
    return f"{part.title}: {part.what}"


def _outcome(results: Path, part: Part) -> str:
    """What the records of a part say: on the paper's own data if these say anything, else on stand-ins."""
    for recipe in (*part.own, *part.stand_ins):
        said = part.verdict(read_records(results, recipe))
        if said:
            return f"{recipe}: {said}"
    return "–"


def _recorded(results: Path, recipes: tuple[str, ...]) -> bool:
    return any(read_records(results, recipe) for recipe in recipes)


def _state(results: Path, recipes: tuple[str, ...]) -> str:
    """How much is recorded of the recipe that has most records."""
    return max((_count(results, recipe) for recipe in recipes), default=(0, "–"))[1]


def _count(results: Path, recipe: str) -> tuple[int, str]:
    records = read_records(results, recipe)
    known = {config.row for config in TABLES[recipe]()}
    if not records:
        return 0, f"0 of {len(known)} rows"
    runs = [len(found) for row, found in by_row(records).items() if row in known]
    return len(records), f"{len(runs)} of {len(known)} rows, n ≥ {min(runs, default=0)}"
