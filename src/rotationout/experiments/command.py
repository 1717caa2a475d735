"""What studies with a command of their own share: numbers read, a folder to write to, trouble told in a line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["attempt", "positive_count"]


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


def positive_count(text: str) -> int:
    """A whole number of at least 1 from the command line.

    >>> positive_count("3")
    3
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)
