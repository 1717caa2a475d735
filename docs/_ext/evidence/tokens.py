"""What noise on tokens did: a small vision transformer on CIFAR-100."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import FRESH_KEEP, SIGMAS
from rotationout.report import table1
from rotationout.report.cells import by_row, mean_lead, signed

from .cells import RESULTS, markdown
from .vectors import lead

__all__ = ["texts"]

RECIPE = "cifar100_vit"
NOISES = {"rotation plane": "plane", "rotation default": "default", "dropout": "Dropout"}
"""As rows begin with them, and as the page calls them."""


def texts() -> dict[str, str]:
    """By name."""
    records = read_records(RESULTS, RECIPE)
    return {
        "vit_table": table1.table(records).markdown(),
        "vit_prose": "\n\n".join(table1.prose(records)),
        "vit_minutes": f"{statistics.median(run['seconds'] for run in records) / 60:.0f}",
        "vit_leads": _leads(records),
        "vit_plane_strong": _plane(records),
    }


def _plane(records: Sequence[dict[str, Any]]) -> str:
    """How far the gradient in the plane is ahead of the default at the larger p."""
    points = {row: [run[table1.POINTS] for run in runs] for row, runs in by_row(records).items()}
    ours, theirs = (points[f"rotation {form} sigma {SIGMAS[min(FRESH_KEEP)]}"] for form in ("plane", "default"))
    one = mean_lead([(ours, theirs)])
    return f"{one.mean:.2f} points (95 % confidence interval {one.low:.2f} to {one.high:.2f}, uncorrected)"


def _leads(records: Sequence[dict[str, Any]]) -> str:
    """How far noises are ahead of each other, on average of both strengths."""
    lines = []
    for ours, over in itertools.combinations(NOISES, 2):
        one = lead(records, over, FRESH_KEEP, ours)
        lines.append(
            [f"{NOISES[ours]} − {NOISES[over]}", f"{signed(one.mean)} ({signed(one.low)} to {signed(one.high)})"]
        )
    return markdown(["", "points on average"], lines)
