"""Figures of section 3.2: where Dropout-a and Dropout-b stand, and by theory how much each shifts the variance."""

from __future__ import annotations

from functools import cache
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import nn

from ...analysis import Moments, limit_ratio, relu_moments, sample_shift
from ...registry import noise
from ..style import INK, PALETTE, STYLE, finish
from . import Columns, Drawing, columns_of, select

__all__ = ["FIGURES", "relu_features"]

_ROTATION = {"color": PALETTE["blue"], "linestyle": "none", "marker": "o", "markersize": 6}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Dropout-a": ("dropout", "a", {"color": PALETTE["orange"]}),
    "Dropout-a, centred": ("centred-dropout", "a", {"color": PALETTE["orange"], "linestyle": "--"}),
    "Dropout-b": ("dropout", "b", {"color": PALETTE["red"]}),
    "Dropout-b, centred": ("centred-dropout", "b", {"color": PALETTE["red"], "linestyle": "--"}),
    "Uout-b": ("uout", "b", {"color": INK, "linestyle": "none", "marker": "x", "markersize": 9, "zorder": 3}),
    "RotationOut-b": ("rotation", "b", _ROTATION),
    "RotationOut-b, centred": ("centred-rotation", "b", _ROTATION | {"markerfacecolor": "none"}),
}
"""Noise, placement and look of every curve. Some are hard to tell apart, so they are lines and points."""


@cache
def relu_features(width: int) -> Moments:
    """ReLU of Gaussian neurons with variance 1, whose correlations are those of random vectors, about ±1/√D."""
    half = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width))
    latent = half @ half.T
    return relu_moments(latent / (latent.diag()[:, None] * latent.diag()).sqrt())


def _layer(kind: str, p: float) -> nn.Module:
    return noise("rotation", p, center="batch") if kind == "centred-rotation" else noise(kind, p)


def _sampled(variant: str, keep: float, width: int, layers: int) -> tuple[float, float, float, list[float]]:
    """Mean, standard deviation and mean largest of r for one variant, and all of r."""
    kind, placement, _ = VARIANTS[variant]
    features = relu_features(width)
    sample = sample_shift(
        _layer(kind, 1 - keep),
        features.mean,
        features.covariance,
        placement=placement,
        layers=layers,
        generator=torch.Generator().manual_seed(1),
    )
    return sample.mean, sample.variance**0.5, sample.maximum.mean().item(), sample.ratio.flatten().tolist()


def _diagram() -> Columns:
    chains = {
        "Dropout-a": ["ReLU", "weight layer", "Dropout", "BatchNorm"],
        "Dropout-b": ["ReLU", "Dropout", "weight layer", "BatchNorm"],
    }
    arrows = {"Dropout-a": ["x", "Wx", "ỹ"], "Dropout-b": ["x", "x̃", "ỹ"]}
    rows = [
        (curve, place, block, (*arrows[curve], "")[place])
        for curve, blocks in chains.items()
        for place, block in enumerate(blocks)
    ]
    return columns_of(("curve", "place", "block", "passes on"), rows)


def _draw_diagram(columns: Columns) -> Figure:
    captions = {
        "Dropout-a": r"$\mathrm{Var}[\tilde y_a] = W\Sigma W^T + \lambda\,\mathrm{diag}(W(\Sigma + cc^T)W^T)$",
        "Dropout-b": r"$\mathrm{Var}[\tilde y_b] = W\Sigma W^T + \lambda\,W\,\mathrm{diag}(\Sigma + cc^T)\,W^T$",
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 2.7), layout="constrained")
        axes = figure.subplots()
        for line, (curve, caption) in enumerate(captions.items()):
            height = -1.4 * line
            axes.text(-0.55, height, curve, ha="right", va="center", color=INK, weight="bold")
            axes.text(1.65, height - 0.55, caption, ha="center", va="center", color=INK, fontsize=9)
            rows = [row for row, name in enumerate(columns["curve"]) if name == curve]
            for row in rows:
                place, block, value = (columns[name][row] for name in ("place", "block", "passes on"))
                x = 1.1 * float(place)
                colour = PALETTE["orange"] if block == "Dropout" else INK
                box = (x - 0.36, height - 0.24)
                axes.add_patch(
                    FancyBboxPatch(box, 0.72, 0.48, boxstyle="round,pad=0.02", fill=False, edgecolor=colour, lw=1.4)
                )
                axes.text(x, height, str(block), ha="center", va="center", color=colour, fontsize=9)
                if value:
                    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.2}
                    axes.annotate("", (x + 0.72, height), (x + 0.38, height), arrowprops=arrow)
                    axes.text(x + 0.55, height + 0.1, str(value), ha="center", va="bottom", color=INK, fontsize=9)
        axes.set(xlim=(-1.4, 3.72), ylim=(-2.2, 0.45))
        axes.set_axis_off()
    return figure


def _rates() -> Columns:
    keeps = [0.95, 0.9, 0.8, 0.7, 0.6, 0.5]
    rows = [(curve, keep, *_sampled(curve, keep, width=64, layers=60)[:3]) for curve in VARIANTS for keep in keeps]
    return columns_of(("curve", "keep rate", "mean r", "sd of r", "largest r of 64 outputs"), rows)


