"""The figures of the demo, computed from its records alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ..experiments.records import LABELS, Study, mean_sd
from .style import HUES, INK, STYLE, finish

__all__ = ["accuracy_figure", "strength_figure"]

COLOURS = {"none": HUES["none"][0], "dropout": HUES["dropout"][0], "rotationout": HUES["rotation"][0]}
# The markers say the same once more.
MARKERS = {"none": "s", "dropout": "^", "rotationout": "o"}
MARKER = 0.035
"""The height of a marker, as a part of the span of all values."""


def accuracy_figure(study: Study) -> Figure:
    """Test accuracy over epochs, and every seed's last value."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained")
        curves, finals = figure.subplots(1, 2, width_ratios=(1, 1))
        by_seed = [[100 * r.test_accuracy for r in study.select(noise)] for noise in LABELS]
        lowest, highest = min(map(min, by_seed)), max(map(max, by_seed))
        across = []
        for place, (noise, label) in enumerate(LABELS.items()):
            runs, last = study.select(noise), by_seed[place]
            colour = COLOURS[noise]
            points = 100 * np.array([r.test_curve for r in runs])
            mean, sd = points.mean(0), points.std(0, ddof=1) if len(runs) > 1 else np.zeros(points.shape[1])
            curves.plot(runs[0].epochs, mean, color=colour, label=label, marker=MARKERS[noise], markersize=3)
            curves.fill_between(runs[0].epochs, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
            across.append([place + shift for shift in _apart(last, MARKER * (highest - lowest))])
            finals.plot(across[-1], last, MARKERS[noise], color=colour, markersize=5, zorder=3)
            finals.hlines(mean_sd(last)[0], place - 0.35, place + 0.35, color=colour, linewidth=2)
        finals.plot(np.array(across), np.array(by_seed), color=INK, linewidth=0.6, alpha=0.6)
        curves.set(xlabel="epoch", ylabel="test accuracy, %", title="While training")
        curves.legend(loc="lower right")
        # The first epochs are far below; the question is where the curves end.
        curves.set_ylim(max(0.0, lowest - 6), highest + 1)
        finals.set(title="Every seed, last epoch", xlim=(-0.5, 2.5))
        finals.set_xticks(range(len(LABELS)), list(LABELS.values()), fontsize=9)  # larger, they would touch
        for axes in (curves, finals):
            finish(axes)
    return figure


def strength_figure(study: Study) -> Figure:
    """Test accuracy of both noises over the drop probability, beside the network without noise."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 2.9), layout="constrained")
        axes = figure.subplots()
        base = mean_sd([100 * r.test_accuracy for r in study.select("none")])[0]
        axes.axhline(base, color=COLOURS["none"], linestyle="--", linewidth=1.2, label=LABELS["none"])
        for noise, shift in (("dropout", -0.004), ("rotationout", 0.004)):  # apart, so that bars do not overlap
            stats = [mean_sd([100 * r.test_accuracy for r in study.select(noise, p)]) for p in study.rates]
            axes.errorbar(
                [p + shift for p in study.rates],
                [mean for mean, _ in stats],
                yerr=np.nan_to_num([sd for _, sd in stats]),
                color=COLOURS[noise],
                marker=MARKERS[noise],
                label=LABELS[noise],
                markersize=5,
                elinewidth=1,
                capsize=2,
            )
        axes.set(xlabel="drop probability p", ylabel="test accuracy, %")
        axes.set_xticks(study.rates, [f"{p:g}" for p in study.rates])
        axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        finish(axes)
    return figure


def _apart(values: Sequence[float], near: float) -> list[float]:
    """How far sideways to draw each of these points, so that those within ``near`` of another do not hide it.

    It is moved no further than its neighbours make necessary. Where they leave no room, it goes to the farthest.

    >>> _apart([93.0, 95.0, 93.0, 93.1, 94.0], near=0.2)
    [0.0, 0.0, 0.12, -0.12, 0.0]
    """
    # And the highest point in each so far.
    columns: dict[float, float] = dict.fromkeys((0.0, 0.12, -0.12, 0.24, -0.24, 0.36, -0.36), -math.inf)
    shifts = [0.0] * len(values)
    for place in sorted(range(len(values)), key=values.__getitem__):
        value = values[place]
        shifts[place] = max(columns, key=lambda column: min(value - columns[column], near))
        columns[shifts[place]] = value
    return shifts
