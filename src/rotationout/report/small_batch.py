"""The report of the small-batch study: its table, and what came out in a sentence."""

from __future__ import annotations

from ..experiments.small_batch import LABELS, STATISTICS, SmallBatchStudy
from .cells import CLEAR, is_clear
from .digits import percent
from .page import Section, Table

__all__ = ["sections", "table", "verdict", "verdicts"]


def rows(study: SmallBatchStudy) -> list[tuple[int, bool]]:
    """Every (size, ghost) that was run, batches first."""
    return sorted({(r.size, r.ghost) for r in study.results}, key=lambda row: (row[1], row[0]))


def cell(study: SmallBatchStudy, norm: str, size: int, ghost: bool, statistics: str) -> str:
    """Test accuracy of a row, in per cent, or a dash where it was not run."""
    found = study.select(norm, size, ghost, statistics)
    return percent([r.test_accuracy for r in found]) if found else "–"


def table(study: SmallBatchStudy) -> Table:
    """One row for each batch size and kind of statistics, one column for each normalisation."""
    lines = []
    for statistics in STATISTICS:
        for size, ghost in rows(study):
            name = f"{'ghost batches' if ghost else 'batches'} of {size}, {statistics}"
            lines.append([name, *(cell(study, norm, size, ghost, statistics) for norm in LABELS)])
    return Table(["test accuracy, %", *LABELS.values()], lines)


def verdict(study: SmallBatchStudy, norm: str, measure: str = "test_accuracy") -> str:
    """Where a normalisation differs from BatchNorm by more than `CLEAR` standard errors, in a sentence."""
    better: list[str] = []
    worse: list[str] = []
    compared = 0
    for statistics in STATISTICS:
        for size, ghost in rows(study):
            if not study.select(norm, size, ghost, statistics):
                continue
            compared += 1
            mean, error = study.paired_difference(norm, size, ghost, statistics, measure)
            if is_clear(mean, error):
                gain = mean if measure == "test_accuracy" else -mean
                place = f"{'ghost batches' if ghost else 'batches'} of {size} ({statistics})"
                (better if gain > 0 else worse).append(place)
    what = {"test_accuracy": "test accuracy", "test_loss": "test loss"}[measure]
    return (
        f"{LABELS[norm]}, {what}: better than BatchNorm in {len(better)} of {compared} comparisons, worse in "
        f"{len(worse)} (by more than {CLEAR:g} standard errors of the paired difference)"
        + (f"; better: {', '.join(better)}" if better else "")
        + (f"; worse: {', '.join(worse)}" if worse else "")
        + "."
    )


def verdicts(study: SmallBatchStudy) -> list[str]:
    """A `verdict` for each normalisation beside BatchNorm, by accuracy and by loss."""
    return [verdict(study, norm, measure) for norm in ("poly", "cross") for measure in ("test_accuracy", "test_loss")]


def sections(study: SmallBatchStudy) -> list[Section]:
    """What the page shows of this study."""
    prose = (
        "Test accuracy with BatchNorm and the paper’s two replacements. “Running” statistics are those of training; "
        "“averaged” ones are recomputed over many batches."
    )
    return [
        Section("Appendix B: BatchNorm of small batches, on digits", [prose, *verdicts(study)], table(study)),
    ]
