"""Table 1 from records: mean ± standard deviation over seeds beside the paper's, and whether differences are noise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..recipes import SUBJECTS, name_of
from ..recipes.cifar100 import KEEP, SIGMA, SIGMAS
from . import verdicts
from .cells import STAR, UNCORRECTED, Lead, averaged, by_row, marked, mean_lead, significance, strengths
from .page import Section, Table

__all__ = ["PAPER", "RIVALS", "drawn", "lead_over", "prose", "rivals_lead", "row_of", "section", "table", "verdict"]

PAPER: dict[str, dict[str, tuple[str, str]]] = {
    "resnet110": {
        "none": ("71.93 ± 0.16", "72.12 ± 0.18"),
        "dropout 0.9": ("73.13 ± 0.30", "73.32 ± 0.28"),
        "dropout 0.8": ("73.33 ± 0.27", "73.59 ± 0.28"),
        "dropout 0.7": ("72.42 ± 0.23", "72.71 ± 0.14"),
        "dropout 0.6": ("71.79 ± 0.20", "72.10 ± 0.21"),
        "rotation 0.333": ("74.23 ± 0.25", "74.41 ± 0.16"),
        "rotation 0.500": ("74.14 ± 0.11", "74.35 ± 0.13"),
        "rotation 0.655": ("73.13 ± 0.14", "73.45 ± 0.11"),
        "rotation 0.816": ("71.83 ± 0.35", "72.17 ± 0.33"),
    },
    "wrn28_10": {
        "none": ("78.05 ± 0.23", "78.20 ± 0.21"),
        "dropout 0.9": ("78.61 ± 0.09", "78.78 ± 0.10"),
        "dropout 0.8": ("78.77 ± 0.20", "78.91 ± 0.19"),
        "dropout 0.7": ("78.75 ± 0.15", "78.87 ± 0.13"),
        "dropout 0.6": ("78.55 ± 0.07", "78.75 ± 0.18"),
        "rotation 0.333": ("78.94 ± 0.22", "79.09 ± 0.22"),
        "rotation 0.500": ("79.47 ± 0.14", "79.60 ± 0.12"),
        "rotation 0.655": ("79.69 ± 0.11", "78.80 ± 0.15"),
        "rotation 0.816": ("79.76 ± 0.32", "79.93 ± 0.33"),
    },
}
"""Mean over the last ten epochs and best epoch, as printed, over 5 runs each."""
MEANT = {"78.80 ± 0.15": "79.80 ± 0.15"}
"""What is printed and must be a misprint, as the best epoch is not below the mean of ten; and what is meant."""
RIVALS = {f"rotation default sigma {SIGMA[keep]}": f"dropout keep {keep}" for keep in KEEP}
"""RotationOut as the library has it, and Dropout of the same p."""
POINTS = "last10_top1"
"""What rows are compared by."""
MOST_CURVES = 10
"""More could not be told apart in one figure."""


def table(records: Sequence[dict[str, Any]]) -> Table:
    """The records of one recipe, a row each for its rows; columns that would be empty are left out.

    Where fields were changed, the paper's numbers are left out: the noise may be a different one. A star marks a
    mean that differs from them by more than two standard errors of the difference. The p-values are of Welch's
    two-sided t-test on the mean of the last ten epochs: against no noise, against element-wise Dropout of the same p,
    and of other forms of RotationOut against the default form of the same p.
    """
    rows = by_row(records)
    network, recipe = records[0]["config"]["network"], records[0]["recipe"]
    paper = PAPER.get(network, {}) if recipe == name_of(recipe) else {}
    header = [
        "row",
        "runs",
        "last 10 epochs, %",
        "the paper's",
        "best epoch, %",
        "the paper's",
        "p-value, none",
        "p-value, Dropout",
        "p-value, default",
    ]
    lines = []
    for row, runs in rows.items():
        printed = paper.get(row_of(row), ("–", "–"))
        cells = []
        for key, theirs in zip((POINTS, "best_top1"), printed, strict=True):
            values = [run[key] for run in runs]
            cells += [marked(values, MEANT.get(theirs, theirs)), theirs]
        against = [rows.get(other, []) if row != other else [] for other in ("none", _dropout(row), _default(row))]
        average = [run[POINTS] for run in runs]
        tests = [significance(average, [run[POINTS] for run in others]) for others in against]
        lines.append([row, str(len(runs)), *cells, *tests])
    return Table(header, lines).filled()


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]["config"]
    held = first.get("held_out")
    tested = f"{held:,} training images that were held out" if held else "the 10,000 test images"
    decays = " or ".join(f"{decay:g}" for decay in sorted({record["weight_decay"] for record in records}))
    some = f" from {first['subset']:,} training images" if first.get("subset") else ""
    steps = " or ".join(f"{count:,}" for count in sorted({record["config"]["steps"] for record in records}))
    said = [
        f"{steps} steps on batches of {first['batch']}{some}, weight decay {decays}; accuracy on {tested}. "
        f"{averaged(records)}.",
    ]
    columns = table(records).header
    more = {
        "the paper's": f"The paper’s numbers are means over 5 runs. {STAR}",
        "p-value, ": "The p-values are from Welch’s test on the last ten epochs, against no noise and against Dropout "
        f"of the same strength. {UNCORRECTED}",
        "p-value, default": "Other forms of RotationOut are also compared with the default form of the same strength.",
    }
    explained = [text for column, text in more.items() if any(name.startswith(column) for name in columns)]
    if not math.isnan(rivals_lead(records)[0].p):
        explained.append("Over several strengths, the p-value is from Welch’s test of the mean lead over Dropout.")
    return list(filter(None, [*said, strengths(records), " ".join(explained)]))


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """How RotationOut as the library has it did beside Dropout of the same p, and over several of them, in words.

    >>> points = {"dropout keep 0.9": 70, "dropout keep 0.8": 71}
    >>> points |= {"rotation default sigma 0.333": 71, "rotation default sigma 0.500": 73}
    >>> records = [{"row": row, "last10_top1": mean + seed / 2} for row, mean in points.items() for seed in range(3)]
    >>> verdict(records).split(". ")[-1]
    'Over 2 strengths, the default form of RotationOut is ahead of Dropout (+1.50 points on average, p-value 0.001).'
    """
    said = verdicts.verdict(records, RIVALS, POINTS, "points")
    lead, runs = rivals_lead(records)
    if not runs:
        return said
    where, by = verdicts.place(lead.mean, lead.p, min(runs), "points on average")
    return f"{said} Over {len(runs)} strengths, the default form of RotationOut is {where} Dropout ({by})."


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import accuracy_caption, curves_figure
    from .style import to_svg

    return Section(
        SUBJECTS[recipe],
        prose(records),
        table(records),
        to_svg(curves_figure(drawn(records))),
        accuracy_caption(records),
        verdicts.finding(records, verdict(records)),
    )


def rivals_lead(records: Sequence[dict[str, Any]], keep: Sequence[float] = KEEP) -> tuple[Lead, list[int]]:
    """`lead_over` of RotationOut as the library has it over Dropout, at these keep rates."""
    asked = {f"dropout keep {rate}" for rate in keep}
    return lead_over(records, {ours: theirs for ours, theirs in RIVALS.items() if theirs in asked})


def lead_over(records: Sequence[dict[str, Any]], rivals: Mapping[str, str]) -> tuple[Lead, list[int]]:
    """`mean_lead` of rows over their rivals, and the runs of each pair; none unless there are two pairs.

    Pairs with a single run are left out if two others have more: they would leave the lead without a p-value.
    """
    rows = by_row(records) if records else {}
    pairs = [(rows[ours], rows[theirs]) for ours, theirs in rivals.items() if ours in rows and theirs in rows]
    several = [pair for pair in pairs if min(map(len, pair)) > 1]
    pairs = several if len(several) > 1 else pairs
    if len(pairs) < 2:
        return Lead(math.nan), []
    scores = [([run[POINTS] for run in ours], [run[POINTS] for run in theirs]) for ours, theirs in pairs]
    return mean_lead(scores), [min(map(len, pair)) for pair in pairs]


def drawn(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records whose learning curves are shown: of many rows those without noise and of `RIVALS`, if it has any."""
    main = {"none", *RIVALS, *RIVALS.values()}
    shown = [record for record in records if record["row"] in main]
    return shown if shown and len(by_row(records)) > MOST_CURVES else list(records)


def row_of(row: str) -> str:
    """The row of the paper's table that a row of ours stands beside; "" if there is none.

    >>> row_of("dropout keep 0.9"), row_of("rotation paper sigma 0.500"), row_of("dropout2d keep 0.9")
    ('dropout 0.9', 'rotation 0.500', '')
    """
    if row.startswith("dropout keep"):
        return f"dropout {row.split()[-1]}"
    sigma = re.fullmatch(r"rotation (?:default|paper|authors) sigma (\S+)", row)
    return f"rotation {sigma[1]}" if sigma else row if row == "none" else ""


def _dropout(row: str) -> str:
    """The Dropout with the p of a rotation, with pairs or without, or of a Dropout about the mean."""
    if row.startswith("dropout centred"):
        return row.replace("centred ", "")
    strengths = {sigma: keep for keep, sigma in SIGMAS.items()}
    sigma = row.rpartition(" ")[2]
    turned = row.startswith(("rotation", "isotropic")) and sigma in strengths
    return f"dropout keep {strengths[sigma]}" if turned else ""


def _default(row: str) -> str:
    """The default form of a rotation, with its p."""
    return f"rotation default sigma {row.rpartition(' ')[2]}" if row.startswith("rotation") else ""
