"""What noises cost in time and memory, alone and in whole networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.records import RESULTS as BENCHMARKS
from benchmarks.tables import cpu_table, gpu_table

from rotationout.recipes import TABLES

from .cells import markdown

__all__ = ["texts"]

LARGE = 100.0
"""µs of a copy, from which on a tensor's launches do not matter."""
TURNS = ("pairs_kernel", "rows_kernel", "lanes_kernel", "gather_kernel")


def texts() -> dict[str, str]:
    """By name."""
    return {**_layers(), **_networks(), **_narrow(), "centred_table": _centred()}


def _record(name: str, part: str = "rows") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))[part]
    return rows


def _layers() -> dict[str, str]:
    rows = [row for row in _record("ops_nvidia-h200_torch-2.11.0.json") if "both_us" in row]
    by_tensor: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_tensor.setdefault(row["tensor"], {})[row["noise"]] = row
    structured, authors, kept, dropped, of_copy, called = [], [], [], [], [], []
    for noises in by_tensor.values():
        base = noises["nn.Dropout"]
        ours = noises.get("structured per example", noises["structured per row"])
        structured.append(ours["captured_us"][0] / base["captured_us"][0])
        authors.append(noises["authors' formula"]["captured_us"][0] / base["captured_us"][0])
        of_copy.append(2 * base["copy_us"][0] / ours["captured_us"][0])
        called.append(ours["both_us"][0] / base["both_us"][0])
        kept.append(ours["bytes_kept"] / 1e6)
        dropped.append(base["bytes_kept"] / 1e6)
    nchw = by_tensor["float32 (256, 256, 56, 56)"]
    rows_of_map = nchw["structured per row"]["captured_us"][0] / nchw["nn.Dropout"]["captured_us"][0]
    return {
        "gpu_table": gpu_table(),
        "cpu_table": cpu_table(),
        "gpu_structured": _range(structured),
        "gpu_called": _range(called),
        "gpu_authors": _range(authors, 0),
        "gpu_of_copy": _range([100 * value for value in of_copy], 0),
        "gpu_kept": _range(kept, 1),
        "gpu_dropout_kept": _range(dropped, 0),
        "gpu_rows_of_map": f"{rows_of_map:.1f}",
        "small_table": _small(),
    }


def _small() -> str:
    """Forward and backward on small maps, by noise and map."""
    rows = [row for row in _record("ops_nvidia-h200_torch-2.11.0.json") if "both_us" not in row]
    tensors = list(dict.fromkeys(row["tensor"] for row in rows))
    times = {(row["tensor"], row["noise"]): row["captured_us"][0] for row in rows}
    noises = {
        "`nn.Dropout`": "nn.Dropout",
        "un-centred, structured": "structured per example",
        "un-centred, permutation": "permutation per example",
        "about the batch mean (default)": "batch mean",
    }
    cells = [["`nn.Dropout2d`", *(f"{times[tensor, 'nn.Dropout2d']:.1f} µs" for tensor in tensors)]]
    for label, noise in noises.items():
        ratios = [times[tensor, noise] / times[tensor, "nn.Dropout2d"] for tensor in tensors]
        cells.append([label, *(f"{ratio:.2f}×" for ratio in ratios)])
    return markdown(["noise", *(tensor.removeprefix("bfloat16 ") for tensor in tensors)], cells)


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
    for (network, with_compiler), times in steps.items():
        if network.startswith("transformer"):
            for name, key in names.items():
                if name in times:
                    label = f"transformer_{'compiled_' if with_compiler else ''}{key}"
                    found[label] = f"{100 * (times[name] / times['none'] - 1):.1f} %"
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
    imagenet = TABLES["imagenet"]()[0]
    return {
        **found,
        "resnet50_step": f"{whole['none']:.1f}",
        "imagenet_hours": f"{whole['none'] * imagenet.steps / 3.6e6:.0f}",
        "block_table": markdown(["noise", "eager, ms", "compiled, ms"], cells),
        "recurrent_cpu": _recurrent("cpu"),
        "recurrent_gpu": _recurrent("nvidia-h200"),
    }


def _narrow() -> dict[str, str]:
    """ResNet110 by torch's kernels and by those for few channels: ms of a run and step, the most runs side by side."""
    steps = _record("narrow_nvidia-h200_torch-2.11.0.json", "steps")
    most = max(row["count"] for row in steps)
    times = {row["kernels"]: f"{row['ms']:.1f}" for row in steps if row["count"] == most and row["row"] == "none"}
    return {"narrow_count": str(most), "narrow_torch": times["torch"], "narrow_fused": times["fused"]}


def _centred() -> str:
    """Large tensors about a batch mean: what memory allows, what is reached, and which kernels take how long."""
    rows = []
    for row in _record("centred_nvidia-h200_torch-2.11.0.json"):
        dropout, ours = (row["noises"][name]["both_us"] for name in ("nn.Dropout", "batch mean"))
        if row["copy_us"] < LARGE:
            continue
        times = dict.fromkeys(("sum", "turn", "draw"), 0.0)
        for name, kernel in row["kernels"]["batch mean"].items():
            kind = "sum" if "sum" in name or "finish" in name else "turn" if name.endswith(TURNS) else "draw"
            times[kind] += kernel["launches"] * kernel["mean_us"]
        shares = [f"{time:.0f}" for time in times.values()]
        copies = 3 * row["copy_us"]
        cells = [f"{time:.0f} ({time / dropout:.2f}×)" for time in (copies, ours)]
        rows.append([row["tensor"], f"{dropout:.0f}", *cells, *shares])
    header = ["tensor", "`nn.Dropout`, µs", "three copies", "RotationOut", "sums", "turns", "draws, signs"]
    return markdown(header, rows)


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
