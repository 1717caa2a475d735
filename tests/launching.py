"""What tests start under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import rotationout as ro

ROOTS = (Path(ro.__file__).parents[1], Path(__file__).parents[1])
"""Of the package under test, wherever it is installed from, and of the tests."""


def torchrun(*words: str, size: int = 2) -> str:
    """Run a script with its arguments in so many processes; what was written to stderr.

    With ``--standalone`` torchrun finds a port for itself: one that is looked for beforehand may be another's by then.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", *words]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=around)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr
