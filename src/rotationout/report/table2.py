"""Table 2 from records: top-1 and top-5 accuracy over seeds, and the paper's on ImageNet beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..recipes import SUBJECTS
from . import verdicts
from .cells import STAR, UNCORRECTED, averaged, by_row, left_out, marked, rotation_strength, significance, spread
from .page import Section, Table

__all__ = ["PAPER", "prose", "section", "table", "verdict"]

PAPER = {
    "none": ("76.51 ± 0.07", "93.20 ± 0.05"),
    "dropout keep 0.7": ("76.80 ± 0.04", "93.41 ± 0.04"),
    "droppath keep 0.9": ("77.10 ± 0.08", "93.50 ± 0.05"),
    "spatial dropout keep 0.9": ("77.41 ± 0.04", "93.74 ± 0.02"),
    "cutout": ("76.52 ± 0.07", "93.21 ± 0.04"),
    "dropblock keep 0.9": ("78.13 ± 0.05", "94.02 ± 0.02"),
    "rotation": ("77.87 ± 0.34", "93.94 ± 0.17"),
    "rotation block": ("78.58 ± 0.48", "94.27 ± 0.24"),
}
"""Top-1 and top-5 accuracy on ImageNet as printed, by our rows: RotationOut's over 5 runs, the others from Ghiasi et
al. 2018. The paper does not say whether they are of the best or of the last epoch."""
TESTED = (
    " The p-values are from Welch’s test on top-1 accuracy, against no noise and against Dropout or DropBlock. "
    f"{UNCORRECTED}"
)
RIVALS = {"rotation": "dropout keep 0.7", "rotation block": "dropblock keep 0.9"}
"""What RotationOut is compared with: the noise that drops the features which RotationOut rotates."""


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A table of the records of one recipe, rows in its order; accuracy is the mean of the last ten epochs.

    A star marks a mean on ImageNet that differs from the paper's by more than two standard errors of the difference.
    The p-values are of Welch's two-sided t-test on top-1 accuracy: against no noise, and for RotationOut against
    Dropout, in blocks against DropBlock.
    """
    found = by_row(records)
    same = records[0].get("recipe") == "imagenet"
    lines = []
    for row, runs in found.items():
        top1, top5 = ([run[f"last10_top{guesses}"] for run in runs] for guesses in (1, 5))
        against = [found.get("none", []) if row != "none" else [], found.get(RIVALS.get(row, ""), [])]
        tests = [significance(top1, [run["last10_top1"] for run in others]) for others in against]
        printed = PAPER.get(row, ("–", "–"))
        best = spread([run["best_top1"] for run in runs])
        ours = [marked(values, theirs, same=same) for values, theirs in zip((top1, top5), printed, strict=True)]
        lines.append([row, str(len(runs)), ours[0], printed[0], best, ours[1], printed[1], *tests])
    paper = "the paper's, ImageNet"
    header = ["row", "runs", "top-1, %", paper, "best epoch, %", "top-5, %", paper, "p-value, none", "p-value, rival"]
    return Table(header, lines).filled()


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """How RotationOut did, in words."""
    return verdicts.verdict(records, RIVALS, "last10_top1", "points")


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    config = first["config"]
    return [
        f"{first['epochs']} epochs on {first['train_images']:,} images of {first['classes']} classes, crops of "
        f"{config['size']} pixels, batches of {config['batch']}; mean accuracy of the last ten epochs on "
        f"{first['test_images']:,} images; {left_out(first)} were left out. {averaged(records)}. "
        f"{rotation_strength(records)}".rstrip(),
        f"Side length of the blocks in the third and fourth stage: {_blocks(records)}.",
        "The paper’s numbers are for ImageNet at 224 pixels: over 5 runs for RotationOut, from Ghiasi et al. for the "
        "others."
        + (TESTED if any(name.startswith("p-value, ") for name in table(records).header) else "")
        + (f" {STAR}" if first["recipe"] == "imagenet" else ""),
    ]


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe."""
    from .curves import CAPTION, curves_figure
    from .style import to_svg

    return Section(
        SUBJECTS[recipe],
        prose(records),
        table(records),
        to_svg(curves_figure(records)),
        f"Test accuracy {CAPTION}",
        verdicts.finding(records, verdict(records)),
    )


def _blocks(records: Sequence[dict[str, Any]]) -> str:
    found = {record["row"]: record["config"]["block_sizes"] for record in records if record["config"]["block_sizes"]}
    return "; ".join(f"{row}, {' and '.join(map(str, sizes))}" for row, sizes in sorted(found.items())) or "none"
