"""Table 3 from records: average precision over seeds, the paper's beside them, and what was seen in a few images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..recipes import SUBJECTS
from . import verdicts
from .cells import STAR_ALONE, UNCORRECTED, averaged, by_row, left_out, marked, rotation_strength, significance
from .page import Section, Table

__all__ = ["PAPER", "prose", "section", "table", "verdict"]

PAPER: dict[str, tuple[str, str, str]] = {
    "none, ImageNet": ("36.5", "55.0", "39.1"),
    "none": ("36.8", "54.6", "39.4"),
    "dropout keep 0.9": ("37.9", "56.1", "40.6"),
    "dropblock keep 0.9, block 5": ("38.4", "56.4", "41.2"),
    "rotation, ImageNet": ("38.2", "56.2", "41.0"),
    "rotation block, ImageNet": ("38.7", "56.6", "41.4"),
}
"""AP, AP50 and AP75 on COCO's val2017 as printed, by our rows. The paper does not give the number of runs."""
MEASURES = {"ap": "AP", "ap50": "AP50", "ap75": "AP75"}
RIVALS = {"rotation": "dropout keep 0.9", "rotation block": "dropblock keep 0.9, block 5"}
"""What RotationOut is compared with: the noise of the same kind."""


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A table of the records of one recipe, rows in its order; a dash where detections are not scored yet.

    Where those of some runs are scored, and of others are not, the number of runs says so.

    The paper's RotationOut starts from ImageNet's weights: where there is no such row, its numbers stand beside ours
    from random weights. A star marks a mean on COCO, from the same kind of weights, that differs from the paper's by
    more than two of its own standard errors, as the paper prints none. The p-values are of Welch's two-sided t-test on
    AP: against no noise, and for RotationOut against Dropout or DropBlock.
    """
    found = by_row(records)
    coco = records[0].get("recipe") == "coco"
    lines = []
    for row, runs in found.items():
        ours = [_scores(runs, measure) for measure in MEASURES]
        printed = PAPER.get(row, PAPER.get(f"{row}, ImageNet", ("–",) * 3))
        base, rival = (_scores(found.get(name, []), "ap") for name in (_base(row), RIVALS.get(row, "")))
        tests = [significance(ours[0], others) for others in (base, rival)]
        same = coco and row in PAPER
        both = [(_cell(mine, theirs, same), theirs) for mine, theirs in zip(ours, printed, strict=True)]
        cells = [cell for pair in both for cell in pair]
        scored = len(ours[0])
        count = f"{scored} of {len(runs)}" if 0 < scored < len(runs) else str(len(runs))
        lines.append([row, count, *cells, *tests])
    heads = [head for name in MEASURES.values() for head in (name, f"{name}, the paper's, COCO")]
    header = ["row", "runs", *heads]
    return Table([*header, "p-value, none", "p-value, rival"], lines).filled(always=len(header))


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """How RotationOut did, in words."""
    return verdicts.verdict(records, RIVALS, "ap", "points of AP")


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    config = first["config"]
    return [
        f"{first['epochs']} epochs on {first['train_images']:,} images with {first['train_boxes']:,} boxes, windows of "
        f"{config['crop']} pixels; average precision in per cent on the {config['test_split']} split, "
        f"{first['test_images']:,} images with {first['test_boxes']:,} boxes; {left_out(first)} images or boxes were "
        f"left out. {averaged(records)}. {rotation_strength(records)}".rstrip(),
        "The paper’s numbers are for COCO, and its RotationOut starts from ImageNet’s weights. It does not give the "
        "number of runs. The p-values are from Welch’s test on AP, against no noise and against Dropout or DropBlock. "
        + UNCORRECTED
        + (f" {STAR_ALONE}" if first["recipe"] == "coco" else ""),
    ]


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import CAPTION, curves_figure
    from .gallery.detections import seen_boxes
    from .style import to_svg

    drawing = seen_boxes(recipe, records)
    return Section(
        SUBJECTS[recipe],
        prose(records),
        table(records),
        to_svg(curves_figure(records, "train_loss", "training loss", 1.0)),
        f"Training loss {CAPTION}",
        verdicts.finding(records, verdict(records)),
        [(to_svg(drawing.draw(drawing.compute())), drawing.caption)],
    )


def _scores(runs: Sequence[dict[str, Any]], measure: str) -> list[float]:
    return [run[measure] for run in runs if measure in run]


def _cell(values: Sequence[float], printed: str, same: bool) -> str:
    return marked(values, printed, same=same) if values else "–"


def _base(row: str) -> str:
    """The row without noise that has the same initial weights."""
    return "" if row.startswith("none") else "none, ImageNet" if row.endswith(", ImageNet") else "none"
