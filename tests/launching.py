"""Programs under torchrun, and processes in a group, that tests start."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import rotationout as ro

ROOTS = (Path(ro.__file__).parents[1], Path(__file__).parents[1])
"""Of the package under test, wherever it is installed from, and of the tests."""


def torchrun(*words: str, size: int = 2, code: int = 0) -> str:
    """Run a script with its arguments in so many processes; what was written to stderr.

    The exit code must be ``code``.

    With ``--standalone`` torchrun finds a port for itself: one that is looked for beforehand may be another's by then.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", *words]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=around)
    assert done.returncode == code, done.stderr[-4000:]
    return done.stderr


def in_group(work: Callable[[], None], **options: Any) -> None:
    """Do it in a group of gloo's, which ``options`` describe.

    The group ends when nothing of DDP is left. If DDP is the last to hold it, it ends with Python's lock held, and may
    wait for ever for a thread of gloo's that wants the lock. And it ends for all at once: gloo has aborted where one
    process left while another was still busy with it.
    """
    dist.init_process_group("gloo", **options)
    try:
        work()
        gc.collect()
        dist.barrier()
    finally:
        dist.destroy_process_group()
