"""Which parts of the paper are reproduced, which are not and why, and the results, from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.batchnorm import equivalent_drop_rate, poly_coefficients
from ..experiments.results import read_records
from ..kinds import listed
from ..nn.norm.expectation import FIT_LIMIT
from ..recipes import TABLES
from . import shift, table1, table2, table3, table4, verdicts
from .cells import by_row
from .page import Section, Table

__all__ = ["PARTS", "Part", "section", "table"]

NOISE_BOUNDS = {4: 0.5, 8: 0.2, 16: 0.1}
"""By batch size: the drop rate that the paper's appendix B bounds the noise of BatchNorm by; the last from 17 on."""
POLYNOMIAL = ((1.0919, 0.0020), (-8.8903e-2, 0.24595e-2), (6.5157e-3, 0.61768e-3), (-1.9404e-4, 0.38001e-4))
"""The coefficients for batches of 8 and their errors, as printed there."""


def _noise_of_batchnorm() -> str:
    """What appendix B reads off its first figure.

    >>> _noise_of_batchnorm()
    'Batches of 4, 8 and 16 have the noise of Dropout with p = 0.338, 0.173 and 0.089. The paper’s bounds, 0.5, 0.2 and
    0.1, hold.'
    """
    rates = {size: equivalent_drop_rate(size).value.item() for size in NOISE_BOUNDS}
    hold = all(rates[size] < bound for size, bound in NOISE_BOUNDS.items())
    shown = listed(f"{rate:.3f}" for rate in rates.values())
    return (
        f"Batches of {listed(NOISE_BOUNDS)} have the noise of Dropout with p = {shown}. The paper’s bounds, "
        f"{listed(NOISE_BOUNDS.values())}, {'hold' if hold else 'do not all hold'}."
    )


def _polynomial() -> str:
    """How the polynomial of appendix B compares with the printed one.

    >>> _polynomial()
    'The four coefficients for batches of 8 differ from the printed ones by at most 1.4 of their printed errors,
    wherever the fit ends from |x| = 4 on, and by 0.16 where our fit ends, at 4.5, which was chosen so.'
    """

    def most(limit: float) -> float:
        fitted = zip(poly_coefficients(8, limit), POLYNOMIAL, strict=True)
        return max(abs(a - printed) / error for a, (printed, error) in fitted)

    limits = [4 + step / 4 for step in range(25)]  # to 10, beyond which the density is nothing
    return (
        "The four coefficients for batches of 8 differ from the printed ones by at most "
        f"{max(map(most, limits)):.1f} of their printed errors, wherever the fit ends from |x| = {limits[0]:g} on, and "
        f"by {most(FIT_LIMIT):.2f} where our fit ends, at {FIT_LIMIT:g}, which was chosen so."
    )


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
        row_of: the row of the paper that a row of its own recipes repeats; "" for a row that is only ours.
        computed: what a part that is not trained says.
    """

    title: str
    what: str
    own: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    verdict: Callable[[Sequence[dict[str, Any]]], str] = lambda records: ""
    row_of: Callable[[str], str] = str
    computed: Callable[[], str] = lambda: ""


PARTS = (
    Part(
        "Table 1a, 1b",
        "ResNet110 on CIFAR-100",
        ("cifar100_resnet110_authors", "cifar100_resnet110_paper"),
        verdict=table1.verdict,
        row_of=table1.row_of,
    ),
    Part(
        "Table 1c, 1d",
        "WideResNet28-10 on CIFAR-100",
        ("cifar100_wrn28_10_authors", "cifar100_wrn28_10_paper"),
        verdict=table1.verdict,
        row_of=table1.row_of,
    ),
    Part("Table 2", "ResNet-50 on ImageNet", ("imagenet",), ("imagewoof",), verdict=table2.verdict),
    Part(
        "Table 3",
        "RetinaNet on COCO",
        ("coco",),
        ("bccd",),
        verdict=table3.verdict,
        row_of=lambda row: row if row in table3.PAPER else "",
    ),
    Part("Table 4", "LSTM on WSJ", ("wsj",), ("an4",), verdict=table4.verdict),
    Part("Figure 1", "Dropout-a and -b", figures=("dropout_ab",)),
    Part(
        "Figure 2",
        "variance shift, trained",
        (shift.RECIPE,),
        figures=("variance_shift_trained",),
        verdict=shift.compared_shift,
        row_of=lambda row: row if row.startswith("Dropout") else "",
    ),
    Part("Figure 3", "BatchNorm, Gaussian", figures=("batchnorm_gaussian",), computed=_noise_of_batchnorm),
    Part("Figure 4", "five distributions", figures=("batchnorm_distributions_mean",)),
    Part("Figure 5", "the polynomial", figures=("batchnorm_polynomial",), computed=_polynomial),
)
"""All there are, in the paper's order."""


