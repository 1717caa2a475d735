"""Figures of trained networks, from records: variance shift and repairs, co-adaptation by block, ghost batches.

Each is there if its records are: `figures` looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from ...experiments.records import mean_sd
from ...experiments.results import read_records
from ...kinds import listed
from ...recipes.cifar100 import KEEP, SIGMA, TABLES
from .. import ghost, shift
from ..style import PALETTE, STYLE, finish
from . import Columns, Drawing, columns_of

__all__ = ["figures"]

Records = Sequence[dict[str, Any]]
LOOKS: dict[str, tuple[str, str, str]] = {  # Figure 2 in the colours of its learning curves
    "none": ("grey", "s", "-"),
    "Dropout-a, centred": ("orange", "^", "-"),
    "Dropout-b": ("red", "v", "-"),
    "Dropout-b, centred": ("orange", "D", "--"),
    "RotationOut-a": ("blue", "o", "-"),
    "RotationOut-b": ("sky", "P", "-"),
}
for _keep, _colour in zip(KEEP, ("green", "orange", "red", "purple"), strict=True):  # of Table 1: equal strengths
    LOOKS[f"dropout keep {_keep}"] = (_colour, "^", "--")
    LOOKS[f"rotation default sigma {SIGMA[_keep]}"] = (_colour, "o", "-")
PANELS = {
    "trained": "running variance as trained",
    "divided": "times the keep rate",
    "corrected": "by the closed form",
    "recalibrated": "recalibrated, noise off",
}
"""What the states of `rotationout.report.shift.STATES` are called above a panel."""
WIDE = 8.0
"""Ratios above it are drawn on a logarithmic scale."""
OVER = {"mean": "mean over channels", "max": "largest of the channels"}
SHIFT_COLUMNS = ("form", "n", "state", "ratio", "over", "block", "mean", "lowest", "highest")
MODE_LOOKS = dict(
    zip(
        ghost.MODES,
        (("grey", "s"), ("orange", "^"), ("red", "v"), ("blue", "o"), ("green", "D")),
        strict=True,
    )
)


def figures(results: Path) -> list[Drawing]:
    """Those whose records are under ``results``."""
    found: list[Drawing] = []
    shifts = read_records(results, shift.RECIPE)
    if shift.usable(shifts, "variance_shift"):
        found += _shift_drawings(shifts)
    for recipe in TABLES:
        records = read_records(results, recipe)
        if shift.usable(records, "coadaptation"):
            found.append(_coadaptation_drawing(recipe, records))
    ghosts = read_records(results, ghost.RECIPE)
    if ghosts:
        found.append(_ghost_drawing(ghosts))
    return found


def _shift_drawings(records: Records) -> list[Drawing]:
    compute = partial(shift_columns, records)
    how = f"ResNet110, {records[0]['steps']:,} steps; lines are means over n runs, bands their range"
    return [
        Drawing(
            "variance_shift_trained",
            "Variance shift of trained networks",
            "r = max(train / test, test / train) of the variance before the BatchNorm layer after a noise of λ = 1, "
            f"in every block of the third stage (label addfig1111). {how}.",
            compute,
            draw_shift,
        ),
        Drawing(
            "variance_shift_repaired",
            "Variance shift of trained networks, repaired",
            "r compares the variance that the BatchNorm layer divides by in eval mode with that of its input there; "
            "mean over channels: as trained, times the keep rate (the paper’s repair, on all forms), by the closed "
            f"form where one exists, and recalibrated with the noise off. 1 means no shift. {how}.",
            compute,
            draw_repairs,
        ),
    ]


def shift_columns(records: Records) -> Columns:
    """Of every form, state and block r: over channels its mean and its maximum, and of these the mean over runs."""

    def rows() -> Iterator[tuple[float | str, ...]]:
        for form, runs in shift.usable(records, "variance_shift").items():
            for state in shift.STATES:
                found = [run["variance_shift"]["states"][state] for run in runs]
                found = [one for one in found if "top1" in one]
                for ratio in ("r", "stored_r"):
                    for over in OVER:
                        for block, values in enumerate(zip(*(one[f"{ratio}_{over}"] for one in found), strict=True)):
                            yield form, len(found), state, ratio, over, block + 1, *_centre(values)

    return columns_of(SHIFT_COLUMNS, rows())


def draw_shift(columns: Columns) -> Figure:
    """As trained: the mean over channels, and the largest."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, (over, title) in zip(panels, OVER.items(), strict=True):
            _lines(axes, columns, {"state": "trained", "ratio": "r", "over": over})
            axes.set(title=title, xlabel="block of the stage")
        panels[0].set_ylabel("variance shift r")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def draw_repairs(columns: Columns) -> Figure:
    """What testing mode divides by, beside what it is given: a panel for each state."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 5.2), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, (state, title) in zip(panels.flat, PANELS.items(), strict=True):
            _lines(axes, columns, {"state": state, "ratio": "stored_r", "over": "mean"})
            axes.set_title(title)
        for axes in panels[1]:
            axes.set_xlabel("block of the stage")
        for axes in panels[:, 0]:
            axes.set_ylabel("r of what is stored")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _coadaptation_drawing(recipe: str, records: Records) -> Drawing:
    config = records[0]["config"]
    where, label = f"block of stage {listed(config['stages'])}", "block of the stages with noise"
    if config["network"] == "mlp":
        where = label = "hidden layer"
    elif config["network"] == "vit":
        where = label = "block"
    return Drawing(
        "coadaptation_trained" if recipe == shift.RECIPE else f"coadaptation_{recipe.removeprefix('cifar100_')}",
        f"Co-adaptation in trained networks: {recipe}",
        f"co(x) of section 3.1 for the output of every {where}, in testing mode, without noise; "
        f"lines are means over n runs of {records[0]['steps']:,} steps, bands their range.",
        partial(coadaptation_columns, records),
        partial(draw_coadaptation, label=label),
    )


def coadaptation_columns(records: Records) -> Columns:
    """co(x) of every form and block: mean over runs, and their range."""

    def rows() -> Iterator[tuple[float | str, ...]]:
        for form, runs in shift.usable(records, "coadaptation").items():
            blocks = zip(*(run["coadaptation"]["value"] for run in runs), strict=True)
            for block, values in enumerate(blocks):
                yield form, len(runs), block + 1, *_centre(values)

    return columns_of(("form", "n", "block", "mean", "lowest", "highest"), rows())


def draw_coadaptation(columns: Columns, label: str) -> Figure:
    """A line for each form that is shown, over blocks, or whatever the label says."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        _lines(axes, columns, {})
        axes.set(xlabel=label, ylabel="co-adaptation co(x)")
        handles, labels = axes.get_legend_handles_labels()
        ncols = 3 if max(map(len, labels)) < 28 else 2
        figure.legend(handles, labels, loc="outside lower center", ncols=ncols, fontsize=8)
    return figure


