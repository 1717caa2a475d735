"""``rotationout bench``: how fast noises are on this machine, compared with nn.Dropout."""

from __future__ import annotations

import json as json_format
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, Json
from .output import print_json, show
from .trouble import check_place, chosen, misuse, say

if TYPE_CHECKING:
    from ..report.page import Table

__all__ = ["bench"]

SHAPES = {
    "cpu": ("128,64,8,8", "128,64,16,16", "128,64,32,32", "4096,1024", "64,512,128"),
    "cuda": ("128,64,8,8", "128,640,8,8", "256,256,56,56", "65536,4096"),
}
"""The shapes that are timed if none is given; those for a GPU are larger, to keep it busy."""
DTYPES = ("float32", "bfloat16", "float16", "float64")
MOST_THREADS = 1024
"""Torch would start any number of threads."""
MOST_ELEMENTS = 2**60
"""Torch cannot count the bytes of a larger tensor."""


def bench(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="N,…", help="Size of the features: N,D or N,T,D or N,C,H,W. Repeat for several."
        ),
    ] = None,
    p: Annotated[float, typer.Option("--p", help="Drop probability of all noises.")] = 0.2,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="How often each noise is timed.")] = 15,
    dtype: Annotated[str, typer.Option("--dtype", help=f"Type of the features: {', '.join(DTYPES)}.")] = "float32",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=MOST_THREADS, help="CPU threads; torch's default if not given."),
    ] = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the results here, as JSON.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare the speed and memory of noises with nn.Dropout on this machine.

    Times forward and backward as called from Python. The noises take turns, so rely on the ratio to nn.Dropout rather
    than on the milliseconds. Also shows how much memory each noise keeps for the backward pass.

    Example:
        rotationout bench --shape 128,64,32,32
        rotationout bench --shape 64,512,768 --dtype bfloat16 --device cuda
    """
    import torch

    from ..bench import compare, record
    from ..experiments import processes
    from ..strength import check_rate

    try:
        check_rate(p)
    except ValueError as error:
        misuse(str(error), "--p")
    if p == 0.0:
        misuse("layers do nothing at p = 0, so there is nothing to time; give a number in (0, 1)", "--p")
    if out is not None:
        check_place(out, "--out")
    kind = getattr(torch, chosen("--dtype", dtype, DTYPES))
    if threads is not None:
        torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    with processes.joined(device) as place:
        sizes = [_shape(text) for text in shape or SHAPES["cuda" if place.type == "cuda" else "cpu"]]
        where = torch.cuda.get_device_name(place) if place.type == "cuda" else f"{torch.get_num_threads()} threads"
        say(f"torch {torch.__version__}, {where}, {dtype}, forward + backward, p = {p:g}")
        for size in sizes:
            rows += compare(size, p=p, rounds=rounds, device=place, dtype=kind)
            if not json:
                show(_table(rows, str(size)), str(size))
                print(flush=True)
        measured = {**record(rows, p, place), "dtype": dtype}
    if json:
        print_json(measured)
    if out is not None:
        out.write_text(json_format.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace("x", ",").split(",")
    if not all(size.isdecimal() and int(size) for size in sizes) or len(sizes) not in (2, 3, 4):
        misuse(f"must be N,D or N,T,D or N,C,H,W, for instance 128,64,32,32, got {text!r}", "--shape")
    if int(sizes[1 if len(sizes) == 4 else -1]) < 2:
        misuse(f"must have at least 2 features, D or C, to pair, got {text!r}", "--shape")
    if math.prod(map(int, sizes)) > MOST_ELEMENTS:
        misuse(f"must not have more elements than a tensor can have, got {text!r}", "--shape")
    return tuple(map(int, sizes))


def _table(rows: list[dict[str, Any]], tensor: str) -> Table:
    from ..report.page import Table

    mine = [row for row in rows if row["tensor"] == tensor]
    base = next(row for row in mine if row["noise"] == "nn.Dropout")
    cells = [
        [
            row["noise"],
            f"{row['ms']:.2f}",
            f"{row['ms'] / base['ms']:.2f}",
            f"{row['bytes_kept'] / 1e3:.1f}",
            f"{100 * row['bytes_kept'] / base['bytes_kept']:.2f}",
        ]
        for row in mine
    ]
    return Table(["noise", "ms", "× Dropout", "kept, kB", "% of Dropout's"], cells)
