"""Figures of appendix B: what BatchNorm of small batches makes of a value, and the study that came of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from ...analysis import batchnorm as theory
from ...experiments.records import mean_sd
from ...experiments.small_batch import LABELS, STATISTICS, SmallBatchStudy
from ..style import INK, PALETTE, STYLE, finish
from . import Columns, Drawing, columns_of, select

__all__ = ["FIGURES", "experiment"]

SIZES = (4, 8, 16, 32)
SAMPLES = 40_000
REACH = 4.0
SUPPORTS = {  # of f_Test: beyond it there are no values
    "gaussian": (-REACH, REACH),
    "uniform": (-math.sqrt(3), math.sqrt(3)),
    "uniform-square": (-math.sqrt(5) / 2, math.sqrt(5)),
    "uniform-cube": (-math.sqrt(7) / 3, math.sqrt(7)),
    "laplace": (-REACH, REACH),
}
COLOURS = dict(zip(SUPPORTS, ("blue", "orange", "green", "red", "purple"), strict=True))
DASHES = dict(zip(SUPPORTS, ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), strict=True))
NAMES = {
    "gaussian": "Gaussian",
    "uniform": "uniform",
    "uniform-square": "uniform²",
    "uniform-cube": "uniform³",
    "laplace": "Laplace",
}
SIZE_COLOURS = dict(zip(SIZES, ("red", "orange", "green", "blue"), strict=True))


def gaussian_columns() -> Columns:
    """f_Expect and f_Var of Gaussian values, by quadrature."""
    x = torch.linspace(-REACH, REACH, 81, dtype=torch.float64)
    rows: list[tuple[float, ...]] = []
    for size in SIZES:
        moments = theory.moments(x, size)
        values = zip(x.tolist(), moments.expect.value.tolist(), moments.var.value.tolist(), strict=True)
        rows += [(size, *row) for row in values]
    return columns_of(("batch_size", "f_test", "f_expect", "f_var"), rows)


@functools.cache  # two figures show the same
def distribution_columns() -> Columns:
    """Both moments for every distribution and batch size, with standard errors, and f_poly."""
    names = ("distribution", "batch_size", "f_test", "f_expect", "f_expect_error", "f_var", "f_var_error", "f_poly")
    rows: list[tuple[float | str, ...]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, (low, high) in SUPPORTS.items():
            law = theory.DISTRIBUTIONS[name]
            x = torch.linspace(low, high, 65, dtype=torch.float64)
            for size in SIZES:
                moments = theory.moments(law.mean + law.std * x, size, name, samples=SAMPLES)
                values = (x, *moments.expect, *moments.var, theory.f_poly(x, size))
                rows += [(name, size, *row) for row in torch.stack(values, 1).tolist()]
    return columns_of(names, rows)


def noise_columns() -> Columns:
    """The drop rate that BatchNorm's noise is equivalent to."""
    rows: list[tuple[float | str, ...]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name in SUPPORTS:
            for size in (2, 3, *SIZES, 64):
                rate = theory.equivalent_drop_rate(size, name, samples=SAMPLES)
                rows.append((name, size, rate.value.item(), rate.error.item()))
    return columns_of(("distribution", "batch_size", "drop_rate", "error"), rows)


def draw_gaussian(columns: Columns) -> Figure:
    """The paper's first figure of appendix B (label addfig1)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3), layout="constrained")
        expect, var = figure.subplots(1, 2)
        for size, colour in SIZE_COLOURS.items():
            test, mean, noise = select(columns, "f_test", "f_expect", "f_var", batch_size=size)
            expect.plot(test, mean, color=PALETTE[colour], label=f"B = {size}")
            var.plot(test, noise, color=PALETTE[colour], label=f"B = {size}")
        expect.plot([-REACH, REACH], [-REACH, REACH], ":", color=INK, label="test mode")
        expect.set(xlabel="f_Test", ylabel="f_Expect")
        var.set(xlabel="f_Test", ylabel="f_Var", ylim=(0, None))
        expect.legend(fontsize=8, loc="upper left")
        for axes in (expect, var):
            finish(axes)
    return figure


def draw_distributions(quantity: str, columns: Columns) -> Figure:
    """f_Expect or f_Var of all distributions, a panel for each batch size (label addfig2, and more)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 4.6), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, size in zip(panels.flat, SIZES, strict=True):
            for name, label in NAMES.items():
                drawn = ("f_test", quantity, f"{quantity}_error")
                test, value, error = select(columns, *drawn, distribution=name, batch_size=size)
                axes.plot(test, value, color=PALETTE[COLOURS[name]], linestyle=DASHES[name], label=label, linewidth=1.4)
                low, high = ([v + sign * 2 * e for v, e in zip(value, error, strict=True)] for sign in (-1, 1))
                axes.fill_between(test, low, high, color=PALETTE[COLOURS[name]], alpha=0.25, linewidth=0)
            if quantity == "f_expect":
                axes.plot([-REACH, REACH], [-REACH, REACH], ":", color=INK, linewidth=1, label="test mode")
            axes.set_title(f"B = {size}")
            finish(axes)
        figure.supxlabel("f_Test", fontsize=10, color=INK)
        figure.supylabel({"f_expect": "f_Expect", "f_var": "f_Var"}[quantity], fontsize=10, color=INK)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def draw_polynomial(columns: Columns) -> Figure:
    """The paper's third figure of appendix B (label addfig3), at B = 8."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        fit, residual = figure.subplots(1, 2)
        for name, label in NAMES.items():
            test, mean, poly = select(columns, "f_test", "f_expect", "f_poly", distribution=name, batch_size=8)
            style = {"color": PALETTE[COLOURS[name]], "linestyle": DASHES[name], "linewidth": 1.4}
            fit.plot(test, mean, label=label, **style)
            residual.plot(test, [a - b for a, b in zip(poly, mean, strict=True)], **style)
        test, poly = select(columns, "f_test", "f_poly", distribution="gaussian", batch_size=8)
        fit.plot(test, poly, "o", color=INK, markersize=3, markevery=4, label="f_poly")
        fit.set(xlabel="f_Test", ylabel="f_Expect")
        residual.set(xlabel="f_Test", ylabel="f_poly − f_Expect")
        for axes in (fit, residual):
            finish(axes)
        figure.legend(*fit.get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=8)
    return figure


def draw_noise(columns: Columns) -> Figure:
    """E[f_Var] over the batch size."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        for name, label in NAMES.items():
            sizes, rates = select(columns, "batch_size", "drop_rate", distribution=name)
            axes.plot(
                sizes,
                rates,
                color=PALETTE[COLOURS[name]],
                linestyle=DASHES[name],
                marker="o",
                markersize=3,
                label=label,
            )
        axes.plot([4, 8, 16], [0.5, 0.2, 0.1], "v", color=INK, label="bounds of the paper")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="batch size B", ylabel="drop rate, E[f_Var]")
        sizes = sorted(set(sizes))
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
        axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.legend(fontsize=8)
        finish(axes)
    return figure


