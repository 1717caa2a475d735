"""What noises cost in time and memory, alone and in whole networks."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from benchmarks.tables import cpu_table, gpu_table
from torch import nn

from rotationout import RotationOut
from rotationout.bench import bytes_kept
from rotationout.bench.noises import DEFAULT
from rotationout.recipes import TABLES

from .cells import benchmark, markdown, span

__all__ = ["texts"]


PLANE = "gradient in the plane"


def texts() -> dict[str, str]:
    """By name."""
    return {**_layers(), **_networks(), **_narrow(), **_wide()}


def _layers() -> dict[str, str]:
    rows = [row for row in benchmark("ops_nvidia-h200") if "both_us" in row]
    by_tensor: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_tensor.setdefault(row["tensor"], {})[row["noise"]] = row
    structured, centred, authors, plane, kept, dropped, called = [], [], [], [], [], [], []
    for noises in by_tensor.values():
        base = noises["nn.Dropout"]
        ours = noises.get("structured per example", noises["structured per row"])
        structured.append(ours["captured_us"][0] / base["captured_us"][0])
        centred.append(noises["batch mean"]["captured_us"][0] / base["captured_us"][0])
        authors.append(noises["authors' formula"]["captured_us"][0] / base["captured_us"][0])
        if PLANE in noises:
            plane.append(noises[PLANE]["captured_us"][0] / base["captured_us"][0])
        called.append(ours["both_us"][0] / base["both_us"][0])
        kept.append(ours["bytes_kept"] / 1e6)
        dropped.append(base["bytes_kept"] / 1e6)
    nchw = by_tensor["float32 (256, 256, 56, 56)"]
    rows_of_map = nchw["structured per row"]["captured_us"][0] / nchw["nn.Dropout"]["captured_us"][0]
    return {
        "gpu_table": gpu_table(),
        "cpu_table": cpu_table(),
        "gpu_structured": span(structured),
        "gpu_centred": span(centred),
        "gpu_plane": span(plane),
        "gpu_called": span(called),
        "gpu_authors": span(authors, 0),
        "gpu_kept": span(kept, 1),
        "gpu_dropout_kept": span(dropped, 0),
        "gpu_rows_of_map": f"{rows_of_map:.1f}",
        "small_table": _small(),
        "cpu_dropout2d": span(_on_a_cpu(f"RotationOut, batch-centred{DEFAULT}", "nn.Dropout2d"), 1),
        "cpu_plane": span(_on_a_cpu("RotationOut, gradient in the plane", f"RotationOut, un-centred{DEFAULT}"), 1),
        "small_kept": f"{_kept(RotationOut(0.2)) / _kept(nn.Dropout(0.2)):.0f}",
    }


def _on_a_cpu(noise: str, other: str) -> list[float]:
    """The time of one noise on a CPU relative to another's, for each tensor that both were measured with."""
    times = {(row["tensor"], row["noise"]): row["ms"] for row in benchmark("ops_cpu")}
    tensors = dict.fromkeys(tensor for tensor, _ in times)
    pairs = [(times.get((tensor, noise)), times.get((tensor, other))) for tensor in tensors]
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None]


def _kept(noise: nn.Module) -> int:
    """What a layer keeps of a small tensor for backward, in bytes."""
    return bytes_kept(noise, torch.randn(50, 256, requires_grad=True))


def _small() -> str:
    """Forward and backward on small maps, by noise and map."""
    rows = [row for row in benchmark("ops_nvidia-h200") if "both_us" not in row]
    tensors = list(dict.fromkeys(row["tensor"] for row in rows))
    times = {(row["tensor"], row["noise"]): row["captured_us"][0] for row in rows}
    noises = {
        "`nn.Dropout`": "nn.Dropout",
        "un-centred, structured": "structured per example",
        "un-centred, permutation": "permutation per example",
        "about the batch mean (default)": "batch mean",
        "about the batch mean, one P for the batch": "batch mean, P per batch",
        "about a running mean": "running mean",
    }
    cells = [["`nn.Dropout2d`", *(f"{times[tensor, 'nn.Dropout2d']:.1f} µs" for tensor in tensors)]]
    for label, noise in noises.items():
        ratios = [times[tensor, noise] / times[tensor, "nn.Dropout2d"] for tensor in tensors]
        cells.append([label, *(f"{ratio:.2f}×" for ratio in ratios)])
    return markdown(["noise", *(tensor.removeprefix("bfloat16 ") for tensor in tensors)], cells)


def _networks() -> dict[str, str]:
    """Whole networks: ResNet-50, a small block, and recurrent ones."""
    steps: dict[tuple[str, bool], dict[str, float]] = {}
    for row in benchmark("models_nvidia-h200"):
        steps.setdefault((row["network"].split(",")[0], row["compiled"]), {})[row["noise"]] = row["step_ms"][0]
    whole = steps["ResNet-50", False]
    names = {
        "nn.Dropout": "dropout",
        "nn.Dropout2d": "dropout2d",
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
    steps = benchmark("narrow_nvidia-h200", "steps")
    most = max(row["count"] for row in steps)
    times = {row["kernels"]: f"{row['ms']:.1f}" for row in steps if row["count"] == most and row["row"] == "none"}
    return {"narrow_count": str(most), "narrow_torch": times["torch"], "narrow_fused": times["fused"]}


def _wide() -> dict[str, str]:
    """WideResNet28-10 without noise, compiled by blocks: ms of a run and step, for one run and two side by side."""
    rows = [row for row in benchmark("wide_nvidia-h200", "steps") if row["way"] == "blocks"]
    steps = {row["together"]: statistics.median(row["ms"]) for row in rows}
    return {f"wide_blocks_{count}": f"{steps[count]:.1f}" for count in (1, 2)}


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _recurrent(device: str) -> str:
    """The time of networks with RotationOut or locked dropout, relative to layers of torch with Dropout between."""
    rows = benchmark(f"recurrent_{device}")
    base = {row["input"]: row["ms"] for row in rows if row["network"] == "nn.LSTMs, nn.Dropout"}
    noisy = [row for row in rows if "Rotation" in row["network"] or "Locked" in row["network"]]
    return span([row["ms"] / base[row["input"]] for row in noisy])
