"""What detectors see in a few test images, beside what is there: from records, on the images if these are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ...experiments.detection.annotations import image_folder
from ...experiments.pixels import decode
from ...experiments.problems import UnusableError
from ..style import PALETTE, STYLE
from . import Columns, Drawing

__all__ = ["seen_boxes"]

COLOURS = ("red", "blue", "green", "orange", "purple", "sky")
"""Of the categories, again from the first if there are more."""
ROWS = ("none", "rotation")
"""Whose first seed is shown, if it is there; else that of the first row."""
NAMES = {"true": "what is there", "none": "no noise"}


def seen_boxes(recipe: str, records: Sequence[dict[str, Any]], data: Path | None = None) -> Drawing:
    """The figure of a recipe: a line for what is there and one for each of a few rows, a column for each image.

    Args:
        recipe: whose records they are.
        records: their ``shown`` is what is drawn.
        data: the data set, for the images; without it boxes are drawn on blank ones. An image that cannot be used is
            blank too, and says why.
    """
    first = {record["row"]: record for record in reversed(records)}  # of each row the first seed
    rows = [row for row in ROWS if row in first] or [records[0]["row"]]
    seers = " and with ".join(NAMES.get(row, row) for row in rows)
    shown = [image for row in rows for image in first[row]["shown"]]
    images = list(dict.fromkeys((image["name"], *image["size"]) for image in shown))
    folder = None if data is None else image_folder(data, records[0]["config"]["test_split"])
    return Drawing(
        name=f"detections_{recipe}",
        title=f"Detections on {recipe}",
        caption=f"Test images: true boxes on top, then detections (score at least 0.3) after training with {seers}.",
        compute=partial(_boxes, [first[row] for row in rows]),
        draw=partial(_draw, seers=["true", *rows], images=images, folder=folder),
    )


def _boxes(records: Sequence[dict[str, Any]]) -> Columns:
    lines: list[tuple[Any, ...]] = []
    for image in {image["name"]: image for record in records for image in record["shown"]}.values():
        lines += [(image["name"], *image["size"], "true", *box, 1.0) for box in image["true"]]
    for record in records:
        for image in record["shown"]:
            lines += [(image["name"], *image["size"], record["row"], *box) for box in image["seen"]]
    names = ("image", "height", "width", "by", "category", "left", "top", "right", "bottom", "score")
    return {name: [line[k] for line in lines] for k, name in enumerate(names)}


def _draw(
    columns: Columns, seers: Sequence[str], images: Sequence[tuple[str, int, int]], folder: Path | None
) -> Figure:
    lines: list[dict[str, Any]] = [
        dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)
    ]
    kinds = list(dict.fromkeys(line["category"] for line in lines))
    colour = {kind: PALETTE[COLOURS[k % len(COLOURS)]] for k, kind in enumerate(kinds)}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.4 * max(len(images), 2), 1.9 * len(seers) + 0.5), layout="constrained")
        grid = figure.subplots(len(seers), max(1, len(images)), squeeze=False)
        for across, (image, height, width) in enumerate(images):
            for down, seer in enumerate(seers):
                axes = cast(Axes, grid[down][across])
                _background(axes, None if folder is None else folder / image, height, width)
                for line in lines:
                    if (line["image"], line["by"]) == (image, seer):
                        _outline(axes, line, colour[line["category"]])
                if across == 0:
                    axes.set_ylabel(NAMES.get(seer, seer))
                if down == 0:
                    axes.set_title(image, fontsize=7)
        handles = [Line2D([], [], color=colour[kind], label=str(kind)) for kind in kinds]
        figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)))
    return figure


def _background(axes: Axes, file: Path | None, height: int, width: int) -> None:
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
    if file is None:
        return
    try:
        image, _ = decode(file.name, file.read_bytes)  # in RGB, as training sees it
    except UnusableError as error:
        axes.text(width / 2, height / 2, error.reason, ha="center", va="center", fontsize=7)
    else:
        axes.imshow(image, extent=(0, width, height, 0))


def _outline(axes: Axes, line: dict[str, Any], colour: str) -> None:
    corner, size = (line["left"], line["top"]), (line["right"] - line["left"], line["bottom"] - line["top"])
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=1.1))
