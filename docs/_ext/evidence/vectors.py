"""What noise on vectors did: hidden layers on the pixels of CIFAR-100."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.recipes.cifar100 import FRESH_IMAGES, FRESH_KEEP, KEEP, SIGMA, SIGMAS, WEAK, fresh_mlp_rows
from rotationout.report import table1
from rotationout.report.cells import Lead, by_row, mean_lead, p_value, shown_p, signed, spread

from .cells import RESULTS, markdown

__all__ = ["IMAGES", "RECIPE", "lead", "texts"]

RECIPE = "cifar100_mlp"
FIRST = (0.9, 0.8)
"""The keep rates at which both noises do best."""
FORMS = {
    "dropout": [f"dropout keep {keep}" for keep in KEEP],
    "default": [f"rotation default sigma {SIGMA[keep]}" for keep in KEEP],
    "zeros": [f"rotation keep-zeros sigma {SIGMA[keep]}" for keep in KEEP],
    "plane": [f"rotation plane sigma {SIGMA[keep]}" for keep in KEEP],
}
"""The rows of a noise at every strength."""
NOISES = {"plane": "rotation plane", "default": "rotation default", "Dropout": "dropout"}
"""As pages call them, and as their rows begin."""
IMAGES = {10_000: RECIPE, **{images: f"{RECIPE}_{images}" for images in FRESH_IMAGES}}
"""The table for each number of training images; that of 10,000 was there first."""


def texts() -> dict[str, str]:
    """By name."""
    records = read_records(RESULTS, RECIPE)
    rows = by_row(records)
    means = {row: statistics.fmean(run[table1.POINTS] for run in runs) for row, runs in rows.items()}
    ahead, _ = table1.rivals_lead(records)
    best, _ = table1.rivals_lead(records, FIRST)
    zeros, default = ([run[table1.POINTS] for run in rows[FORMS[name][0]]] for name in ("zeros", "default"))
    weak = mean_lead([(zeros, default)])
    table = table1.table(records)
    of = {images: read_records(RESULTS, recipe) for images, recipe in sorted(IMAGES.items())}
    last = by_row(_after_last_epoch(of[max(of)]))
    all_last = [[run[table1.POINTS] for run in last[row]] for row in (FORMS["plane"][0], "none")]
    return {
        "mlp_table": table.markdown(),
        "mlp_tests": str(sum(row[column] != "–" for row in table.rows for column in _of_tests(table.header))),
        "mlp_prose": "\n\n".join(table1.prose(records)),
        "mlp_minutes": f"{statistics.median(run['seconds'] for run in records) / 60:.1f}",
        "mlp_lead": f"{ahead.mean:+.2f}",
        "mlp_interval": f"{ahead.low:.2f} to {ahead.high:.2f}",
        "mlp_p": shown_p(ahead.p),
        "mlp_lead_best": signed(best.mean),
        "mlp_interval_best": f"{signed(best.low)} to {signed(best.high)}",
        "mlp_coadaptation_table": markdown(["co(x)", "layer 1", "layer 2", "layer 3"], _coadaptation(rows)),
        "mlp_images_table": _by_images(of),
        "mlp_images_leads": _leads(of),
        "mlp_images_runs": str(sum(len(of[images]) for images in FRESH_IMAGES)),
        "mlp_weak_20000": _said(_weak_lead(of[20_000])),
        "mlp_weak_50000": _said(_weak_lead(of[50_000])),
        "mlp_plane_dropout": _said(lead(records, "dropout", KEEP)),
        "mlp_plane_default": _said(lead(records, "rotation default", KEEP)),
        "mlp_isotropic_default": _said(lead(records, "rotation default", KEEP, "isotropic")),
        "mlp_isotropic_plane": _said(lead(records, "rotation plane", KEEP, "isotropic")),
        "mlp_all_last_plane": spread(all_last[0]),
        "mlp_all_last_none": spread(all_last[1]),
        "mlp_all_last_p": shown_p(p_value(*all_last)),
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


def lead(
    records: Sequence[dict[str, Any]], over: str, keep: Sequence[float] = FRESH_KEEP, ours: str = "rotation plane"
) -> Lead:
    """The mean lead of a noise over another one of equal strength."""
    return table1.lead_over(records, {_row(ours, rate): _row(over, rate) for rate in keep})[0]


def _weak_lead(records: Sequence[dict[str, Any]]) -> Lead:
    """The lead of the gradient in the plane over Dropout where both are at their weakest."""
    rows = by_row(records)
    ours, theirs = ([run[table1.POINTS] for run in rows[_row(noise, WEAK)]] for noise in ("rotation plane", "dropout"))
    return mean_lead([(ours, theirs)])


def _row(noise: str, keep: float) -> str:
    return f"{noise} keep {keep}" if noise == "dropout" else f"{noise} sigma {SIGMAS[keep]}"


def _said(one: Lead) -> str:
    return f"{one.mean:.2f} points (95 % confidence interval {signed(one.low)} to {signed(one.high)})"


def _by_images(of: Mapping[int, Sequence[dict[str, Any]]]) -> str:
    """Accuracy with every number of images: a line for each row that the tables of most images have."""
    rows = [by_row(records) for records in of.values()]
    lines = []
    for config in fresh_mlp_rows(FRESH_IMAGES[-1]):
        points = [[run[table1.POINTS] for run in found.get(config.row, [])] for found in rows]
        lines.append([config.row, *(spread(each) if each else "–" for each in points)])
    return markdown(["row", *_heads(of)], lines)


def _leads(of: Mapping[int, Sequence[dict[str, Any]]]) -> str:
    """How far the gradient in the plane and the default are ahead, over both strengths."""
    pairs = (("plane", "Dropout"), ("plane", "default"), ("default", "Dropout"))
    lines = []
    last = [_after_last_epoch(records) for records in of.values()]
    for when, each in (("", list(of.values())), (", last epoch", last)):
        for ours, over in pairs:
            leads = [lead(records, NOISES[over], ours=NOISES[ours]) for records in each]
            cells = [f"{signed(one.mean)} ({signed(one.low)} to {signed(one.high)})" for one in leads]
            lines.append([f"{ours} − {over}{when}", *cells])
    return markdown(["", *_heads(of)], lines)


def _heads(of: Mapping[int, Sequence[dict[str, Any]]]) -> list[str]:
    return [f"{images:,} images, {records[0]['epochs']} epochs" for images, records in of.items()]


def _after_last_epoch(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with the accuracy after the last epoch in place of the mean of the last ten."""
    return [{**run, table1.POINTS: 100 * run["test_curve"][-1]} for run in records]