def experiment(record: Path) -> Drawing:
    """The figure of the small-batch study, from the record that `rotationout.experiments.small_batch` wrote."""

    def compute() -> Columns:
        names = (
            "norm",
            "size",
            "ghost",
            "statistics",
            "n",
            *(f"{what}_{m}" for what in MEASURES for m in ("mean", "sd")),
        )
        return columns_of(names, rows(SmallBatchStudy.load(record)))

    return Drawing(
        "batchnorm_study",
        "Digits at small batch sizes",
        "Test accuracy and loss against the number of examples that are normalised together, mean ± standard deviation "
        "over seeds. Left: batches of that size. Right: batches of 128 examples, normalised in ghost batches of that "
        "size. With running statistics; the CSV file also has those averaged over many batches.",
        compute,
        draw_experiment,
    )


MEASURES = {"accuracy": "test_accuracy", "loss": "test_loss"}
NORM_STYLES = {"batch": ("grey", "s", -1), "poly": ("orange", "^", 0), "cross": ("blue", "o", 1)}


def rows(study: SmallBatchStudy) -> Iterator[tuple[float | str, ...]]:
    """What the figure shows: a row for each normalisation, size and kind of statistics."""
    for statistics in STATISTICS:
        for norm in LABELS:
            for size, ghost in sorted({(r.size, r.ghost) for r in study.results}):
                found = study.select(norm, size, ghost, statistics)
                if found:
                    numbers = [x for m in MEASURES.values() for x in mean_sd([getattr(r, m) for r in found])]
                    yield norm, size, "ghost" if ghost else "batch", statistics, len(found), *numbers


