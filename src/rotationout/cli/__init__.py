"""The command ``rotationout``: `main`. Each command has a file of its own, and `rotationout.cli.app` lists them.

Data go to stdout, everything else to stderr. Exit codes:

====  ==================================================================================
0     done
1     the work failed: a file cannot be read, a package is missing, a loss is not a number
2     wrong usage: an option, a name or a value that does not exist
3     time ran out before all runs were done; the same command continues them
130   interrupted
====  ==================================================================================

A user's mistake is reported in one line; ``rotationout --debug …`` shows the traceback. Any other error is a bug and
ends in a traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    >>> main(["--version"])
    0.1.0
    0
    """
    _prepare_streams()
    try:
        from .app import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"rotationout: the command line needs {error.name}: pip install 'rotationout[cli]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:  # before the command began, while torch was imported
        print("rotationout: interrupted", file=sys.stderr)
        return 130


def _prepare_streams() -> None:
    """Discard what is printed to a closed stream, and print ``?`` for characters that the encoding does not have.

    Bytes of a file's name that are no characters are printed as they are.
    """
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        unicode = sys.stdout.encoding.lower().startswith("utf")
        sys.stdout.reconfigure(errors="surrogateescape" if unicode else "replace")
