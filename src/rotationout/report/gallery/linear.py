"""Figures of linear models under noise: condition numbers (label eqro) and the margin (label logistic)."""

from __future__ import annotations

import math
from dataclasses import fields

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from torch.nn.functional import dropout

from ...functional import rotation_out
from ...linear import ConditionNumbers, condition_numbers, flip_probability, margin_angle
from ...rotation import Draw
from ..style import INK, PALETTE, STYLE, finish
from . import Columns, Drawing, columns_of, select

__all__ = ["FIGURES"]

FEATURES = 64
WIDTHS = {2: PALETTE["red"], 8: PALETTE["orange"], 64: PALETTE["blue"], 512: PALETTE["green"]}
P = 0.2


def compute_condition() -> Columns:
    """Condition numbers while one of 64 features fades, p = 0.5; and against p, once its variance is 10⁻⁶."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1000, FEATURES)) + 0.5 * rng.standard_normal((1000, 1))
    found: list[tuple[str, float, ConditionNumbers]] = []
    for variance in np.geomspace(1, 1e-10, 21):
        scale = np.append(math.sqrt(variance), np.ones(FEATURES - 1))
        found.append(("variance", float(variance), condition_numbers(data * scale, 0.5)))
    fading = data * np.append(1e-3, np.ones(FEATURES - 1))
    found += [("p", float(p), condition_numbers(fading, float(p))) for p in np.linspace(0.02, 0.98, 33)]
    columns: Columns = {"against": [row[0] for row in found], "value": [row[1] for row in found]}
    return columns | {part.name: [getattr(row[2], part.name) for row in found] for part in fields(ConditionNumbers)}


def draw_condition(columns: Columns) -> Figure:
    """Two panels, one for each abscissa."""
    curves = {
        "none": ("no noise", PALETTE["grey"], "-"),
        "dropout": ("Dropout", PALETTE["orange"], "-"),
        "dropout_scaled": ("Dropout, features scaled", PALETTE["orange"], ":"),
        "rotation": ("RotationOut", PALETTE["blue"], "-"),
        "rotation_bound": ("RotationOut's bound (D − 1)/λ", PALETTE["blue"], "--"),
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for name, (label, colour, dashes) in curves.items():
            for axes, against in ((left, "variance"), (right, "p")):
                x, y = select(columns, "value", name, against=against)
                axes.plot(x, y, dashes, color=colour, label=label if axes is left else None)
        left.set(xscale="log", yscale="log", xlabel="variance of one feature ÷ the others'", ylabel="condition number")
        left.set_title(f"D = {FEATURES}, p = 0.5")
        left.invert_xaxis()
        right.set(xlabel="p", xlim=(0, 1))
        right.set_title("ratio of variances 10⁻⁶")
        for axes in (left, right):
            finish(axes)
            axes.yaxis.set_major_formatter(mpl.ticker.LogFormatterSciNotation())
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def compute_margin() -> Columns:
    """Θ/2, the angle from the boundary within which more than 5 % of draws carry a point across, against p and D."""
    rows = [(width, float(p), math.degrees(margin_angle(float(p), width))) for width in WIDTHS for p in _rates()]
    return columns_of(("features", "p", "angle_degrees"), rows)


def _rates() -> np.ndarray:
    return np.unique(np.append(np.linspace(0.01, 0.9, 60).round(4), P))


def draw_margin(columns: Columns) -> Figure:
    """The plane of two weights with the boundary widened to a wedge; and the width of that wedge."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        plane, curve = figure.subplots(1, 2, width_ratios=[1, 1.2])
        angles = {width: select(columns, "angle_degrees", features=width, p=P)[0][0] for width in WIDTHS}
        _draw_plane(plane, angles)
        for width, colour in WIDTHS.items():
            x, y = select(columns, "p", "angle_degrees", features=width)
            curve.plot(x, [2 * angle for angle in y], color=colour, label=f"D = {width}")
        curve.set(xlabel="p", ylabel="Θ, degrees", xlim=(0, 0.9), ylim=(0, 180), yticks=range(0, 181, 45))
        curve.set_title("the margin θᵢ < θⱼ − Θ")
        curve.legend(fontsize=9)
        finish(curve)
    return figure


