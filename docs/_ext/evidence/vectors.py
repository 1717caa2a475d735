"""What noise on vectors did: hidden layers on the pixels of CIFAR-100."""

from __future__ import annotations

import statistics
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import KEEP, SIGMA
from rotationout.report import table1
from rotationout.report.cells import by_row, mean_lead, shown_p, signed, spread

from .cells import RESULTS, markdown

__all__ = ["RECIPE", "texts"]

RECIPE = "cifar100_mlp"
FIRST = (0.9, 0.8)
"""The keep rates at which both noises do best."""
FORMS = {
    "dropout": [f"dropout keep {keep}" for keep in KEEP],
    "default": [f"rotation default sigma {SIGMA[keep]}" for keep in KEEP],
    "zeros": [f"rotation keep-zeros sigma {SIGMA[keep]}" for keep in KEEP],
}
"""The rows of a noise at every strength."""


def texts() -> dict[str, str]:
    """By name."""
    records = read_records(RESULTS, RECIPE)
    rows = by_row(records)
    means = {row: statistics.fmean(run[table1.POINTS] for run in runs) for row, runs in rows.items()}
    lead, _ = table1.rivals_lead(records)
    best, _ = table1.rivals_lead(records, FIRST)
    zeros, default = ([run[table1.POINTS] for run in rows[FORMS[name][0]]] for name in ("zeros", "default"))
    weak = mean_lead([(zeros, default)])
    table = table1.table(records)
    return {
        "mlp_table": table.markdown(),
        "mlp_tests": str(sum(row[column] != "–" for row in table.rows for column in _of_tests(table.header))),
        "mlp_prose": "\n\n".join(table1.prose(records)),
        "mlp_minutes": f"{statistics.median(run['seconds'] for run in records) / 60:.1f}",
        "mlp_lead": f"{lead.mean:+.2f}",
        "mlp_interval": f"{lead.low:.2f} to {lead.high:.2f}",
        "mlp_p": shown_p(lead.p),
        "mlp_lead_best": signed(best.mean),
        "mlp_interval_best": f"{signed(best.low)} to {signed(best.high)}",
        "mlp_coadaptation_table": markdown(["co(x)", "layer 1", "layer 2", "layer 3"], _coadaptation(rows)),
        "mlp_zeros_weak": f"{-weak.mean:.2f}",
        "mlp_zeros_weak_p": shown_p(weak.p),
        **{
            f"mlp_{name}_over_none": f"{max(map(means.__getitem__, FORMS[name])) - means['none']:.2f}" for name in FORMS
        },
    }


def _of_tests(header: list[str]) -> list[int]:
    """The places of the columns with p-values."""
    return [place for place, name in enumerate(header) if name.startswith("p-value, ")]


def _coadaptation(rows: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """co(x) of every hidden layer in eval mode, a line for each row."""
    found = []
    for row, runs in rows.items():
        layers = zip(*(run["coadaptation"]["value"] for run in runs), strict=True)
        found.append([row, *(spread(layer) for layer in layers)])
    return found
