"""What the commands of small studies share: a folder to write to, and trouble told in a line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["attempt"]


def attempt(out: Path, work: Callable[[], None]) -> int:
    """Do the work of a study that writes to ``out``; the exit code.

    0 if all went well, 1 if a package is missing, 2 if the folder cannot be written to, 130 if it was interrupted.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"cannot write to {out}: {error.strerror}; choose another folder with --out", file=sys.stderr)
        return 2
    try:
        work()
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing; install what this needs: pip install 'rotationout[demo]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: nothing written.", file=sys.stderr)
        return 130
    return 0