def _draw_plane(axes: Axes, angles: dict[int, float]) -> None:
    """Weights at 60° to either side of the boundary, which points up."""
    for width, angle in angles.items():
        axes.add_patch(Wedge((0, 0), 1, 90 - angle, 90 + angle, color=WIDTHS[width], linewidth=0))
    axes.plot([0, 0], [0, 1.08], "--", color=INK, linewidth=1)
    axes.annotate("θᵢ = θⱼ", (0, 1.1), ha="center", va="bottom", color=INK)
    for name, side in (("wᵢ", -1), ("wⱼ", 1)):
        tip = (side * math.sin(math.pi / 3), math.cos(math.pi / 3))
        axes.annotate("", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0})
        axes.annotate(name, (1.13 * tip[0], 1.13 * tip[1]), ha="center", va="center", color=INK)
    axes.set(xlim=(-1.15, 1.15), ylim=(-0.08, 1.3), aspect="equal")
    axes.set_title(f"x that noise carries across, p = {P:g}")
    axes.axis("off")


def compute_flips() -> Columns:
    """How often noise carries a point across a boundary, in closed form, and measured with both layers."""
    fine, coarse = np.linspace(0, 60, 121), np.array([2.0, 5, 10, 20, 30, 45])
    rows: list[tuple[str, int, float, float]] = []
    for width in WIDTHS:
        shares = {"closed form": flip_probability(np.radians(fine), P, width)} | _measure_flips(coarse, width)
        for noise, values in shares.items():
            angles = fine if noise == "closed form" else coarse
            rows += [(noise, width, float(angle), float(value)) for angle, value in zip(angles, values, strict=True)]
    return columns_of(("noise", "features", "angle_degrees", "flips"), rows)


def _measure_flips(degrees: np.ndarray, width: int, points: int = 10_000) -> dict[str, np.ndarray]:
    """Random points x of length 1, each with boundaries sin β · x + cos β · u at the given angles, u ⊥ x random."""
    with torch.random.fork_rng(devices=[]):  # torch's dropout takes no generator
        torch.manual_seed(width)
        x, other = torch.randn(2, points, width)
        x = x / x.norm(dim=1, keepdim=True)
        other = other - (other * x).sum(1, keepdim=True) * x
        other = other / other.norm(dim=1, keepdim=True)
        noisy = {"RotationOut": rotation_out(x, P, draw=Draw(pairing="structured")), "Dropout": dropout(x, P)}
    angles = torch.from_numpy(np.radians(degrees)).float()[:, None]
    return {
        name: (angles.sin() * (y * x).sum(1) + angles.cos() * (y * other).sum(1) < 0).double().mean(1).numpy()
        for name, y in noisy.items()
    }


def draw_flips(columns: Columns) -> Figure:
    """A curve for every width, with what was measured on it."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        for width, colour in WIDTHS.items():
            for noise, look in (("closed form", "-"), ("RotationOut", "o"), ("Dropout", "x")):
                x, y = select(columns, "angle_degrees", "flips", noise=noise, features=width)
                axes.plot(x, y, look, color=colour, markersize=5, label=f"D = {width}" if look == "-" else None)
        axes.plot([], [], "o", color=INK, label="RotationOut, measured")
        axes.plot([], [], "x", color=INK, label="Dropout, measured")
        axes.set(xlabel="angle between the point and the boundary, degrees", ylabel="carried across", xlim=(0, 60))
        axes.set_ylim(0, 0.52)
        axes.set_title(f"p = {P:g}")
        axes.legend(fontsize=9)
        finish(axes)
    return figure


FIGURES: list[Drawing] = [
    Drawing(
        name="condition",
        title="Condition numbers of least squares under noise",
        caption="Under RotationOut the condition number is at most (D − 1)/λ for any data (label eqro). Under Dropout "
        "it grows without bound as the variance of a feature goes to zero; for features of unit variance it is at most "
        "(D + λ)/λ.",
        compute=compute_condition,
        draw=draw_condition,
    ),
    Drawing(
        name="margin",
        title="RotationOut moves a decision boundary by an angle",
        caption="Left: the plane of two weight vectors; in the wedge more than 5 % of the draws move x to the other "
        "class, colours as on the right. Right: the margin Θ that this requires (label logistic, Gaussian tan θ); "
        "it falls as 1/√D.",
        compute=compute_margin,
        draw=draw_margin,
    ),
    Drawing(
        name="flips",
        title="How often noise carries a point across a boundary",
        caption="Points and boundaries in random directions: the closed form for RotationOut, and measurements with "
        "the layers. Dropout of the same strength has the same variance but another distribution: RotationOut, with "
        "one angle for all pairs, makes more small steps and more large ones.",
        compute=compute_flips,
        draw=draw_flips,
    ),
]
