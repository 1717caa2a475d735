"""Time and memory of linear models under noise, compared with scikit-learn's: ``python -m benchmarks.linear``.

Fits take turns, round after round; the result is the ratio to Ridge, or to RidgeCV with as many candidates. At the end,
10,000 features with both solvers. Writes a record to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import functools
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.linear_model import Ridge, RidgeCV

from rotationout.bench import time_side_by_side
from rotationout.linear import DropoutRegressor, DropoutRegressorCV, RotationOutRegressor, RotationOutRegressorCV

from .records import RESULTS, write

FITS = [(100_000, 500), (20_000, 2000), (1000, 5000)]
SELECTIONS = [(20_000, 200), (500, 2000)]
LARGE = [(2000, 10_000), (20_000, 10_000)]


def data(n: int, features: int) -> tuple[Any, Any]:
    """Features of unequal variance, away from the origin, and a target."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, features)) * np.geomspace(1, 0.1, features) + 1
    return x, x @ rng.standard_normal(features) + rng.standard_normal(n)


def side_by_side(shapes: list[tuple[int, int]], models: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Seconds of each fit; the others are compared with the first model."""
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        x, y = data(*shape)
        seconds = time_side_by_side({name: functools.partial(m.fit, x, y) for name, m in models.items()}, rounds)
        print(f"\n{shape}\n{'model':28} {'ms':>9} {'ratio':>7}")
        for name, value in seconds.items():
            ratio = value / next(iter(seconds.values()))
            print(f"{name:28} {1e3 * value:9.1f} {ratio:7.2f}")
            rows.append({"shape": str(shape), "model": name, "ms": 1e3 * value, "ratio": ratio})
    return rows


def once(shapes: list[tuple[int, int]], models: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of one fit, and the most memory it held beyond its data."""
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        x, y = data(*shape)
        print(f"\n{shape}, {x.nbytes / 1e6:.0f} MB\n{'model':34} {'s':>7} {'MB':>7}")
        for name, model in models.items():
            tracemalloc.start()
            start = time.perf_counter()
            model.fit(x, y)
            seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(f"{name:34} {seconds:7.2f} {peak / 1e6:7.0f}", flush=True)
            rows.append({"shape": str(shape), "model": name, "s": seconds, "peak_mb": peak / 1e6})
    return rows


def main() -> None:
    """Print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--p", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the record")
    parser.add_argument("--commit", default="", help="the commit that is measured; that of this folder if not given")
    options = parser.parse_args()
    p, candidates = options.p, 17
    fits = side_by_side(
        FITS,
        {"Ridge": Ridge(), "RotationOutRegressor": RotationOutRegressor(p), "DropoutRegressor": DropoutRegressor(p)},
        options.rounds,
    )
    ps = np.linspace(0.05, 0.85, candidates)
    selections = side_by_side(
        SELECTIONS,
        {
            "RidgeCV": RidgeCV(np.geomspace(1e-3, 1e3, candidates)),
            "RotationOutRegressorCV": RotationOutRegressorCV(ps),
            "DropoutRegressorCV": DropoutRegressorCV(ps),
        },
        options.rounds,
    )
    large = once(
        LARGE,
        {
            "RotationOutRegressor": RotationOutRegressor(p),
            "DropoutRegressor": DropoutRegressor(p),
            "RotationOutRegressor, cholesky": RotationOutRegressor(p, solver="cholesky"),
            "Ridge": Ridge(),
        },
    )
    record = {"scikit_learn": sklearn.__version__, "p": p, "rounds": options.rounds, "candidates": candidates}
    record |= {"fits": fits, "selections": selections, "large": large}
    print(f"\n{write(options.out, 'linear', options.commit, record, device='cpu')}")


if __name__ == "__main__":
    main()
