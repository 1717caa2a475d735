"""Where measurements on a GPU are written, and what is written about the machine."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

__all__ = ["RESULTS", "write"]

RESULTS = Path(__file__).parent / "results"


def write(folder: Path, name: str, commit: str, record: dict[str, Any]) -> Path:
    """Write a record named by what was measured, GPU and torch; where it was written."""
    import triton

    commit = commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    gpu = torch.cuda.get_device_name()
    machine = {
        "gpu": gpu,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": commit,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_{gpu.replace(' ', '-').lower()}_torch-{torch.__version__.split('+')[0]}.json"
    path.write_text(json.dumps({**machine, **record}, indent=1) + "\n", encoding="utf-8")
    return path
