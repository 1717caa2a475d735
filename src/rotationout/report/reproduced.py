"""What of the paper is reproduced and what is not, and why: every table and figure of it, by the records there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..experiments.results import read_records
from ..recipes import TABLES
from .cells import by_row
from .page import Section, Table

__all__ = ["PARTS", "Part", "section"]


@dataclass(frozen=True)
class Part:
    """A table or figure of the paper.

    Args:
        title: its number.
        what: what it shows, in a few words.
        own: the recipes that repeat it as it is; none if it is computed and not trained.
        stand_ins: recipes with the same rows on other data.
        figures: those of ours that show what it shows.
    """

    title: str
    what: str
    own: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


PARTS = (
    Part("Table 1a, 1b", "ResNet110 on CIFAR-100", ("cifar100_resnet110_authors", "cifar100_resnet110_paper")),
    Part("Table 1c, 1d", "WideResNet28-10 on CIFAR-100", ("cifar100_wrn28_10_authors", "cifar100_wrn28_10_paper")),
    Part("Table 2", "ResNet-50 on ImageNet", ("imagenet",), ("imagewoof",)),
    Part("Table 3", "RetinaNet on COCO", ("coco",), ("bccd",)),
    Part("Table 4", "LSTM on WSJ", ("wsj",), ("an4",)),
    Part("Figure 1", "Dropout-a and -b", figures=("dropout_ab",)),
    Part("Figure 2", "variance shift, trained", ("cifar100_resnet110_shift",), figures=("variance_shift_trained",)),
    Part("Figure 3", "BatchNorm, Gaussian", figures=("batchnorm_gaussian",)),
    Part("Figure 4", "five distributions", figures=("batchnorm_distributions_mean",)),
    Part("Figure 5", "the polynomial", figures=("batchnorm_polynomial",)),
)
"""All there are, in the paper's order."""


def section(results: Path) -> Section:
    """The part of the report that says so."""
    rows = [
        [_name(part), _state(results, part.own) if part.own else "computed", _state(results, part.stand_ins)]
        for part in PARTS
    ]
    missing = [_name(part) for part in PARTS if part.own and not _recorded(results, part.own)]
    reasons = [
        "For each table and figure of the paper: how many rows of the recipe that repeats it have records, and n, the "
        "fewest runs of a row that has some. The paper has five runs a row where it says how many.",
        "ImageNet, COCO and WSJ must be had from their owners, and no run on them was made for this page unless it is "
        "counted here; the recipes are there for those who have the data. Imagewoof, BCCD and AN4 stand in for them: "
        "other data, so that their numbers may be compared with each other and not with the paper’s.",
        "CIFAR-100 is free: what is missing of Table 1 and Figure 2 has not been run yet. Figures 1, 3, 4 and 5 need "
        "no training: they are computed, and on this page unless it was made without figures of the theory.",
        "The paper’s appendix on small batches trains nothing; what is trained of it here is ours.",
    ]
    return Section(
        "What is not reproduced, and why",
        reasons,
        Table(["of the paper", "on its data", "on a stand-in"], rows),
        finding=f"There are no records yet of {'; '.join(missing)}." if missing else "Every table has records.",
    )


def _name(part: Part) -> str:
    return f"{part.title}: {part.what}"


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
