"""What the records say, as text for the pages: every measured number of the documentation is made here, from a file.

`substitutions` has a name for each; a page says ``{{ name }}``. What is computed and not measured, the strengths of
noises for instance, is made here too.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS as BENCHMARKS
from benchmarks.tables import cpu_table, gpu_table

from rotationout import registry, strength
from rotationout.analysis import RULES
from rotationout.experiments.records import Study
from rotationout.experiments.results import read_records
from rotationout.recipes import TABLES
from rotationout.report import digits
from rotationout.report.table1 import PAPER

__all__ = ["substitutions"]

RESULTS = Path(__file__).parents[2] / "results"
PROTOCOL = "cifar100_resnet110_protocol"
SEEDS = 5
"""Runs of a row in the paper's Table 1."""


def substitutions() -> dict[str, str]:
    """All of them by name."""
    return {
        **_computed(),
        **_digits(),
        **_protocol(),
        **_costs(),
        **_speed(),
        **_networks(),
    }


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _computed() -> dict[str, str]:
    strengths = []
    for p in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
        lam = strength.to_lam("dropout", p)
        degrees = math.degrees(strength.from_lam("uniform_angle", lam))
        others = [strength.from_lam(kind, lam) for kind in ("gaussian_tan", "uniform_tan", "uout")]
        strengths.append(
            [
                f"{p:g}",
                f"{lam:.4f}",
                f"{others[0]:.3f}",
                f"{others[1]:.3f}",
                f"{degrees:.1f}°",
            ]
        )
        strengths[-1].append(f"{others[2]:.3f}")
    header = ["p", "λ", "σ of tan θ", "bound of tan θ", "bound of θ", "β of Uout"]
    rules = [[f"`{name}`", (rule.__doc__ or "").partition("\n")[0]] for name, rule in RULES.items()]
    kinds = [[f"`{name}`", kind.summary, kind.strength] for name, kind in registry.KINDS.items()]
    return {
        "strengths": markdown(header, strengths),
        "lint_rules": markdown(["rule", "what it finds"], rules),
        "kinds": markdown(["name", "what it does", "what p means"], kinds),
        "paper_best_resnet110": _paper_best("resnet110"),
        "paper_best_wrn": _paper_best("wrn28_10"),
    }


def _paper_best(network: str) -> str:
    """The rotation of highest average accuracy as printed, as a p."""
    rows = {row: value for row, (value, _) in PAPER[network].items() if row.startswith("rotation")}
    best = max(rows, key=lambda row: float(rows[row].split()[0]))
    return f"{strength.convert(float(best.split()[1]), 'gaussian_tan', 'dropout'):.1f}"


def _digits() -> dict[str, str]:
    study = Study.load(RESULTS / "digits.json")
    table = digits.strength_table(study)
    others = [p for p in study.rates if p != study.p]
    return {
        "digits_strengths": markdown(table.header, table.rows),
        "digits_none": digits.percent([run.test_accuracy for run in study.select("none")]),
        "digits_runs": str(len(study.select("dropout"))),
        "digits_train": str(study.settings["train_examples"]),
        "digits_test": f"{study.settings['test_examples']:,}",
        "digits_p": f"{study.p:g}",
        "digits_difference": digits.difference(study),
        "digits_other_p": ", ".join(f"{p:g}" for p in others),
        "digits_seconds": f"{sum(run.seconds for run in study.records):.0f}",
        "digits_count": str(len(study.records)),
    }


def _protocol() -> dict[str, str]:
    records = read_records(RESULTS, PROTOCOL)
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in records:
        runs.setdefault(tuple(record["row"].replace("weight decay ", "").split(", ")), []).append(record)
    means = {row: statistics.fmean(run["last10_top1"] for run in found) for row, found in runs.items()}
    rows = []
    for row in sorted(means, key=lambda row: -means[row]):
        spread = [digits.percent([run[key] / 100 for run in runs[row]]) for key in ("last10_top1", "best_top1")]
        rows.append([*row, str(len(runs[row])), *spread])
    effects = [
        f"{means[row] - means[row[0], 'no ramp', row[2]]:+.2f} ({row[0]})"
        for row in means
        if row[1] == "ramp" and (row[0], "no ramp", row[2]) in means
    ]
    first = records[0]["config"]
    return {
        "protocol_table": markdown(["preset", "ramp", "weight decay", "n", "last 10 epochs, %", "best epoch, %"], rows),
        "protocol_count": str(len(records)),
        "protocol_steps": f"{first['steps']:,}",
        "protocol_held_out": f"{first['held_out']:,}",
        "protocol_ramp": f"{max(record['config']['ramp'] for record in records):,}",
        "protocol_ramp_effects": " and ".join(effects).replace("-", "−"),
        "protocol_p": f"{first['p']:g}",
        "protocol_spread": f"{max(means.values()) - min(means.values()):.2f}",
    }


