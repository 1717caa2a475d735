"""What noise on vectors did: hidden layers on the pixels of CIFAR-100."""

from __future__ import annotations

import statistics
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import KEEP, SIGMA
from rotationout.report import table1
from rotationout.report.cells import Lead, by_row, mean_lead, shown_p, spread

from .cells import RESULTS, markdown

__all__ = ["RECIPE", "texts"]

RECIPE = "cifar100_mlp"
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
    points = {row: [run[table1.POINTS] for run in runs] for row, runs in rows.items()}

    def lead(ours: str, theirs: str) -> Lead:
        return mean_lead([(points[one], points[other]) for one, other in zip(FORMS[ours], FORMS[theirs], strict=True)])

    found = {"default": lead("default", "dropout"), "zeros": lead("zeros", "dropout"), "kept": lead("zeros", "default")}
    return {
        "mlp_table": table1.table1(records).markdown(),
        "mlp_prose": "\n\n".join(table1.prose(records)),
        "mlp_minutes": f"{statistics.median(run['seconds'] for run in records) / 60:.1f}",
        "mlp_runs": str(min(map(len, rows.values()))),
        "mlp_losses": f"{_loss(rows['none']):.1f}",
        **{f"mlp_{name}_{key}": text for name, value in found.items() for key, text in _words(value).items()},
        **{f"mlp_{name}_over_none": _best_over_none(points, FORMS[name]) for name in FORMS},
        "mlp_coadaptation_table": markdown(["co(x)", "layer 1", "layer 2", "layer 3"], _coadaptation(rows)),
    }


def _coadaptation(rows: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """co(x) of every hidden layer in eval mode, a line for each row."""
    found = []
    for row, runs in rows.items():
        layers = zip(*(run["coadaptation"]["value"] for run in runs), strict=True)
        found.append([row, *(spread(layer) for layer in layers)])
    return found


def _words(lead: Lead) -> dict[str, str]:
    interval = f"{lead.low:+.2f} to {lead.high:+.2f}".replace("-", "−")
    return {"lead": f"{lead.mean:+.2f}".replace("-", "−"), "interval": interval, "p": shown_p(lead.p)}


def _best_over_none(points: dict[str, list[float]], rows: list[str]) -> str:
    """How far the best strength of a noise is above no noise."""
    best = max(statistics.fmean(points[row]) for row in rows)
    return f"{best - statistics.fmean(points['none']):.2f}"


def _loss(runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(run["train_loss"][-1] for run in runs)
