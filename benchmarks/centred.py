"""Where the time of RotationOut goes on a GPU, most of all about a batch mean: ``python -m benchmarks.centred``.

For each tensor, medians in µs of forward, backward and both in CUDA graphs, compared with a device-to-device copy and
torch's own Dropouts. Then every kernel of one forward and backward, with its name, launches and mean time; here each
kernel starts only after the one before has ended, as the time spent waiting would count otherwise. ``--without`` turns
single optimisations off, by the constants of `rotationout.kernels.triton.sizes`, and shows the same totals for the
noises concerned; without a name it tries all of them. Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

import rotationout as ro
from rotationout.kernels.triton import apply, draws, layout, plane, sizes

from .gpu import P, features_of, label
from .records import RESULTS, write

PLANE = "gradient in the plane"
SHOWN = "batch mean", "running mean", "permutation", "permutation, batch mean", PLANE
"""The noises whose kernels are all shown."""
Case = tuple[torch.dtype, tuple[int, ...], bool]
Values = dict[str, Any]
LARGE: Case = (torch.bfloat16, (256, 256, 56, 56), False)
LARGE_LAST: Case = (torch.bfloat16, (256, 256, 56, 56), True)
STAGE_3: Case = (torch.bfloat16, (256, 256, 14, 14), True)
STAGE_3_FP32: Case = (torch.float32, (256, 256, 14, 14), True)
STAGE_4: Case = (torch.bfloat16, (256, 512, 14, 14), True)
STAGE_4_SMALL: Case = (torch.bfloat16, (256, 512, 7, 7), True)
WIDE: Case = (torch.bfloat16, (128, 640, 8, 8), True)
WIDE_2: Case = (torch.bfloat16, (128, 320, 16, 16), True)
WIDE_FIRST: Case = (torch.bfloat16, (128, 160, 32, 32), True)
SMALL_LAST: Case = (torch.bfloat16, (128, 64, 8, 8), True)
SMALL: Case = (torch.bfloat16, (128, 64, 8, 8), False)
ROWS: Case = (torch.bfloat16, (802816, 256), False)
LONG_ROWS: Case = (torch.bfloat16, (65536, 4096), False)
LONG_ROWS_FP32: Case = (torch.float32, (65536, 4096), False)
CASES = [
    LARGE,
    LARGE_LAST,
    STAGE_3,
    STAGE_3_FP32,
    STAGE_4,
    STAGE_4_SMALL,
    WIDE,
    WIDE_2,
    WIDE_FIRST,
    SMALL_LAST,
    SMALL,
    ROWS,
    LONG_ROWS,
    LONG_ROWS_FP32,
]
"""Maps use the default draw, a permutation for each example; rows use a structured pairing each, or one permutation for
all of them where the name says so. Stages are those of ResNet-50, wide maps those of WideResNet28-10."""


class Idea(NamedTuple):
    """The constants without the optimisation, the tensors that it concerns, and the `noises` to test it on."""

    values: Values
    cases: list[Case]
    noise: str = "batch mean"


IDEAS: dict[str, Idea] = {
    "registers": Idea(
        {"SUM_REGISTERS": 0, "LANES_SUM_REGISTERS": (0, 0), "LANES_REGISTERS": (0, 0, 0)},
        [LARGE, LARGE_LAST, ROWS, LONG_ROWS, LONG_ROWS_FP32],
    ),
    "sums in threads": Idea({"SUM_THREAD": 1, "SUM_REGISTERS": 80}, [LARGE, LARGE_LAST, STAGE_3, STAGE_4]),
    "fewer medium sums": Idea({"MEDIUM_ROWS": 0}, [STAGE_3, STAGE_4, STAGE_4_SMALL, WIDE, WIDE_2, WIDE_FIRST]),
    "features of sums": Idea({"SUM_LEAST_FEATURES": 1}, [WIDE_FIRST]),
    "sums that run at once": Idea(
        {"SUM_PARTS": (2112, 2112), "MEDIUM_ROWS": 0}, [LARGE_LAST, STAGE_3, STAGE_4, STAGE_4_SMALL, WIDE]
    ),
    "more sums than run at once": Idea({"SUM_PARTS": (528, 528)}, [LARGE]),
    "sum tiles of 16 KB": Idea(
        {"SUM_TILE": (16384, 8192), "SUM_REGISTERS": 80},
        [LARGE, LARGE_LAST, STAGE_3, STAGE_3_FP32, STAGE_4, LONG_ROWS_FP32],
    ),
    "sum positions": Idea({"SUM_POSITIONS": 512}, [LARGE]),
    "lanes parts": Idea({"LANES_SUM_PARTS": 1}, [ROWS, LONG_ROWS]),
    "lanes in words": Idea({"LANES_WORDS": False}, [ROWS, LONG_ROWS]),
    "lanes in 16 bytes": Idea({"LANES_PARTS": False}, [LONG_ROWS_FP32]),
    "lanes by instructions": Idea({"LANES_ASM": False}, [ROWS, LONG_ROWS]),
    "lanes blocks": Idea({"LANES_BLOCKS": 1}, [ROWS, LONG_ROWS, LONG_ROWS_FP32]),
    "lanes tiles": Idea({"LANES_TILE": (1024, 512, 2048)}, [LONG_ROWS, LONG_ROWS_FP32]),
    "lanes registers": Idea({"LANES_REGISTERS": (0, 0, 0)}, [ROWS]),
    "lanes that run at once": Idea({"LANES_REGISTERS": (80, 80, 0)}, [ROWS]),
    "lanes before their mean": Idea({"LANES_LATE": False, "LANES_REGISTERS": (80, 80, 0)}, [ROWS, LONG_ROWS]),
    "lanes programs": Idea({"LANES_SUM_PROGRAMS": (528, 924), "LANES_SUM_REGISTERS": (128, 72)}, [ROWS, LONG_ROWS]),
    "few parts": Idea({"SMALL_ROWS": 0}, [SMALL_LAST]),
    "large tiles of few": Idea({"FEW_TILE": 8192}, [SMALL_LAST]),
    "registers for all at once": Idea({"FEW_REGISTERS": (0, 0)}, [STAGE_3, SMALL, SMALL_LAST]),
    "rows of more than 256": Idea({"ROW_FEATURES": (256, 0)}, [STAGE_4, STAGE_4_SMALL, WIDE]),
    "rows of 32 bits in shared memory": Idea({"ROW_FEATURES": (8192, 0)}, [STAGE_3_FP32]),
    "long rows in shared memory": Idea({"ROW_FEATURES": (1024, 0)}, [LONG_ROWS, LONG_ROWS_FP32], "permutation"),
    "warps of long rows": Idea({"ROW_WARPS": (2, 2, 8)}, [LONG_ROWS, LONG_ROWS_FP32], "permutation"),
    "walks of long rows": Idea({"ROW_WALK": 1}, [LONG_ROWS, LONG_ROWS_FP32], "permutation, batch mean"),
    "walks twice as long": Idea({"ROW_WALK": 16}, [LONG_ROWS, LONG_ROWS_FP32], "permutation, batch mean"),
    "sums of 8 warps": Idea(
        {"SUM_TILE": (4096, 2048), "SUM_WARPS": 4, "SUM_PARTS": (2112, 1056), "MEDIUM_ROWS": 0},
        [LARGE_LAST, STAGE_3, STAGE_4, STAGE_4_SMALL, WIDE],
    ),
    "backwards": Idea({"BACKWARDS": False}, [*CASES[:7], ROWS, LONG_ROWS, LONG_ROWS_FP32]),
    "plane of half as much in a warp": Idea({"PLANE_LANES": 512}, [ROWS, LONG_ROWS, LONG_ROWS_FP32], PLANE),
    "plane feature by feature": Idea({"LANES_WORDS": False}, [ROWS, LONG_ROWS], PLANE),
    "plane in two launches": Idea({"PLANE_LANES_FEATURES": 0}, [ROWS, LONG_ROWS, LONG_ROWS_FP32], PLANE),
    "running mean in a launch": Idea({"FOLLOW": False}, [SMALL, SMALL_LAST, LONG_ROWS_FP32], "running mean"),
    "running mean backwards": Idea({"BACKWARDS": False}, [LARGE, LONG_ROWS, LONG_ROWS_FP32], "running mean"),
    "overlap": Idea({"OVERLAP": False}, CASES[:11]),
}
"""Some turn on what is off by default, to test that choice."""


def captured(noise: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    """Medians of a forward as in training, a backward, and both: GPU time only."""
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
    values = IDEAS[idea].values
    before = {name: getattr(sizes, name) for name in values}
    try:
        _choose(values)
        yield
    finally:
        _choose(before)


def _choose(values: Values) -> None:
    for name, value in values.items():
        setattr(sizes, name, value)
    layout._plans.clear()
    draws._programs.clear()
    apply._followers.clear()
    plane._program.cache_clear()


def noises(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    """What is compared."""
    layer: Callable[..., nn.Module] = ro.RotationOut2d if len(shape) == 4 else ro.RotationOut
    found = {
        "nn.Dropout": nn.Dropout(P),
        "no mean": layer(P, center=None),
        "batch mean": layer(P, center="batch"),
        "running mean": layer(P, center="running", num_features=shape[1]),
    }
    if len(shape) == 4:
        return {**found, "nn.Dropout2d": nn.Dropout2d(P)}
    one = {"pairing": "permutation", "pairing_per": "batch"}
    return {
        **found,
        "permutation": layer(P, center=None, **one),
        "permutation, batch mean": layer(P, center="batch", **one),
        PLANE: layer(P, gradient="plane"),
    }


def run(case: Case, ideas: list[str]) -> dict[str, Any]:
    """All about one tensor."""
    x = features_of(*case)
    target = torch.empty_like(x)
    row: dict[str, Any] = {"tensor": label(*case), "copy_us": _median(lambda: target.copy_(x))}
    compared = {name: noise.cuda() for name, noise in noises(case[1]).items()}
    row["noises"] = {name: captured(noise, x) for name, noise in compared.items()}
    with without("overlap"):
        row["kernels"] = {name: kernels(noise, x) for name, noise in compared.items()}
    row["without"] = {}
    for idea in ideas:
        if case in IDEAS[idea].cases:
            with without(idea):
                row["without"][idea] = captured(compared[IDEAS[idea].noise], x)
    torch.cuda.empty_cache()
    return row


def show(row: dict[str, Any]) -> None:
    """Print what was measured for a tensor."""
    copy, dropout = row["copy_us"], row["noises"]["nn.Dropout"]["both_us"]
    print(f"\n{row['tensor']}: copy {copy:.1f} µs")
    taken_back = {f"{IDEAS[idea].noise} without {idea}": times for idea, times in row["without"].items()}
    rows = {**row["noises"], **taken_back}
    for name, times in rows.items():
        forward, backward, both = times["forward_us"], times["backward_us"], times["both_us"]
        ratios = f"(× copy {both / copy:5.2f}, × Dropout {both / dropout:5.2f})"
        launches = sum(kernel["launches"] for kernel in row["kernels"].get(name, {}).values())
        count = f"  {launches:.0f} launches" if launches else ""
        print(f"  {name:44} {forward:8.1f} + {backward:8.1f} = {both:8.1f}  {ratios}{count}")
    for noise in SHOWN:
        for name, kernel in row["kernels"].get(noise, {}).items():
            print(f"    {kernel['launches']:4.1f} × {kernel['mean_us']:7.1f}  {noise}: {name}")


def _median(action: Callable[[], Any]) -> float:
    return 1e3 * float(do_bench(action, warmup=5, rep=20, return_mode="median"))


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", nargs="*", choices=IDEAS, help="optimisations to turn off, one after the other")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
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
