"""The report of the digits study: its tables, its figures and its part of the page."""

from __future__ import annotations

import statistics
from pathlib import Path

from ..experiments.records import LABELS, Study
from . import figures, style
from .cells import signed, spread
from .page import Section, Table

__all__ = ["sections", "strength_table", "summary_table", "verdict", "write"]


def percent(values: list[float]) -> str:
    """Mean ± sd of fractions, in per cent; the mean alone where there is one value.

    >>> percent([0.93, 0.95])
    '94.00 ± 1.41'
    """
    return spread(values, scale=100)


def difference(study: Study, p: float | None = None) -> str:
    """RotationOut − Dropout in percentage points, with its standard error over the paired seeds."""
    return signed(*study.paired_difference("rotationout", "dropout", p), scale=100)


def summary_table(study: Study) -> Table:
    """One row per noise: test and train accuracy, and seconds per run."""
    rows = []
    for noise, label in LABELS.items():
        runs = study.select(noise)
        seconds = statistics.median(r.seconds for r in runs)  # the very first run also makes torch ready
        test, fitted = percent([r.test_accuracy for r in runs]), percent([r.train_accuracy for r in runs])
        rows.append([label, test, fitted, f"{seconds:.1f}"])
    return Table(["noise", "test accuracy, %", "train accuracy, %", "seconds per run"], rows)


def strength_table(study: Study) -> Table:
    """One row per strength: both noises and their paired difference."""
    rows = []
    for p in study.rates:
        cells = [percent([r.test_accuracy for r in study.select(noise, p)]) for noise in ("dropout", "rotationout")]
        rows.append([f"{p:g}", *cells, difference(study, p)])
    return Table(["p", "Dropout, %", "RotationOut, %", "difference ± s.e."], rows)


def verdict(study: Study) -> str:
    """The paired difference in one sentence."""
    n = len(study.select("rotationout"))
    pairs = f"over {n} paired seeds, ± one standard error" if n > 1 else "on a single seed, so without a standard error"
    return (
        f"RotationOut − Dropout at p = {study.p:g}: {difference(study)} percentage points of test accuracy ({pairs})."
    )


def sections(study: Study) -> list[Section]:
    """What the page shows of this study."""
    s = study.settings
    setting = (
        f"A network with two hidden layers of {s['width']} ReLUs learns scikit-learn’s handwritten digits from "
        f"{s['train_examples']} examples and is tested on the other {s['test_examples']:,}, after {s['epochs']} epochs "
        f"(Adam, learning rate {s['learning_rate']:g}, batches of {s['batch']}). The noise follows each hidden layer; "
        f"both kinds have drop probability p = {study.p:g}: E tan²θ = p/(1 − p) = {study.p / (1 - study.p):.3g}."
    )
    pairing = (
        "Each seed has its own split and initial weights, the same for every row. "
        f"Mean ± standard deviation over seeds (n = {s['seeds']})."
    )
    choice = (
        "The settings were chosen beforehand with other seeds, so that training is quick, fits every training example "
        f"and leaves room for Dropout to help. Measured with torch {s['torch']}, Python {s['python']}, {s['machine']}."
    )
    return [
        Section(
            "Handwritten digits from few examples",
            [setting, pairing, choice],
            summary_table(study),
            style.to_svg(figures.accuracy_figure(study)),
            "Left: test accuracy during training, mean ± one standard deviation. "
            "Right: every seed after the last epoch; lines join runs on the same split, bars are means.",
            verdict(study),
        ),
        Section(
            "Other strengths",
            ["The same at other drop probabilities. The difference is RotationOut − Dropout, paired by seed."],
            strength_table(study),
            style.to_svg(figures.strength_figure(study)),
            "Test accuracy at each drop probability, mean ± one standard deviation.",
        ),
    ]


def write(study: Study, out: Path) -> None:
    """Write the figures, PNG and SVG, under ``out``."""
    style.save(figures.accuracy_figure(study), out / "digits")
    style.save(figures.strength_figure(study), out / "digits_strength")
