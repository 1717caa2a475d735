"""Where measurements are written, and what is written about the machine."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from rotationout.experiments import results

__all__ = ["RESULTS", "write"]

RESULTS = Path(__file__).parent / "results"


def write(folder: Path, name: str, commit: str, record: dict[str, Any], device: str = "cuda") -> Path:
    """Write a record, named by what was measured, the device and torch; returns its path.

    Without ``commit`` it is git's, with ``-changed`` if files of the package differ from it.
    """
    commit = commit or results.machine(torch.device("cpu"))["commit"]
    machine: dict[str, Any] = {"torch": str(torch.__version__), "python": platform.python_version(), "commit": commit}
    if device == "cuda":
        import triton

        cudnn = torch.backends.cudnn.version()
        machine |= {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__, "cudnn": cudnn}
    else:
        machine |= {"machine": platform.machine(), "threads": torch.get_num_threads()}
    where = machine["gpu"].replace(" ", "-").lower() if device == "cuda" else device
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_{where}_torch-{torch.__version__.split('+')[0]}.json"
    path.write_text(json.dumps({**machine, **record}, indent=1) + "\n", encoding="utf-8")
    return path
