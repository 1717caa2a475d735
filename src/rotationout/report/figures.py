"""The figures of the demo, computed from its records alone."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ..experiments.records import LABELS, Study, mean_sd
from .style import HUES, INK, STYLE, finish

__all__ = ["accuracy_figure", "strength_figure"]

COLOURS = {"none": HUES["none"][0], "dropout": HUES["dropout"][0], "rotationout": HUES["rotation"][0]}
# The markers say the same once more.
MARKERS = {"none": "s", "dropout": "^", "rotationout": "o"}


def accuracy_figure(study: Study) -> Figure:
    """Test accuracy over epochs, and every seed's last value."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained")
        curves, finals = figure.subplots(1, 2, width_ratios=(6, 5))
        by_seed = []
        for place, (noise, label) in enumerate(LABELS.items()):
            runs = study.select(noise)
            colour = COLOURS[noise]
            points = 100 * np.array([r.test_curve for r in runs])
            mean, sd = points.mean(0), points.std(0, ddof=1) if len(runs) > 1 else np.zeros(points.shape[1])
            curves.plot(runs[0].epochs, mean, color=colour, label=label, marker=MARKERS[noise], markersize=3)
            curves.fill_between(runs[0].epochs, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
            last = [100 * r.test_accuracy for r in runs]
            by_seed.append(last)
            finals.plot([place] * len(last), last, MARKERS[noise], color=colour, markersize=5, zorder=3)
            finals.hlines(mean_sd(last)[0], place - 0.22, place + 0.22, color=colour, linewidth=2)
        finals.plot(np.array(by_seed), color=INK, linewidth=0.6, alpha=0.6)
        curves.set(xlabel="epoch", ylabel="test accuracy, %", title="While training")
        curves.legend(loc="lower right")
        # The first epochs are far below; the question is where the curves end.
        curves.set_ylim(max(0.0, min(map(min, by_seed)) - 6), max(map(max, by_seed)) + 1)
        finals.set(title="Every seed, last epoch", xlim=(-0.5, 2.5))
        finals.set_xticks(range(len(LABELS)), list(LABELS.values()))
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