def _ghost_drawing(records: Records) -> Drawing:
    return Drawing(
        "ghost_batches",
        "CIFAR-100 with ghost batches",
        "Test accuracy of ResNet20 against the number of examples that are normalised together, in batches of "
        f"{records[0]['config']['batch']}; {records[0]['steps']:,} steps, mean over runs, and their range; n is the "
        "number of runs of a point. Left: running statistics of training. Right: statistics averaged over many "
        "batches. PolyBatchNorm is the network trained with BatchNorm in another test mode; GroupNorm does not use "
        "batches (appendix B).",
        partial(ghost_columns, records),
        draw_ghost,
    )


def ghost_columns(records: Records) -> Columns:
    """Test accuracy of every mode, kind of statistics and size: n, mean and standard deviation, and the range."""
    found = ghost.accuracies(records)
    rows = [(*key, len(values), *mean_sd(values), min(values), max(values)) for key, values in sorted(found.items())]
    return columns_of(("mode", "statistics", "size", "n", "mean", "sd", "lowest", "highest"), rows)


def draw_ghost(columns: Columns) -> Figure:
    """Accuracy over the size, running statistics on the left, averaged ones on the right."""
    rows = list(_rows(columns))
    sizes = sorted({row["size"] for row in rows if row["mode"] != "group"} or {row["size"] for row in rows})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        lines: dict[str, Any] = {}
        for axes, statistics in zip(panels, ghost.STATISTICS, strict=True):
            for place, (mode, label) in enumerate(ghost.MODES.items()):
                kind = "running" if mode == "group" else statistics
                mine = [row for row in rows if row["mode"] == mode and row["statistics"] == kind]
                if mine:
                    draw = _level if mode == "group" else partial(_sized, sizes=sizes, shift=0.06 * (place - 1.5))
                    lines.setdefault(f"{label} ({_count(mine)})", draw(axes, mine, *MODE_LOOKS[mode]))
            axes.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
            axes.set(title=f"{statistics} statistics", xlabel="examples normalised together")
            finish(axes)
        panels[0].set_ylabel("test accuracy, %")
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _sized(
    axes: Axes, rows: Sequence[dict[str, Any]], colour: str, marker: str, sizes: Sequence[float], shift: float
) -> ErrorbarContainer:
    """A point for each size, moved to the side so that bars do not overlap; no line over a size that is missing."""
    found = {row["size"]: row for row in rows}
    points = [found.get(size, {"mean": math.nan, "lowest": math.nan, "highest": math.nan}) for size in sizes]
    return axes.errorbar(
        [place + shift for place in range(len(sizes))],
        [point["mean"] for point in points],
        yerr=[[abs(point[edge] - point["mean"]) for point in points] for edge in ("lowest", "highest")],
        color=PALETTE[colour],
        marker=marker,
        markersize=4,
        linewidth=1,
        capsize=2,
    )


