"""How figures look and how they are written: transparent, in colours that read on a light and on a dark page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

__all__ = ["HUES", "INK", "PALETTE", "STYLE", "finish", "save", "to_svg"]

# Okabe and Ito's colours, apart for the colour-blind too.
PALETTE = {
    "grey": "#8a8a8a",
    "orange": "#e69f00",
    "blue": "#0b84c6",
    "green": "#009e73",
    "red": "#d55e00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
}
HUES = {
    "none": (PALETTE["grey"],),
    "dropout": (PALETTE["orange"], PALETTE["red"]),
    "other": (PALETTE["green"], PALETTE["purple"]),
    "rotation": (PALETTE["blue"], PALETTE["sky"]),
}
"""What a noise is drawn in, by its family, in every figure."""
INK = "#808080"  # a grey that shows on white and on near-black; the page gives text more contrast

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "rotationout",
}


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as PNG, on white, and as SVG, transparent."""
    figure.savefig(stem.with_suffix(".png"), dpi=160, facecolor="white")
    stem.with_suffix(".svg").write_text(to_svg(figure), encoding="utf-8")


def to_svg(figure: Figure) -> str:
    """A figure as one ``<svg>`` element without a fixed size, so that the page decides how wide it is."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", re.sub(r'^<svg([^>]*?) height="[^"]*"', r"<svg\1", svg))


def finish(axes: Axes) -> None:
    """A light grid behind the data, and plain numbers."""
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)
