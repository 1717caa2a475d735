"""Helpers for studies with a command of their own (`small_batch`, `forms`): arguments, exit codes, one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["attempt", "positive_count", "study_parser"]


def attempt(out: Path, work: Callable[[], None]) -> int:
    """Run ``work``, which writes to the folder ``out``, and return the exit code.

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
    """Parse a command-line argument that must be a whole number of at least 1.

    >>> positive_count("3")
    3
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def study_parser(name: str, description: str, *, seeds: int, epochs: int) -> argparse.ArgumentParser:
    """The command line that all studies share.

    Args:
        name: the module of the study, in this package.
        description: what it does, in a sentence.
        seeds: the default number of networks per row.
        epochs: the default number of passes over the data.
    """
    parser = argparse.ArgumentParser(prog=f"python -m rotationout.experiments.{name}", description=description)
    parser.add_argument("--seeds", type=positive_count, default=seeds, help="networks per row (default: %(default)s)")
    parser.add_argument(
        "--epochs", type=positive_count, default=epochs, help="passes over the data (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the record goes (default: %(default)s/)")
    return parser