def _level(axes: Axes, rows: Sequence[dict[str, Any]], colour: str, marker: str) -> Line2D:
    """One value for all sizes, and the range of its runs."""
    row = rows[0]
    axes.axhspan(row["lowest"], row["highest"], color=PALETTE[colour], alpha=0.18, linewidth=0)
    return axes.axhline(row["mean"], color=PALETTE[colour], linewidth=1, linestyle="--")


def _lines(axes: Axes, columns: Columns, wanted: dict[str, str]) -> None:
    """A line over blocks for each form that has these values, and a band for its runs."""
    rows = [row for row in _rows(columns) if all(row[key] == value for key, value in wanted.items())]
    forms = _shown(list(dict.fromkeys(row["form"] for row in rows)))
    others = list(PALETTE)
    for place, form in enumerate(forms):
        colour, marker, line = LOOKS.get(form, (others[place % len(others)], "x", ":"))
        mine = [row for row in rows if row["form"] == form]
        blocks = [row["block"] for row in mine]
        axes.plot(
            blocks,
            [row["mean"] for row in mine],
            color=PALETTE[colour],
            marker=marker,
            linestyle=line,
            markersize=3.5,
            linewidth=1.2,
            label=f"{form} ({_count(mine)})",
        )
        low, high = ([row[edge] for row in mine] for edge in ("lowest", "highest"))
        axes.fill_between(blocks, low, high, color=PALETTE[colour], alpha=0.18, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if wanted and max((row["highest"] for row in rows), default=1.0) > WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    finish(axes)


def _shown(forms: list[str]) -> list[str]:
    """All forms if they are few, else those that the paper compares."""
    if len(forms) <= len(PALETTE):
        return forms
    return [form for form in forms if form == "none" or form.startswith(("dropout keep", "rotation default"))]


def _count(rows: Sequence[dict[str, Any]]) -> str:
    counts = sorted({int(row["n"]) for row in rows})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _rows(columns: Columns) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _centre(values: Sequence[float]) -> tuple[float, float, float]:
    return mean_sd(values)[0], min(values), max(values)
