"""What tables cost: GPU-minutes, from the share of a GPU's time that each run had."""

from __future__ import annotations

import inspect
import statistics
from typing import Any

from rotationout.cli.runs import numbers, sweep
from rotationout.experiments.config import Config
from rotationout.experiments.results import read_records
from rotationout.recipes import TABLES
from rotationout.recipes.search import SEARCH

from .cells import RESULTS, markdown
from .resnet110 import PROTOCOL

__all__ = ["texts"]

SEEDS = 5
"""Runs of a row in the paper's tables, where it says how many."""
RUNS = {PROTOCOL: 1, SEARCH: 1, "an4_strength": 2, "an4": 5}
"""Of a row in tables by which something was chosen, and where we took more than the default."""


def texts() -> dict[str, str]:
    """By name."""
    every = {name: read_records(RESULTS, name) for name in TABLES}
    records = {name: found for name, found in every.items() if not found or any(run["peak_bytes"] for run in found)}
    tables = {name: TABLES[name] for name in records}  # without those that ran on a CPU, which have no peak
    measured = {name: _seconds_of_a_step(found) for name, found in records.items() if found}
    least: dict[str, float] = {}
    for name, seconds in measured.items():
        network = _network(TABLES[name]()[0], name)
        least[network] = min(seconds, least.get(network, seconds))
    ours = len(numbers(inspect.signature(sweep).parameters["seeds"].default))
    rows = []
    for name, configs in tables.items():
        table = configs()
        seeds = RUNS.get(name, SEEDS if name.endswith(("_paper", "_authors", "imagenet")) else ours)
        step = measured.get(name, least.get(_network(table[0], name)))
        each = None if step is None else step * table[0].steps / 60
        cost = ["not measured", "–"] if each is None else [f"{each:.1f}", f"{each * len(table) * seeds:,.0f}"]
        rows.append([f"`{name}`", str(len(table)), str(seeds), f"{table[0].steps:,}", *cost, str(len(records[name]))])
    most = max(record["together"] for record in records[SEARCH])  # all of them from start to end
    alike = [record for record in records[SEARCH] if record["together"] == most]
    return {
        "cost_table": markdown(["table", "rows", "seeds", "steps", "GPU-minutes a run", "in all", "recorded"], rows),
        "cost_step": f"{1e3 * _seconds_of_a_step(alike):.1f}",
        "cost_together": str(most),
        "cost_device": alike[0]["device"],
        "cost_peak": f"{max(record['peak_bytes'] for record in alike) / 2**30:.1f}",
        **_stand_ins(records),
    }


def _stand_ins(records: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """How long the stand-ins take: BCCD alone on a GPU, the others by the share of it that each run had."""
    alone = [record["seconds"] for record in records["bccd"] if record["together"] == 1]
    speech = {record["together"] for record in records["an4"]}
    share = [record["seconds"] / record["together"] for record in records["an4"]]
    images = [record["together"] * record["images_per_second"] for record in records["imagewoof"]]
    return {
        "bccd_seconds": f"{max(alone):.0f}",
        "speech_share": f"{max(share):.0f}",
        "speech_together": ", ".join(map(str, speech)),
        "imagewoof_together": ", ".join(map(str, {record["together"] for record in records["imagewoof"]})),
        "imagewoof_speed": f"{min(images):,.0f}",
    }


def _network(config: Config, table: str) -> str:
    """What a table trains, or its name if that is one network always."""
    return str(getattr(config, "network", table))


def _seconds_of_a_step(records: list[dict[str, Any]]) -> float:
    """For one of the runs that shared a device, tests included.

    Older records do not say what a run's share of the device's time was. An equal part is taken, which is too small for
    the last runs of a sweep where fewer than ``together`` were left: three of BCCD and twelve of AN4.
    """
    shares = (record.get("device_seconds", record["seconds"] / record["together"]) for record in records)
    return statistics.fmean(share / record["steps"] for share, record in zip(shares, records, strict=True))
