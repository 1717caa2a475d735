"""Errors that are a user's, reported in one line instead of a traceback; and the exit codes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import typer

from ..strength import check_choice

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "UNFINISHED",
    "check_file",
    "check_place",
    "chosen",
    "misuse",
    "say",
    "show_tracebacks",
    "told",
]

FAILED, UNFINISHED, INTERRUPTED = 1, 3, 130
"""Besides 0 for success and 2 for wrong usage, which typer sets."""

EXTRAS = {
    "jinja2": "demo",
    "joblib": "demo",
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
"""Which extra of the package installs a module that may be missing."""

_tracebacks = False


def show_tracebacks(shown: bool) -> None:
    """Let errors through that `told` would report in one line."""
    global _tracebacks
    _tracebacks = shown


def say(message: str) -> None:
    """A line on stderr, written at once: several processes may have something to say."""
    print(f"rotationout: {message}\n", file=sys.stderr, end="", flush=True)


def misuse(message: str, option: str) -> NoReturn:
    """End with exit code 2: what was given for an option or argument is not right."""
    raise typer.BadParameter(message, param_hint=f"'{option}'")


def chosen(option: str, value: str, choices: Iterable[str]) -> str:
    """``value`` if it is one of the choices, else a `misuse` that names the nearest."""
    try:
        return check_choice(option, value, choices)
    except ValueError as error:
        misuse(str(error).removeprefix(f"{option} "), option)


def check_place(file: Path, option: str) -> None:
    """A `misuse` if the file cannot be written; call it before the work, not after it."""
    if not file.parent.is_dir():
        misuse(f"there is no folder {str(file.parent)!r} to write to", option)
    check_file(file, option)


def check_file(file: Path, option: str) -> None:
    """A `misuse` if the path of a file is that of a folder."""
    if file.is_dir():
        misuse(f"must be a file, but {str(file)!r} is a folder", option)


def told(function: Callable[..., None], *, goes_on: bool = False) -> Callable[..., None]:
    """The command, with errors that are not bugs reported in one line.

    Args:
        function: the command.
        goes_on: whether the command continues where it was interrupted when it is run again.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            say("interrupted" + ("; run the same command again to continue" if goes_on else ""))
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the output has seen enough
            raise
        except (ValueError, OSError, FloatingPointError, ImportError, MemoryError, RuntimeError) as error:
            known = not isinstance(error, RuntimeError) or _out_of_memory(error) or _left_alone(error)
            if _tracebacks or not known:
                raise
            say(_line(error))
            raise typer.Exit(FAILED) from None

    return run


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory: on a GPU the error has its own type, on a CPU only its message says so."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _left_alone(error: RuntimeError) -> bool:
    """Whether another process of torchrun has ended, which says why; gloo then loses its connection."""
    lost = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return "TORCHELASTIC_RUN_ID" in os.environ and "gloo" in str(error) and any(text in str(error) for text in lost)


def _line(error: Exception) -> str:
    """What to say about a user's error; raises the error again if it is a missing module that no extra installs."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename is not None:
        return f"{error.filename}: this must be a folder, not a file"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename2 or error.filename}: {error.strerror}"  # the latter is what was to be moved there
    if isinstance(error, RuntimeError) and _left_alone(error):
        return "another process has ended; what it says is the reason"
    if isinstance(error, MemoryError | RuntimeError):
        return f"there is not enough memory: {str(error).partition('. Error code')[0] or repr(error)}"
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return str(error) or repr(error)
    extra = EXTRAS.get(error.name.partition(".")[0])
    if extra is None:
        raise error
    return f"{error.name.partition('.')[0]} is missing: pip install 'rotationout[{extra}]'"