def table(results: Path) -> Table:
    """A row for each of PARTS."""
    return Table(
        ["part of the paper", "runs", "result"],
        [[_name(part), _runs(results, part), _outcome(results, part)] for part in PARTS],
    )


def section(results: Path) -> Section:
    """The section of the report."""
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
    return Section("What is reproduced, and what is not", reasons, table(results), finding=_finding(results))


def _finding(results: Path) -> str:
    """Which parts have been run on what, each in the list where it belongs."""
    lists: dict[str, list[str]] = {
        "On the paper’s data": [],
        "Only on stand-in data": [],
        "Computed": [],
        "Not run": [],
    }
    on, instead, computed, missing = lists.values()
    for part in PARTS:
        if not part.own:
            computed.append(part.title)
        elif _recorded(results, part.own):
            on.append(_name(part))
        else:
            (instead if _recorded(results, part.stand_ins) else missing).append(_name(part))
    return " ".join(f"{what}: {'; '.join(parts)}." for what, parts in lists.items() if parts)


def _runs(results: Path, part: Part) -> str:
    """How many runs there are of a part, on the paper's data and on others."""
    own = _state(results, part.own, part.row_of) if part.own else "computed"
    return f"{own}; on other data {_state(results, part.stand_ins)}" if part.stand_ins else own


def _name(part: Part) -> str:
    return f"{part.title}: {part.what}"


def _outcome(results: Path, part: Part) -> str:
    """What the records of a part say: on the paper's own data if these say anything, else on stand-ins.

    Of a part that is computed: what is computed, or what draws it.
    """
    for recipe in (*part.own, *part.stand_ins):
        said = part.verdict(read_records(results, recipe))
        if said:
            return said if recipe in part.own else f"On {recipe}: {said}"
    if part.own:
        return "–"
    return part.computed() or f"Drawn by rotationout figures {' '.join(part.figures)}."


def _recorded(results: Path, recipes: tuple[str, ...]) -> bool:
    return any(read_records(results, recipe) for recipe in recipes)


def _state(results: Path, recipes: tuple[str, ...], row_of: Callable[[str], str] = str) -> str:
    """How much is recorded of the recipe that has most records."""
    return max((_count(results, recipe, row_of) for recipe in recipes), default=(0, "–"))[1]


def _count(results: Path, recipe: str, row_of: Callable[[str], str] = str) -> tuple[int, str]:
    """The number of records, and how many of the paper's rows they repeat; of several forms of a row, the most run."""
    records = read_records(results, recipe)
    known = {config.row: row_of(config.row) for config in TABLES[recipe]()}
    wanted = len(set(known.values()) - {""})
    if not records:
        return 0, f"0 of {wanted} rows"
    runs = Counter[str]()
    for row, found in by_row(records).items():
        if known.get(row):
            runs[known[row]] = max(runs[known[row]], len(found))
    return len(records), f"{len(runs)} of {wanted} rows, n ≥ {min(runs.values(), default=0)}"
