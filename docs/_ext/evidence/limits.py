"""How near layers on a GPU come to what memory allows: copies of the same tensor, timed in the same record."""

from __future__ import annotations

from typing import Any

from .cells import benchmark, markdown, span

__all__ = ["texts"]

LARGE = 100.0
"""µs of a copy, from which on a tensor's launches do not matter."""
TURN, RUNNING, BATCH = 2.0, 2.5, 3.0
"""Copies' worth of bytes that forward and backward move: a turn each; one sum more, which only reads; two sums more."""
TURNS = ("pairs_kernel", "rows_kernel", "lanes_kernel", "gather_kernel")
RESNET = (
    "bfloat16 (256, 256, 14, 14) channels_last",
    "bfloat16 (256, 512, 14, 14) channels_last",
    "bfloat16 (256, 512, 7, 7) channels_last",
)
"""Maps before the 3×3 convolutions of ResNet-50's last two stages; but the first, of 28 × 28, is not in the record."""


def texts() -> dict[str, str]:
    """By name."""
    centred = benchmark("centred_nvidia-h200")
    return {
        **_layers(),
        "kernels_table": _kernels([row for row in centred if row["copy_us"] >= LARGE]),
        "resnet50_maps_table": _maps({row["tensor"]: row for row in centred}),
    }


def _layers() -> dict[str, str]:
    """Large tensors, captured in CUDA graphs."""
    times: dict[str, dict[str, float]] = {}
    copies: dict[str, float] = {}
    for row in benchmark("ops_nvidia-h200"):
        if "both_us" in row:
            times.setdefault(row["tensor"], {})[row["noise"]] = row["captured_us"][0]
            copies[row["tensor"]] = row["copy_us"][0]
    turns, means, authors, least_authors = [], [], [], []
    fastest: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    running: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for tensor, found in times.items():
        copy, dropout = copies[tensor], found["nn.Dropout"]
        structured = found.get("structured per example", found["structured per row"])
        permutation = found.get("permutation per example", found["permutation per batch"])
        reached = [f"{100 * TURN * copy / time:.1f}" for time in (structured, permutation)]
        turns.append([tensor, f"{TURN * copy:.0f} ({TURN * copy / dropout:.2f}×)", *reached])
        least_and_ours = (BATCH * copy, found["batch mean"], RUNNING * copy, found["running mean"])
        means.append([tensor, f"{dropout:.0f}", *(f"{time:.0f} ({time / dropout:.2f}×)" for time in least_and_ours)])
        dtype = tensor.split()[0]
        fastest[dtype].append(dropout / (TURN * copy))
        running[dtype].append(found["running mean"] / dropout)
        authors.append(found["authors' formula"] / found["batch mean"])
        least_authors.append(found["authors' formula"] / (BATCH * copy))
    header = ["tensor", "two copies, µs", "structured, %", "permutation, %"]
    return {
        "turns_table": markdown(header, turns),
        "means_table": markdown(
            ["tensor", "`nn.Dropout`, µs", "three copies", "batch mean", "2½ copies", "running mean"], means
        ),
        **{f"fastest_{dtype}": span(values) for dtype, values in fastest.items()},
        **{f"running_{dtype}": span(values) for dtype, values in running.items()},
        "authors_centred": span(authors, 1),
        "authors_copies": span(least_authors, 1),
    }


def _kernels(rows: list[dict[str, Any]]) -> str:
    """Which kernels about a batch mean take how long, beside what they move."""
    cells = []
    for row in rows:
        times = dict.fromkeys(("sum", "turn", "draw"), 0.0)
        for name, kernel in row["kernels"]["batch mean"].items():
            kind = "sum" if "sum" in name or "finish" in name else "turn" if name.endswith(TURNS) else "draw"
            times[kind] += kernel["launches"] * kernel["mean_us"]
        copy = row["copy_us"]
        moved = {"sum": BATCH - TURN, "turn": TURN}
        shares = [f"{times[kind]:.0f} ({times[kind] / (count * copy):.2f}×)" for kind, count in moved.items()]
        cells.append([row["tensor"], f"{copy:.0f}", *shares, f"{times['draw']:.0f}"])
    header = ["tensor", "a copy, µs", "sums (× a copy)", "turns (× two copies)", "draws, signs"]
    return markdown(header, cells)


def _maps(rows: dict[str, dict[str, Any]]) -> str:
    """ResNet-50's maps: what is left of a turn's lead over Dropout if its sums are but read, and as measured."""
    cells = []
    for tensor in RESNET:
        noises = {name: times["both_us"] for name, times in rows[tensor]["noises"].items()}
        dropout, plain = noises["nn.Dropout"], noises["no mean"]
        read = plain + (BATCH - TURN) * rows[tensor]["copy_us"]
        shown = (noises["nn.Dropout2d"], plain, read, noises["batch mean"])
        name = tensor.removeprefix("bfloat16 ").removesuffix(" channels_last")
        cells.append([name, f"{dropout:.0f}", *(f"{time:.0f} ({time / dropout:.2f}×)" for time in shown)])
    header = ["maps", "`nn.Dropout`, µs", "`nn.Dropout2d`", "un-centred", "and a copy", "batch mean"]
    return markdown(header, cells)
