"""All commands as one typer application: `COMMANDS` lists them.

To add one, write a function in a file of its own whose docstring is its help, the last paragraph an example, and put it
into `COMMANDS`. The top of that file may only import what is quick to import, not torch: ``rotationout --help`` and
completion import all of these files. Options that several commands have are in `options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from .. import __version__
from . import bench, demo, diagnose, features, figures, images, report, runs, score, study, tables, trouble
from .layout import Command, Group
from .options import words_to_complete

__all__ = ["COMMANDS", "build", "help_of", "run"]

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "study": study.study,
    "diagnose": diagnose.diagnose,
    "bench": bench.bench,
    "rows": tables.rows,
    "train": runs.train,
    "sweep": runs.sweep,
    "table": tables.table,
    "features": features.features,
    "images": images.images,
    "score": score.score,
    "figures": figures.figures,
    "report": report.report,
}
"""Every command by its name, in the order of the help."""

WITH_FIELDS = ("train", "sweep")
"""Commands with an option for every field of a config: they train, and continue from their checkpoints."""


def run(words: Sequence[str]) -> int:
    """Run what was typed after ``rotationout``; the exit code."""
    command = typer.main.get_command(build([*words, *words_to_complete()]))
    try:
        command.main(args=list(words), prog_name="rotationout")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def build(words: Sequence[str] = WITH_FIELDS) -> typer.Typer:
    """The application. Fields of configs are looked up only for the commands that are among ``words``."""
    app = typer.Typer(
        cls=Group,
        help="RotationOut, noise that rotates features: run its experiments, or see what noise does to your own model.",
        epilog="rotationout COMMAND --help shows an example of the command.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for name, function in COMMANDS.items():
        text, chosen = help_of(function), trouble.told(function, goes_on=name in WITH_FIELDS)
        if name in WITH_FIELDS and name in words:
            from .fields import data_of_tasks, with_fields  # these need torch

            text, chosen = f"{text}\n\n{data_of_tasks()}", with_fields(chosen)
        app.command(name, cls=Command, help=escape(text), no_args_is_help=_needs_arguments(function))(chosen)
    return app


def help_of(function: Callable[..., Any]) -> str:
    r"""The docstring, each paragraph in a line so that it fills the terminal; lines of examples are kept.

    >>> def greet():
    ...     '''Say hello.
    ...
    ...     To one
    ...     person.
    ...
    ...     Example:
    ...         greet Ann
    ...     '''
    >>> help_of(greet)
    'Say hello.\n\nTo one person.\n\nExample:\n    greet Ann'
    """
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(text if text.startswith("Example:") else " ".join(text.split()) for text in paragraphs)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    trouble.show_tracebacks(debug)


def _needs_arguments(function: Callable[..., Any]) -> bool:
    """Whether a command needs arguments: called without any, it then prints its help."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)
