"""The command as a shell starts it, and what it writes to stderr."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rotationout as ro

pytest.importorskip("typer")

SOURCE = str(Path(ro.__file__).parents[1])
"""The folder of the package under test, wherever it is installed from."""


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """All of stderr in one line, without the frames of messages."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())


def typed(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a shell starts it."""
    around = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "rotationout.cli", *words], capture_output=True, text=True, env=around, timeout=120
    )