def _draw_rates(columns: Columns) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        means, most = figure.subplots(1, 2, sharex=True)
        for curve, (_, _, look) in VARIANTS.items():
            keep, mean, largest = select(columns, "keep rate", "mean r", "largest r of 64 outputs", curve=curve)
            means.plot(keep, mean, label=curve, **look)
            most.plot(keep, largest, **look)
        means.set(
            xlabel="keep rate 1 − p", ylabel="train / test variance r", title="Mean over weights", xlim=(0.98, 0.47)
        )
        most.set(xlabel="keep rate 1 − p", title="Largest of 64 outputs")
        for axes in (means, most):
            finish(axes)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


SHOWN = ("Dropout-a", "Dropout-a, centred", "Dropout-b", "Dropout-b, centred", "RotationOut-b, centred")


def _distribution() -> Columns:
    rows: list[tuple[str, float, float]] = []
    for curve in SHOWN:
        ratio = torch.tensor(_sampled(curve, keep=0.5, width=64, layers=300)[3], dtype=torch.float64)
        for step in range(180):
            r = 1.5 + step / 40
            rows.append((curve, r, (ratio > r + 1e-9).double().mean().item()))
    return columns_of(("curve", "r", "share of outputs above r"), rows)


def _draw_distribution(columns: Columns) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained")
        axes = figure.subplots()
        for curve in SHOWN:
            look = VARIANTS[curve][2]
            ratio, share = select(columns, "r", "share of outputs above r", curve=curve)
            # On a logarithmic axis nothing has no place: a curve falls to below the picture, and points end.
            floor = 1e-9 if look.get("marker") is None else float("nan")
            axes.plot(ratio, [s or floor for s in share], label=curve, markevery=3, drawstyle="steps-post", **look)
        axes.set(xlabel="train / test variance r", ylabel="share of outputs above r", yscale="log", ylim=(1e-3, 1.5))
        axes.legend(loc="upper right")
        finish(axes)
    return figure


def _widths() -> Columns:
    rows: list[tuple[str, float, float, float, float]] = []
    for curve in SHOWN:
        kind = VARIANTS[curve][0]
        for width in (16, 32, 64, 128, 256, 512, 1024):
            features = relu_features(width)
            mean, sd, _, _ = _sampled(curve, keep=0.5, width=width, layers=max(8, min(60, 8192 // width)))
            limit = limit_ratio(_layer(kind, 0.5), features.mean, features.covariance)
            rows.append((curve, width, mean, sd, limit))
    return columns_of(("curve", "D", "mean r", "sd of r", "limit of r"), rows)


def _draw_widths(columns: Columns) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.5), layout="constrained")
        means, spread = figure.subplots(1, 2, sharex=True)
        for curve in SHOWN:
            look = VARIANTS[curve][2]
            width, mean, sd, limit = select(columns, "D", "mean r", "sd of r", "limit of r", curve=curve)
            means.plot(width, mean, label=curve, **look)
            spread.plot(width, [s if s > 1e-9 else float("nan") for s in sd], **look)  # none at all: centred Dropout-a
            if not curve.endswith("centred"):
                means.axhline(limit[-1], color=INK, linewidth=0.8, linestyle=":")
        means.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
        means.text(18, 1.03, "no shift", color=INK, fontsize=9, va="bottom")
        means.set(
            xlabel="features D",
            ylabel="train / test variance r",
            title="Mean over weights",
            xscale="log",
            ylim=(0.9, 2.8),
        )
        spread.set(xlabel="features D", ylabel="standard deviation of r", title="Spread over weights", yscale="log")
        spread.set_yticks([0.03, 0.1, 0.3, 1.0])
        for axes in (means, spread):
            axes.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1024"])
            axes.minorticks_off()
            finish(axes)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


FIGURES = [
    Drawing(
        "dropout_ab",
        "Dropout-a and Dropout-b",
        "Two places for Dropout before BatchNorm (fig:f1), and the variance that BatchNorm then records (label 118). "
        "The weight layer may be a convolution.",
        _diagram,
        _draw_diagram,
    ),
    Drawing(
        "variance_shift_rate",
        "Variance shift by keep rate",
        "By theory (label 118), for 64 ReLU features and random weights. Uout at equal λ shifts as much as "
        "Dropout (proposition 1). For centred Dropout-a the ratio is 1 / keep rate for every output.",
        _rates,
        _draw_rates,
    ),
    Drawing(
        "variance_shift_distribution",
        "Variance shift over weights",
        "How many outputs have a ratio above r, at keep rate 0.5, for 64 ReLU features and weights uniform on the "
        "sphere: Dropout-a has a long tail, Dropout-b little, centred Dropout-a none.",
        _distribution,
        _draw_distribution,
    ),
    Drawing(
        "variance_shift_width",
        "Variance shift as the width grows",
        "At keep rate 0.5. With more features Dropout-b and RotationOut concentrate around a limit (dotted), which is "
        "not 1 (proposition 3); Dropout-a does not.",
        _widths,
        _draw_widths,
    ),
]
