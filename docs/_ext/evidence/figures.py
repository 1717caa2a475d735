"""Figures of trained networks, drawn from their records and put into the page as they are."""

from __future__ import annotations

import html

from matplotlib.figure import Figure

from rotationout.experiments.forms import NETWORKS, FormsStudy
from rotationout.experiments.results import read_records
from rotationout.report import forms, style, table1
from rotationout.report.curves import accuracy_caption, curves_figure
from rotationout.report.gallery import trained

from .cells import RESULTS
from .resnet110 import TABLE1

__all__ = ["texts"]

SHOWN = (
    "variance_shift_trained",
    "variance_shift_repaired",
    "coadaptation_trained",
    "coadaptation_resnet110_authors",
    "coadaptation_mlp",
    "ghost_batches",
)
"""By the names that ``rotationout figures`` knows."""


def texts() -> dict[str, str]:
    """By name."""
    found = {drawing.name: drawing for drawing in trained.figures(RESULTS)}
    shown = [found[name] for name in SHOWN]
    texts = {f"figure_{one.name}": _placed(one.draw(one.compute()), one.title, one.caption) for one in shown}
    records = table1.drawn(read_records(RESULTS, TABLE1))
    texts["figure_table1"] = _placed(curves_figure(records), "Learning curves of Table 1", accuracy_caption(records))
    study = FormsStudy.load(RESULTS / "forms.json")
    for network in NETWORKS:
        title = f"Forms of {forms.LAYERS[network]} on digits"
        texts[f"figure_forms_{network}"] = _placed(forms.figure(study, network), title, forms.CAPTION)
    return texts


def _placed(figure: Figure, title: str, caption: str) -> str:
    """As part of a page."""
    label, caption = (html.escape(text) for text in (title, caption))
    return (
        f'```{{raw}} html\n<figure class="drawn" role="img" aria-label="{label}">\n{style.to_svg(figure)}\n'
        f"<figcaption>{caption}</figcaption>\n</figure>\n```"
    )
