"""Learning curves of training runs, from their records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .cells import by_row
from .style import HUES, PALETTE, STYLE, finish

__all__ = ["CAPTION", "accuracy_caption", "curves_figure", "held_out"]

LINES = ("-", "--", ":", "-.")
DROPOUTS = ("dropout", "centred-dropout", "spatial", "locked")
EVERY = tuple(colour for colour in PALETTE.values() if colour not in HUES["none"])
CAPTION = "after each epoch: the line is the mean over seeds, the band their range."


def curves_figure(
    records: Sequence[dict[str, Any]],
    key: str = "test_curve",
    label: str = "",
    factor: float = 100.0,
    looks: Mapping[str, tuple[str, str]] | None = None,
) -> Figure:
    """A line for each row over epochs: the mean over its seeds, with a band for their range.

    What matters is where the curves end, so the axes begin where the first curve comes near that.

    Args:
        records: of runs of one recipe.
        key: the name of the curve in the records; lower is better for all but accuracy.
        label: what it shows; accuracy if it is empty.
        factor: what the numbers of the records are multiplied by.
        looks: a line style and a colour for each row; chosen by family of noise if None.
    """
    rows = {row: [run[key] for run in runs] for row, runs in by_row(records).items()}
    tested = max((_epochs(record, key) for record in records), key=len)
    more_is_better = key == "test_curve"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 2.8), layout="constrained")
        axes = figure.subplots()
        lowest, highest, peak = math.inf, 0.0, 0.0
        means: list[list[float]] = []
        for row, (line, colour) in (looks or _looks(records)).items():
            epochs = min(map(len, rows[row]))
            points = factor * np.array([curve[:epochs] for curve in rows[row]])
            places = tested[:epochs]
            means.append(points.mean(0).tolist())
            single = "o" if epochs == 1 else None  # a line of one point is not to be seen
            axes.plot(places, means[-1], line, color=colour, label=row, linewidth=1.2, marker=single)
            axes.fill_between(places, points.min(0), points.max(0), color=colour, alpha=0.15, linewidth=0)
            last = points[:, -max(epochs // 4, 1) :]
            top = points if more_is_better else last
            lowest, highest = min(lowest, float(last.min())), max(highest, float(top.max()))
            peak = max(peak, float(points.max()))
        axes.set(xlabel="epoch", ylabel=label or f"{'held-out' if held_out(records) else 'test'} accuracy, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        bottom = max(0.0, 2.5 * lowest - 1.5 * highest - 2)
        limits = (bottom, highest + 1) if more_is_better else (0.0, min(2.5 * highest, 1.05 * peak))
        axes.set_ylim(*limits)
        axes.set_xlim(left=min(_enters(tested, mean, *limits) for mean in means))
        finish(axes)
        _name_lines(figure, columns=2 if len(rows) < 10 else 3)
    return figure


def held_out(records: Sequence[dict[str, Any]]) -> bool:
    """Whether runs are tested on examples that were held out of the training set, and not on the test set."""
    return any(record.get("config", {}).get("held_out") for record in records)


def accuracy_caption(records: Sequence[dict[str, Any]]) -> str:
    """What `curves_figure` shows of accuracy.

    >>> accuracy_caption([{"config": {"held_out": 5000}}])
    'Accuracy on held-out training images after each epoch: the line is the mean over seeds, the band their range.'
    """
    return f"{'Accuracy on held-out training images' if held_out(records) else 'Test accuracy'} {CAPTION}"


def _looks(records: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """A line style and a colour for each row, by family; if all rows are of one family, colours distinguish them."""
    family_of = {row: _family(runs[0]) for row, runs in by_row(records).items()}
    looks: dict[str, tuple[str, str]] = {}
    for family, hues in HUES.items():
        rows = [row for row, its in family_of.items() if its == family]
        colours = hues if family == "none" or len(rows) < len(family_of) else EVERY
        shades = math.ceil(len(rows) / len(LINES))
        if 1 < len(colours) < shades:  # those in between too
            between = LinearSegmentedColormap.from_list(family, colours)
            colours = tuple(to_hex(between(k / (shades - 1))) for k in range(shades))
        looks.update(zip(rows, itertools.cycle(itertools.product(LINES, colours)), strict=False))
    return looks


def _family(record: dict[str, Any]) -> str:
    """That of a row's noise, one of `HUES`."""
    noise = record.get("config", {}).get("noise", "none")
    if record["row"].startswith("none"):
        return "none"
    if noise in DROPOUTS:
        return "dropout"
    return "rotation" if noise.startswith("rotation") else "other"  # without noise, the row is one of something else


def _enters(places: Sequence[float], values: Sequence[float], low: float, high: float) -> float:
    """The last place before a curve is first between two limits.

    >>> _enters([10, 20, 30, 40], [1.0, 2.0, 7.0, 8.0], 5.0, 9.0)
    20
    """
    inside = next((k for k, value in enumerate(values) if low <= value <= high), 0)
    return places[max(inside - 1, 0)]


def _name_lines(figure: Figure, columns: int) -> None:
    """A legend below the figure, in at most this many columns: fewer if it would otherwise be cut off.

    The figure grows by the height of the legend, so that the curves keep their size.
    """
    for count in range(columns, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=count, fontsize=8)
        box = legend.get_window_extent()
        if count == 1 or box.width <= figure.bbox.width:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
            return
        legend.remove()


def _epochs(record: dict[str, Any], key: str) -> list[int]:
    """The epochs after which a curve was measured. Not every one may end with a test; the last one does."""
    count, epochs = len(record[key]), record["epochs"]
    every = 1 if count >= epochs else record["config"].get("test_every", 1)
    return [min((k + 1) * every, epochs) for k in range(count)]