def draw_experiment(columns: Columns) -> Figure:
    """Accuracy above, loss below; batches on the left, ghost batches on the right."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 4.6), layout="constrained")
        panels = figure.subplots(2, 2, sharex="col", sharey="row", width_ratios=(4, 3))
        for column, ghost in enumerate(("batch", "ghost")):
            sizes = sorted({int(s) for s, g in zip(columns["size"], columns["ghost"], strict=True) if g == ghost})
            for axes, measure in zip(panels[:, column], MEASURES, strict=True):
                scale = 100 if measure == "accuracy" else 1
                for norm, (colour, marker, shift) in NORM_STYLES.items():
                    drawn = ("size", f"{measure}_mean", f"{measure}_sd")
                    at, mean, sd = select(columns, *drawn, norm=norm, ghost=ghost, statistics="running")
                    axes.errorbar(
                        [sizes.index(int(size)) + 0.12 * shift for size in at],  # apart, so that bars do not overlap
                        [scale * m for m in mean],
                        yerr=[0.0 if math.isnan(s) else scale * s for s in sd],
                        color=PALETTE[colour],
                        marker=marker,
                        label=LABELS[norm],
                        markersize=5,
                        linewidth=1,
                        capsize=2,
                    )
                axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
                finish(axes)
            panels[1, column].set_xlabel("batch size" if ghost == "batch" else "ghost batch of 128")
        panels[0, 0].set_ylabel("test accuracy, %")
        panels[1, 0].set_ylabel("test loss, nats")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


FIGURES: list[Drawing] = [
    Drawing(
        "batchnorm_gaussian",
        "BatchNorm of small Gaussian batches",
        "Mean (f_Expect) and variance (f_Var) of BatchNorm’s output for a value in training, against its output in "
        "test mode; by quadrature (appendix B, label addfig1).",
        gaussian_columns,
        draw_gaussian,
    ),
    Drawing(
        "batchnorm_distributions_mean",
        "f_Expect for five distributions",
        f"Each on its support, Monte Carlo with {SAMPLES:,} batches; bands are ± two standard errors (appendix B, "
        "label addfig2). uniform² and uniform³ are powers of a uniform value; Laplace's tails are not sub-Gaussian.",
        distribution_columns,
        functools.partial(draw_distributions, "f_expect"),
    ),
    Drawing(
        "batchnorm_distributions_noise",
        "f_Var for five distributions",
        "The variance of the noise, computed in the same way (appendix B).",
        distribution_columns,
        functools.partial(draw_distributions, "f_var"),
    ),
    Drawing(
        "batchnorm_polynomial",
        "The polynomial of the test mode, B = 8",
        "Left: f_poly, fitted to the Gaussian, and f_Expect of five distributions. Right: its error. From its turning "
        "point at 3.80 on, f_poly is held constant (appendix B, label addfig3).",
        distribution_columns,
        draw_polynomial,
    ),
    Drawing(
        "batchnorm_noise",
        "The drop rate that BatchNorm's noise is equivalent to",
        "E[f_Var], the share of noise in the variance of the output, which for Dropout is its drop rate (appendix B).",
        noise_columns,
        draw_noise,
    ),
]
