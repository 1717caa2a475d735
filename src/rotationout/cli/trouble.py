"""What can go wrong for a user, told in a line instead of a traceback; and the exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import typer

from ..strength import check_choice

__all__ = ["FAILED", "INTERRUPTED", "UNFINISHED", "chosen", "misuse", "say", "show_tracebacks", "told"]

FAILED, UNFINISHED, INTERRUPTED = 1, 3, 130
"""Beside 0, done, and 2, wrong usage, which is typer's."""

EXTRAS = {
    "jinja2": "demo",
    "matplotlib": "demo",
    "numpy": "demo",
    "pycocotools": "detection",
    "scipy": "demo",
    "sklearn": "demo",
    "soundfile": "speech",
    "tensorboard": "tensorboard",
    "torchmetrics": "speech",
    "torchvision": "vision",
}
"""Which extra of the package has a module that may be missing."""

_tracebacks = False


def show_tracebacks(shown: bool) -> None:
    """Let errors pass that `told` would tell in a line."""
    global _tracebacks
    _tracebacks = shown


def say(message: str) -> None:
    """A line on stderr."""
    print(f"rotationout: {message}", file=sys.stderr)


def misuse(message: str, option: str) -> NoReturn:
    """End with exit code 2: what was given for an option or argument is not right."""
    raise typer.BadParameter(message, param_hint=f"'{option}'")


def chosen(option: str, value: str, choices: Iterable[str]) -> str:
    """``value`` if it is one of the choices, else a `misuse` that names the nearest."""
    try:
        return check_choice(option, value, choices)
    except ValueError as error:
        misuse(str(error).removeprefix(f"{option} "), option)


def told(function: Callable[..., None], *, goes_on: bool = False) -> Callable[..., None]:
    """The command, with errors that are not bugs told in a line.

    Args:
        function: the command.
        goes_on: whether it goes on from where it was interrupted when it is run again.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            say("interrupted" + ("; run the same command again to go on" if goes_on else ""))
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the output has seen enough
            raise
        except (ValueError, OSError, FloatingPointError, ImportError) as error:
            if _tracebacks:
                raise
            say(_line(error))
            raise typer.Exit(FAILED) from None

    return run


def _line(error: Exception) -> str:
    """What to say of an error that is a user's; a module that is missing and no extra has is none."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename is not None:
        return f"{error.filename}: a folder must be there, not a file"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return str(error) or repr(error)
    extra = EXTRAS.get(error.name.partition(".")[0])
    if extra is None:
        raise error
    return f"{error.name.partition('.')[0]} is missing: pip install 'rotationout[{extra}]'"
