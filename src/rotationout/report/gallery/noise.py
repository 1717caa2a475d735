"""Figures of the noise analysis: correlation and co-adaptation (section 3.1), how far Dropout turns (section 2.2)."""

from __future__ import annotations

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import nn

from ...analysis import coadaptation_factor, cosine_squared, dropout_rotation, pairwise_correlation, relu_moments
from ...functional import rotation_out
from ...registry import noise
from ..style import INK, PALETTE, STYLE, finish
from . import Columns, Drawing, columns_of, select

__all__ = ["FIGURES"]

WIDTHS = (4, 16, 64)


def _equal(width: int, correlation: float) -> torch.Tensor:
    """Features of variance 1 that are all equally correlated."""
    return torch.full((width, width), correlation, dtype=torch.float64).fill_diagonal_(1.0)


def _correlation() -> Columns:
    rows: list[tuple[str, float, float, float, float]] = []
    for width in WIDTHS:
        for keep in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
            terms = pairwise_correlation(noise("rotation", 1 - keep), _equal(width, 0.5))
            before, one, both = (r[0, 1].item() for r in (terms.before, terms.by_variance, terms.after))
            rows.append((f"D = {width}", keep, before, one, both))
    names = ("curve", "keep rate", "without noise", "added variance alone (Dropout)", "and inhibition (RotationOut)")
    return columns_of(names, rows)


def _draw_correlation(columns: Columns) -> Figure:
    _, rate, before, one, both = columns
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        panels = figure.subplots(1, len(WIDTHS), sharex=True, sharey=True)
        for axes, width in zip(panels, WIDTHS, strict=True):
            keep, still, dropped, turned = select(columns, rate, before, one, both, curve=f"D = {width}")
            axes.plot(keep, still, color=PALETTE["grey"], linestyle="--", label=before)
            axes.plot(keep, dropped, color=PALETTE["orange"], label=one)
            axes.plot(keep, turned, color=PALETTE["blue"], label=both)
            axes.fill_between(keep, still, dropped, color=PALETTE["orange"], alpha=0.18, linewidth=0)
            axes.fill_between(keep, dropped, turned, color=PALETTE["blue"], alpha=0.25, linewidth=0)
            axes.set(title=f"D = {width}", xlabel="keep rate 1 − p", xlim=(1.0, 0.3))
            finish(axes)
        panels[0].set(ylabel="correlation of two features", ylim=(-0.02, 0.55))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


COADAPTATION = {
    "Dropout, zero-centred features": (PALETTE["orange"], "--"),
    "RotationOut, zero-centred features": (PALETTE["blue"], "--"),
    "Dropout, ReLU features": (PALETTE["orange"], "-"),
    "RotationOut, ReLU features": (PALETTE["blue"], "-"),
}


def _coadaptation() -> Columns:
    width = 16
    relu = relu_moments(_equal(width, 0.5))
    rows: list[tuple[str, float, float]] = []
    for curve in COADAPTATION:
        for keep in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
            layer = noise("dropout" if curve.startswith("Dropout") else "rotation", 1 - keep)
            factor = (
                coadaptation_factor(layer, covariance=relu.covariance, mean=relu.mean)
                if "ReLU" in curve
                else coadaptation_factor(layer, width)
            )
            rows.append((curve, keep, factor))
    rows += [("the paper's ReLU example", 0.9, 0.86), ("the paper's ReLU example", 0.7, 0.61)]
    return columns_of(("curve", "keep rate", "co-adaptation left"), rows)


def _draw_coadaptation(columns: Columns) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        for curve, (colour, line) in COADAPTATION.items():
            axes.plot(
                *select(columns, "keep rate", "co-adaptation left", curve=curve),
                color=colour,
                linestyle=line,
                label=curve,
            )
        paper = "the paper's ReLU example"
        axes.plot(
            *select(columns, "keep rate", "co-adaptation left", curve=paper), "o", color=INK, markersize=5, label=paper
        )
        axes.set(xlabel="keep rate 1 − p", ylabel="co(x̃) / co(x)", xlim=(1.0, 0.3), ylim=(0, 1.03))
        axes.legend(loc="lower left")
        finish(axes)
    return figure


TURNS = {
    "Dropout, D = 16": (16, PALETTE["sky"], "^", -0.008),
    "Dropout, D = 256": (256, PALETTE["orange"], "s", 0.0),
    "RotationOut": (256, PALETTE["blue"], "o", 0.008),
}


def _turn() -> Columns:
    rows: list[tuple[str, float, float, float, float, float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for curve, (width, _, _, _) in TURNS.items():
            x = torch.randn(width).expand(2000, -1)
            for keep in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
                y = rotation_out(x, 1 - keep) if curve == "RotationOut" else nn.functional.dropout(x, 1 - keep)
                found = cosine_squared(x, y)
                predicted = dropout_rotation(x[0], 1 - keep).std.item() if curve != "RotationOut" else float("nan")
                rows.append((curve, keep, found.mean().item(), found.std().item(), keep, predicted))
    names = (
        "curve",
        "keep rate",
        "mean cos²θ, sampled",
        "sd, sampled",
        "mean by theory (Dropout)",
        "sd by theory (Dropout)",
    )
    return columns_of(names, rows)


def _draw_turn(columns: Columns) -> Figure:
    _, rate, mean_name, sd_name, theory, _ = columns
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        keep, exact = select(columns, rate, theory, curve="Dropout, D = 256")
        axes.plot(keep, exact, color=INK, linestyle="--", linewidth=1, label="cos²θ = keep rate", zorder=1)
        for curve, (_, colour, marker, aside) in TURNS.items():
            keep, mean, sd = select(columns, rate, mean_name, sd_name, curve=curve)
            beside = [k + aside for k in keep]  # so that bars do not overlap
            axes.errorbar(
                beside,
                mean,
                yerr=sd,
                color=colour,
                marker=marker,
                linestyle="none",
                markersize=4,
                capsize=2,
                label=curve,
            )
        axes.set(xlabel="keep rate 1 − p", ylabel="cos²θ between x and x̃", xlim=(1.0, 0.25), ylim=(0, 1.05))
        axes.legend(loc="lower left")
        finish(axes)
    return figure


FIGURES = [
    Drawing(
        "correlation_terms",
        "What noise does to a correlation",
        "Two of D features, whose correlation is 0.5 without noise (label eq15). Every noise adds variance (orange); "
        "RotationOut also inhibits (blue), by a share λ / (D − 1) that only matters if there are few features.",
        _correlation,
        _draw_correlation,
    ),
    Drawing(
        "coadaptation_factor",
        "How much co-adaptation a noise leaves",
        "Predicted from the moments of 16 features (label eq145). About the origin the mean of ReLU features makes the "
        "noise stronger than its rate suggests. The points are the two values that the paper prints.",
        _coadaptation,
        _draw_coadaptation,
    ),
    Drawing(
        "dropout_rotation",
        "The rotation that Dropout makes",
        "cos² of the angle between x and x̃, mean and standard deviation of 2,000 draws (section 2.2). For Dropout the "
        "mean is the keep rate exactly; RotationOut of equal λ rotates x less on average.",
        _turn,
        _draw_turn,
    ),
]