def _costs() -> dict[str, str]:
    """GPU-minutes, from what runs side by side took in all and how many they were."""
    records = read_records(RESULTS, PROTOCOL)
    step = statistics.fmean(record["seconds"] / record["together"] / record["steps"] for record in records)
    rows = []
    for name, configs in TABLES.items():
        table = configs()
        seeds = 1 if name == PROTOCOL else SEEDS
        measured = "resnet110" in name
        each = step * table[0].steps / 60
        cost = [f"{each:.1f}", f"{each * len(table) * seeds:,.0f}"] if measured else ["not measured", "–"]
        rows.append([f"`{name}`", str(len(table)), str(seeds), *cost])
    return {
        "cost_table": markdown(["table", "rows", "seeds", "GPU-minutes a run", "GPU-minutes in all"], rows),
        "cost_step": f"{1e3 * step:.1f}",
        "cost_together": str(records[0]["together"]),
        "cost_device": records[0]["device"],
        "cost_peak": f"{records[0]['peak_bytes'] / 2**30:.1f}",
    }


def _record(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))["rows"]
    return rows


def _speed() -> dict[str, str]:
    rows = [row for row in _record("ops_nvidia-h200_torch-2.11.0.json") if "both_us" in row]
    by_tensor: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_tensor.setdefault(row["tensor"], {})[row["noise"]] = row
    structured, authors, kept, dropped, of_copy = [], [], [], [], []
    for noises in by_tensor.values():
        base = noises["nn.Dropout"]
        ours = noises.get("structured per example", noises["structured per row"])
        structured.append(ours["captured_us"][0] / base["captured_us"][0])
        authors.append(noises["authors' formula"]["captured_us"][0] / base["captured_us"][0])
        of_copy.append(2 * base["copy_us"][0] / ours["captured_us"][0])
        kept.append(ours["bytes_kept"] / 1e6)
        dropped.append(base["bytes_kept"] / 1e6)
    nchw = by_tensor["float32 (256, 256, 56, 56)"]
    rows_of_map = nchw["structured per row"]["captured_us"][0] / nchw["nn.Dropout"]["captured_us"][0]
    return {
        "gpu_table": gpu_table(),
        "cpu_table": cpu_table(),
        "gpu_structured": _range(structured),
        "gpu_authors": _range(authors, 0),
        "gpu_of_copy": _range([100 * value for value in of_copy], 0),
        "gpu_kept": _range(kept, 1),
        "gpu_dropout_kept": _range(dropped, 0),
        "gpu_rows_of_map": f"{rows_of_map:.1f}",
    }


def _networks() -> dict[str, str]:
    """Whole networks: ResNet-50, a small block, and recurrent ones."""
    steps: dict[tuple[str, bool], dict[str, float]] = {}
    for row in _record("models_nvidia-h200_torch-2.11.0.json"):
        steps.setdefault((row["network"].split(",")[0], row["compiled"]), {})[row["noise"]] = row["step_ms"][0]
    whole = steps["ResNet-50", False]
    names = {
        "nn.Dropout": "dropout",
        "RotationOut (default)": "default",
        "un-centred, structured": "structured",
    }
    found = {f"resnet50_{key}": f"{100 * (whole[name] / whole['none'] - 1):.1f} %" for name, key in names.items()}
    block, compiled = (
        steps["block of 256 channels", False],
        steps["block of 256 channels", True],
    )
    fused = "default, fused by the compiler"
    small = [
        ["no noise", "none"],
        ["`nn.Dropout`", "nn.Dropout"],
        ["`RotationOut2d`", "RotationOut (default)"],
    ]
    small.append(["`RotationOut2d`, plain torch for the compiler to fuse", fused])
    cells = [[label, _milliseconds(block.get(name)), _milliseconds(compiled[name])] for label, name in small]
    return {
        **found,
        "block_table": markdown(["noise", "eager, ms", "compiled, ms"], cells),
        "recurrent_cpu": _recurrent("cpu"),
        "recurrent_gpu": _recurrent("nvidia-h200"),
    }


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _recurrent(device: str) -> str:
    """The time of networks with RotationOut or locked dropout, relative to layers of torch with Dropout between."""
    rows = _record(f"recurrent_{device}_torch-2.11.0.json")
    base = {row["input"]: row["ms"] for row in rows if row["network"] == "nn.LSTMs, nn.Dropout"}
    noisy = [row for row in rows if "Rotation" in row["network"] or "Locked" in row["network"]]
    return _range([row["ms"] / base[row["input"]] for row in noisy])


def _range(values: Sequence[float], digits: int = 2) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
