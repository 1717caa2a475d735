"""Learning curves of training runs, from their records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from .style import PALETTE, STYLE, finish

__all__ = ["curves_figure"]

LINES = ("-", "--", ":", "-.")


def curves_figure(records: Sequence[dict[str, Any]]) -> Figure:
    """Test accuracy after every epoch: a line for each row, the mean over its seeds, and all of their range."""
    rows: dict[str, list[list[float]]] = {}
    for record in records:
        rows.setdefault(record["row"], []).append(record["test_curve"])
    looks = itertools.product(LINES, PALETTE.values())  # 28 rows at most
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        lowest, highest = 100.0, 0.0
        for (row, curves), (line, colour) in zip(rows.items(), looks, strict=False):
            epochs = min(map(len, curves))
            points = 100 * np.array([curve[:epochs] for curve in curves])
            places = np.arange(1, epochs + 1)
            axes.plot(places, points.mean(0), line, color=colour, label=row, linewidth=1.2)
            axes.fill_between(places, points.min(0), points.max(0), color=colour, alpha=0.15, linewidth=0)
            last = points[:, -max(epochs // 4, 1) :]
            lowest, highest = min(lowest, float(last.min())), max(highest, float(points.max()))
        axes.set(xlabel="epoch", ylabel="test accuracy, %")
        # The question is where the curves end; the first epochs may leave the picture.
        axes.set_ylim(max(0.0, 2.5 * lowest - 1.5 * highest - 5), highest + 1)
        figure.legend(loc="outside lower center", ncols=2 if len(rows) < 10 else 3, fontsize=8)
        finish(axes)
    return figure
