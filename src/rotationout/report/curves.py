"""Learning curves of training runs, from their records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from .style import PALETTE, STYLE, finish

__all__ = ["CAPTION", "curves_figure"]

LINES = ("-", "--", ":", "-.")
CAPTION = "after each epoch: mean over seeds, and their range."


def curves_figure(
    records: Sequence[dict[str, Any]], key: str = "test_curve", label: str = "test accuracy, %", factor: float = 100.0
) -> Figure:
    """A line for each row over epochs: the mean over its seeds, and all of their range.

    Args:
        records: of runs of one recipe.
        key: the curve, by its name in the records; less is better if it is not that of accuracy.
        label: what it shows.
        factor: from the numbers of the records to those of the picture.
    """
    rows: dict[str, list[list[float]]] = {}
    for record in records:
        rows.setdefault(record["row"], []).append(record[key])
    tested = max((_epochs(record, key) for record in records), key=len)
    more_is_better = key == "test_curve"
    looks = itertools.product(LINES, PALETTE.values())  # 28 rows at most
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        lowest, highest, peak = math.inf, 0.0, 0.0
        for (row, curves), (line, colour) in zip(rows.items(), looks, strict=False):
            epochs = min(map(len, curves))
            points = factor * np.array([curve[:epochs] for curve in curves])
            places = tested[:epochs]
            axes.plot(places, points.mean(0), line, color=colour, label=row, linewidth=1.2)
            axes.fill_between(places, points.min(0), points.max(0), color=colour, alpha=0.15, linewidth=0)
            last = points[:, -max(epochs // 4, 1) :]
            top = points if more_is_better else last
            lowest, highest = min(lowest, float(last.min())), max(highest, float(top.max()))
            peak = max(peak, float(points.max()))
        axes.set(xlabel="epoch", ylabel=label)
        # The question is where the curves end; the first epochs may leave the picture.
        bottom = max(0.0, 2.5 * lowest - 1.5 * highest - 5)
        axes.set_ylim(*(bottom, highest + 1) if more_is_better else (0.0, min(2.5 * highest, 1.05 * peak)))
        finish(axes)
        _name_lines(figure, columns=2 if len(rows) < 10 else 3)
    return figure


def _name_lines(figure: Figure, columns: int) -> None:
    """A legend below the figure, in so many columns or, if names are long, in fewer: it must not be cut off."""
    for count in range(columns, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=count, fontsize=8)
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _epochs(record: dict[str, Any], key: str) -> list[int]:
    """The epochs after which a curve was measured. Not every one may end with a test; the last one does."""
    count, epochs = len(record[key]), record["epochs"]
    every = 1 if count >= epochs else record["config"].get("test_every", 1)
    return [min((k + 1) * every, epochs) for k in range(count)]
