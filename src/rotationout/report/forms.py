"""The report of the study of forms: a table and a figure for each network, and what came out in sentences."""

from __future__ import annotations

import math

import matplotlib as mpl
from matplotlib.figure import Figure

from ..experiments.forms import DEFAULT, NETWORKS, OTHERS, FormsStudy
from . import style
from .cells import CLEAR, is_clear, signed
from .digits import percent
from .page import Section, Table

__all__ = ["CLEAR", "figure", "sections", "table", "verdict"]

CAPTION = f"Difference in test accuracy to the default form, and {CLEAR:g} standard errors either side."
LAYERS = {"vectors": "RotationOut", "maps": "RotationOut2d"}


def table(study: FormsStudy, network: str) -> Table:
    """A row for each form: test accuracy, and how much it has over the default form."""
    rows = []
    for one in study.of(network):
        change = "–" if one.form == DEFAULT else signed(*study.paired_difference(network, one.form), scale=100)
        rows.append([one.form, percent(one.test_accuracy), change, percent(one.train_accuracy)])
    return Table(["form", "test accuracy, %", "difference ± s.e.", "train accuracy, %"], rows)


def verdict(study: FormsStudy, network: str) -> str:
    """Which forms, and which of the noises that are no rotations, differ clearly from the default form."""
    compared = [one.form for one in study.of(network) if one.form != DEFAULT]
    groups = {
        "Other forms": [form for form in compared if form not in OTHERS[network]],
        "No noise and other noises": [form for form in compared if form in OTHERS[network]],
    }
    said = []
    for group, forms in groups.items():
        differences = {form: study.paired_difference(network, form) for form in forms}
        clear = {form: pair for form, pair in differences.items() if is_clear(*pair)}
        named = ", ".join(f"{form} ({signed(*pair, scale=100)})" for form, pair in clear.items())
        said.append(f"{group}: {len(clear)} of {len(forms)} clearly different{': ' if named else ''}{named}.")
    return (
        f"Test accuracy beside the default form of {LAYERS[network]}, in points. {' '.join(said)} Clearly means by "
        f"more than {CLEAR:g} standard errors of the paired difference."
    )


def figure(study: FormsStudy, network: str) -> Figure:
    """What each form has over the default one, with three standard errors to either side."""
    forms = [one.form for one in study.of(network) if one.form != DEFAULT]
    with mpl.rc_context(style.STYLE):
        drawn = Figure(figsize=(6.0, 0.9 + 0.24 * len(forms)), layout="constrained")
        axes = drawn.subplots()
        axes.axvline(0, color=style.INK, linewidth=0.8)
        for place, form in enumerate(forms):
            mean, error = study.paired_difference(network, form)
            kind = "rotation" if form not in OTHERS[network] else "none" if form == "no noise" else "dropout"
            width = 0.0 if math.isnan(error) else 100 * CLEAR * error
            axes.errorbar(100 * mean, place, xerr=width, fmt="o", color=style.HUES[kind][0], markersize=4, capsize=2)
        axes.set(xlabel="test accuracy beside the default form, points")
        style.finish(axes)
        axes.set_yticks(range(len(forms)), forms)
        axes.invert_yaxis()
    return drawn


def sections(study: FormsStudy) -> list[Section]:
    """What the page shows of this study."""
    s = study.settings
    shared = (
        f"Handwritten digits, {s['train_examples']} to train on and {s['test_examples']:,} to test, p = {s['p']:g}, "
        f"{s['epochs']} epochs. Mean ± standard deviation over {s['seeds']} seeds. The difference is to the default "
        "form, paired by seed."
    )
    networks = {
        "vectors": f"Two hidden layers of {s['width']} ReLUs, the noise after each.",
        "maps": f"Three convolutions, {s['channels']} to {2 * s['channels']} channels, the noise before the last two.",
    }
    return [
        Section(
            f"Which choices matter: {LAYERS[network]}",
            [networks[network], shared],
            table(study, network),
            style.to_svg(figure(study, network)),
            CAPTION,
            verdict(study, network),
        )
        for network in NETWORKS
    ]
