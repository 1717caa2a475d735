"""The command ``rotationout``: `main`. Each command has a file of its own, `rotationout.cli.app` lists them.

Data go to stdout and all else to stderr. Exit codes:

====  ==================================================================================
0     done
1     the work failed: a file cannot be read, a package is missing, a loss is not a number
2     wrong usage: an option, a name or a value that does not exist
3     time ran out before all runs were done; the same command goes on
130   interrupted
====  ==================================================================================

A user's mistake is told in a line; ``rotationout --debug …`` shows where it was found. Anything else that goes wrong is
a bug and ends in a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    >>> main(["--version"])
    0.1.0
    0
    """
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"rotationout: the command line needs {error.name}: pip install 'rotationout[cli]'",
            file=sys.stderr,
        )
        return 1
    return run(sys.argv[1:] if arguments is None else list(arguments))
