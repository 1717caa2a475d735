"""Figures of trained networks, drawn from their records and put into the page as they are."""

from __future__ import annotations

import html

from rotationout.report import style
from rotationout.report.gallery import trained

from .cells import RESULTS

__all__ = ["texts"]

SHOWN = ("variance_shift_trained", "variance_shift_repaired", "coadaptation_trained")
"""By the names that ``rotationout figures`` knows."""


def texts() -> dict[str, str]:
    """By name."""
    found = {drawing.name: drawing for drawing in trained.figures(RESULTS)}
    texts = {}
    for name in SHOWN:
        drawing = found[name]
        svg = style.to_svg(drawing.draw(drawing.compute()))
        label, caption = (html.escape(text) for text in (drawing.title, drawing.caption))
        texts[f"figure_{name}"] = (
            f'```{{raw}} html\n<figure class="drawn" role="img" aria-label="{label}">\n{svg}\n'
            f"<figcaption>{caption}</figcaption>\n</figure>\n```"
        )
    return texts
