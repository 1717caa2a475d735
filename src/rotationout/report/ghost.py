"""Appendix B on CIFAR-100 from records: test accuracy by normalisation and by how many examples it sees at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments.norms import LABELS
from . import style
from .cells import by_row, ran, spread
from .curves import CAPTION, curves_figure
from .page import Section, Table

__all__ = ["MODES", "RECIPE", "accuracies", "prose", "section", "table"]

RECIPE = "cifar100_ghost"
MODES = {
    "batch": LABELS["batch"],
    "poly": f"{LABELS['poly']}, B examples",
    "poly_measured": f"{LABELS['poly']}, measured B",
    "cross": LABELS["cross"],
    "group": LABELS["group"],
}
"""How networks are normalised in testing; the first three are the same networks."""
STATISTICS = ("running", "averaged")


def accuracies(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], list[float]]:
    """Test accuracy after the last step, in per cent, of every run: by mode, statistics, and examples seen at once."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for record in records:
        config = record["config"]
        size = config["ghost_batch"] or config["batch"]
        top1 = record.get("test_modes", {}).get("top1")
        if top1 is None:  # GroupNorm, which has no statistics, or a study that failed
            top1 = {"running": {config["norm"]: 100 * record["test_curve"][-1]}}
        for statistics, modes in top1.items():
            for mode, value in modes.items():
                found.setdefault((mode, statistics, size), []).append(value)
    return found


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each normalisation and kind of statistics, a column for each size; mean ± deviation over seeds."""
    by_row(records)  # none: an error that says what makes them
    found = accuracies(records)
    sizes = sorted({size for _, _, size in found})
    lines = []
    for statistics in STATISTICS:
        for mode, label in MODES.items():
            cells = [found.get((mode, statistics, size), []) for size in sizes]
            runs = sorted({len(values) for values in cells if values})
            if runs:
                name = label if mode == "group" else f"{label}, {statistics}"
                count = "–".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
                lines.append([name, count, *(spread(values) if values else "–" for values in cells)])
    return Table(["test accuracy, %", "runs", *(f"of {size}" for size in sizes)], lines)


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    return [
        f"ResNet20, {first['steps']:,} steps on batches of {first['config']['batch']}, of which only so many examples "
        "are normalised together as the columns say. Test accuracy after the last step, mean ± standard deviation over "
        f"runs; {ran(records)}. A dash: not run, or its "
        "loss was not finite.",
        "“Running” statistics are those of training, “averaged” ones are taken again over many batches. PolyBatchNorm "
        "is BatchNorm’s network in another test mode: with f_poly of as many values as examples, or of as many as were "
        "found to be independent. GroupNorm has neither batches nor statistics.",
    ]


def section(title: str, records: Sequence[dict[str, Any]]) -> Section:
    """The part of the report that these records have."""
    return Section(
        title,
        prose(records),
        table(records),
        style.to_svg(curves_figure(records)),
        f"Test accuracy {CAPTION}",
    )
