"""Where the time of RotationOut about a batch mean goes on a GPU: ``python -m benchmarks.centred``.

For each tensor, medians in µs of forward, backward and both in CUDA graphs, beside a device-to-device copy and torch's
own Dropouts; then every kernel of one forward and backward, by name, with its launches and mean time. ``--without``
takes single ideas back, by the constants of `rotationout.kernels.triton.choose`, and shows the same totals: all of
them if none is named after it. Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

import rotationout as ro
from rotationout.kernels.triton import choose, layout

from .gpu import P, features_of, label
from .records import RESULTS, write

Case = tuple[torch.dtype, tuple[int, ...], bool]
Values = dict[str, Any]
LARGE: Case = (torch.bfloat16, (256, 256, 56, 56), False)
LARGE_LAST: Case = (torch.bfloat16, (256, 256, 56, 56), True)
STAGE_3: Case = (torch.bfloat16, (256, 256, 14, 14), True)
STAGE_4: Case = (torch.bfloat16, (256, 512, 14, 14), True)
STAGE_4_SMALL: Case = (torch.bfloat16, (256, 512, 7, 7), True)
WIDE: Case = (torch.bfloat16, (128, 640, 8, 8), True)
SMALL_LAST: Case = (torch.bfloat16, (128, 64, 8, 8), True)
SMALL: Case = (torch.bfloat16, (128, 64, 8, 8), False)
ROWS: Case = (torch.bfloat16, (802816, 256), False)
LONG_ROWS: Case = (torch.bfloat16, (65536, 4096), False)
LONG_ROWS_FP32: Case = (torch.float32, (65536, 4096), False)
CASES = [
    LARGE,
    LARGE_LAST,
    STAGE_3,
    STAGE_4,
    STAGE_4_SMALL,
    WIDE,
    SMALL_LAST,
    SMALL,
    ROWS,
    LONG_ROWS,
    LONG_ROWS_FP32,
]
"""Maps have the default draw, a permutation for each example; rows a structured pairing each. Stages: of ResNet-50."""
IDEAS: dict[str, tuple[Values, list[Case]]] = {
    "registers": (
        {"SUM_REGISTERS": (0, 0), "LANES_SUM_REGISTERS": (0, 0), "LANES_REGISTERS": (0, 0, 0)},
        [LARGE, LARGE_LAST, ROWS, LONG_ROWS, LONG_ROWS_FP32],
    ),
    "sum tiles": (
        {"SUM_TILE": 4096, "SUM_WARPS": 4, "SUM_PARTS": (2112, 1056), "SUM_REGISTERS": (0, 0)},
        [LARGE, LARGE_LAST, STAGE_3, LONG_ROWS],
    ),
    "sum positions": ({"SUM_POSITIONS": 512}, [LARGE]),
    "lanes parts": ({"LANES_SUM_PARTS": 1}, [ROWS, LONG_ROWS]),
    "few parts": ({"SMALL_ROWS": 0}, [SMALL_LAST]),
    "rows of 256 at most": ({"ROW_FEATURES": 512}, [STAGE_4, STAGE_4_SMALL]),
    "rows of any registers": ({"ROW_REGISTERS": 80}, [LARGE_LAST, STAGE_3]),
}
"""The constants of each idea without it, and the tensors it is about. The last two put to the test what is not done."""


def captured(noise: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    """Medians of a forward as in training, a backward, and both: the time of the device alone."""
    x = x.detach().requires_grad_()
    grad = torch.randn_like(x)
    forward = _replayed(lambda: noise(x), x)
    both = _replayed(lambda: torch.autograd.grad(noise(x), x, grad), x)
    return {"forward_us": forward, "backward_us": both - forward, "both_us": both}


def _replayed(step: Callable[[], Any], x: Tensor) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeats = 20 if x.numel() < 10**7 else 2
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            step()
    return _median(graph.replay) / repeats


def kernels(noise: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, dict[str, float]]:
    """Launches and mean µs of every kernel of a forward and backward, by name."""
    x = x.detach().requires_grad_()
    grad = torch.randn_like(x)
    for _ in range(3):
        torch.autograd.grad(noise(x), x, grad)
    torch.cuda.synchronize()
    runs = 5
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(runs):
            torch.autograd.grad(noise(x), x, grad)
        torch.cuda.synchronize()
    times = defaultdict(list)
    for event in record.events():
        if event.device_type == DeviceType.CUDA:
            times[event.name[:80]].append(event.device_time_total)
    return {name: {"launches": len(t) / runs, "mean_us": sum(t) / len(t)} for name, t in times.items()}


@contextmanager
def without(idea: str) -> Iterator[None]:
    """Take one of IDEAS back."""
    values = IDEAS[idea][0]
    before = {name: getattr(choose, name) for name in values}
    try:
        for name, value in values.items():
            setattr(choose, name, value)
        layout._plans.clear()
        yield
    finally:
        for name, value in before.items():
            setattr(choose, name, value)
        layout._plans.clear()


def noises(maps: bool) -> dict[str, nn.Module]:
    """What is compared; the last is what this is about."""
    if maps:
        centred, plain = ro.RotationOut2d(P, center="batch"), ro.RotationOut2d(P, center=None)
        return {"nn.Dropout": nn.Dropout(P), "nn.Dropout2d": nn.Dropout2d(P), "no mean": plain, "batch mean": centred}
    rows = [ro.RotationOut(P, center=center, pairing="structured", pairing_per="row") for center in (None, "batch")]
    return {"nn.Dropout": nn.Dropout(P), "no mean": rows[0], "batch mean": rows[1]}


def run(case: Case, ideas: list[str]) -> dict[str, Any]:
    """All about one tensor."""
    x = features_of(*case)
    target = torch.empty_like(x)
    row: dict[str, Any] = {"tensor": label(*case), "copy_us": _median(lambda: target.copy_(x))}
    compared = {name: noise.cuda() for name, noise in noises(x.ndim == 4).items()}
    row["noises"] = {name: captured(noise, x) for name, noise in compared.items()}
    row["kernels"] = {name: kernels(noise, x) for name, noise in compared.items()}
    row["without"] = {}
    for idea in ideas:
        if case in IDEAS[idea][1]:
            with without(idea):
                row["without"][idea] = captured(compared["batch mean"], x)
    torch.cuda.empty_cache()
    return row


def show(row: dict[str, Any]) -> None:
    """Print what was measured of a tensor."""
    copy, dropout = row["copy_us"], row["noises"]["nn.Dropout"]["both_us"]
    print(f"\n{row['tensor']}: copy {copy:.1f} µs")
    rows = {**row["noises"], **{f"without {idea}": times for idea, times in row["without"].items()}}
    for name, times in rows.items():
        forward, backward, both = times["forward_us"], times["backward_us"], times["both_us"]
        ratios = f"(× copy {both / copy:5.2f}, × Dropout {both / dropout:5.2f})"
        launches = sum(kernel["launches"] for kernel in row["kernels"].get(name, {}).values())
        count = f"  {launches:.0f} launches" if launches else ""
        print(f"  {name:28} {forward:8.1f} + {backward:8.1f} = {both:8.1f}  {ratios}{count}")
    for name, kernel in row["kernels"]["batch mean"].items():
        print(f"    {kernel['launches']:4.1f} × {kernel['mean_us']:7.1f}  {name}")


def _median(action: Callable[[], Any]) -> float:
    return 1e3 * float(do_bench(action, warmup=5, rep=20, return_mode="median"))


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", nargs="*", choices=IDEAS, help="ideas to take back, one after the other")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="what the tree was, where git cannot say")
    options = parser.parse_args()
    ideas = [] if options.without is None else options.without or list(IDEAS)
    rows = []
    for case in CASES:
        rows.append(run(case, ideas))
        show(rows[-1])
    path = write(options.out, "centred", options.commit, {"p": P, "rows": rows})
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
