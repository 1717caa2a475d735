"""What tables cost: GPU-minutes, from what runs side by side took in all and how many they were."""

from __future__ import annotations

import inspect
import statistics
from typing import Any

from rotationout.cli.runs import numbers, sweep
from rotationout.experiments.results import read_records
from rotationout.recipes import TABLES
from rotationout.recipes.search import SEARCH

from .accuracy import PROTOCOL
from .cells import RESULTS, markdown

__all__ = ["texts"]

SEEDS = 5
"""Runs of a row in the paper's tables, where it says how many."""
ONCE = (PROTOCOL, SEARCH, "an4_strength")
"""Tables by which something was chosen, of one run a row."""


def texts() -> dict[str, str]:
    """By name."""
    records = {name: read_records(RESULTS, name) for name in TABLES}
    seconds = _seconds_of_a_step([record for found in records.values() for record in found])
    ours = len(numbers(inspect.signature(sweep).parameters["seeds"].default))
    rows = []
    for name, configs in TABLES.items():
        table = configs()
        seeds = 1 if name in ONCE else SEEDS if name.endswith(("_paper", "_authors", "imagenet")) else ours
        step = seconds.get(getattr(table[0], "network", name))
        each = None if step is None else step * table[0].steps / 60
        cost = ["not measured", "–"] if each is None else [f"{each:.1f}", f"{each * len(table) * seeds:,.0f}"]
        rows.append([f"`{name}`", str(len(table)), str(seeds), f"{table[0].steps:,}", *cost, str(len(records[name]))])
    example = records[PROTOCOL][0]
    alike = _seconds_of_a_step([record for record in records[PROTOCOL] if record["together"] == example["together"]])
    return {
        "cost_table": markdown(["table", "rows", "seeds", "steps", "GPU-minutes a run", "in all", "recorded"], rows),
        "cost_step": f"{1e3 * alike[example['config']['network']]:.1f}",
        "cost_together": str(example["together"]),
        "cost_device": example["device"],
        "cost_peak": f"{example['peak_bytes'] / 2**30:.1f}",
    }


def _seconds_of_a_step(records: list[dict[str, Any]]) -> dict[str, float]:
    """By network, or by table if that has but one: for one of the runs that shared a device, tests included."""
    found: dict[str, list[float]] = {}
    for record in records:
        network = record["config"].get("network", record["recipe"])
        found.setdefault(network, []).append(record["seconds"] / record["together"] / record["steps"])
    return {network: statistics.fmean(values) for network, values in found.items()}
