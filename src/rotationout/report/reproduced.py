"""What of the paper is reproduced, what is not and why, and what came out, from the records there are."""

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
        own: the recipes that repeat it as it is; none if it is computed and not trained.
        stand_ins: recipes with the same rows on other data.
        figures: those of ours that show what it shows.
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
    return Table(["of the paper", "on its data", "on a stand-in", "what came out"], rows)


def section(results: Path) -> Section:
    """The part of the report that says so."""
    missing = [_name(part) for part in PARTS if part.own and not _recorded(results, part.own)]
    reasons = [
        "For each table and figure of the paper: how many rows of the recipe that repeats it have records, and n, the "
        "fewest runs of a row that has some; and how RotationOut did in them, beside no noise and beside the noise of "
        f"its kind. The paper has five runs a row where it says how many. {verdicts.MEANING}",
        "ImageNet, COCO and WSJ must be had from their owners, and no run on them was made for this page unless it is "
        "counted here; the recipes are there for those who have the data. Imagewoof, BCCD and AN4 stand in for them: "
        "other data, so that their numbers may be compared with each other and not with the paper’s.",
        "CIFAR-100 is free: what is missing of Table 1 and Figure 2 has not been run yet. Figures 1, 3, 4 and 5 need "
        "no training: they are computed, and on this page unless it was made without figures of the theory.",
        "The paper’s appendix on small batches trains nothing; what is trained of it here is ours.",
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
    """What records say of a part: those on the paper's own data if there are any."""
    for recipe in (*part.own, *part.stand_ins):
        said = part.verdict(read_records(results, recipe))
        if said:
            return f"{recipe}: {said}"
    return "–"


def _recorded(results: Path, recipes: tuple[str, ...]) -> bool:
    return any(read_records(results, recipe) for recipe in recipes)


def _state(results: Path, recipes: tuple[str, ...]) -> str:
    """How much of recipes is recorded; of several the fullest."""
    return max((_count(results, recipe) for recipe in recipes), default=(0, "–"))[1]


def _count(results: Path, recipe: str) -> tuple[int, str]:
    records = read_records(results, recipe)
    known = {config.row for config in TABLES[recipe]()}
    if not records:
        return 0, f"0 of {len(known)} rows"
    runs = [len(found) for row, found in by_row(records).items() if row in known]
    return len(records), f"{len(runs)} of {len(known)} rows, n ≥ {min(runs, default=0)}"
