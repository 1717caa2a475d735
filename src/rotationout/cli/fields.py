"""Fields of configs as options of a command: one for each field of each task, described where the field is."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import typer

from ..experiments.config import PRECISIONS, Config
from ..experiments.tasks import TASKS
from ..registry import KINDS
from .trouble import misuse

__all__ = ["changed", "changes", "data_of_tasks", "with_fields"]

FIXED = ("recipe", "row", "seed")
"""Fields that have options of their own."""

EXAMPLES = {
    "int": "100",
    "float": "0.1",
    "bool": "true",
    "dict": "'{\"dims\": 2}'",
    "tuple[int": "2,3",
    "tuple[float": "0.5,0.1",
    "tuple[str": "one,two",
}
"""Of the values of a field, by how its type begins."""


def data_of_tasks() -> str:
    """What ``--data`` must be, for each task."""
    return "\n\n".join(f"Data of {task.title}: {task.data}." for task in TASKS.values())


def with_fields(function: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of every config, which it gets as ``**fields``, texts or None."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        function(*args, **options)

    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [p for p in own if p.kind is not p.VAR_KEYWORD] + _parameters()
    # typer reads the one and resolves the other.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameters() -> list[inspect.Parameter]:
    """Those of fields that all configs have, then those of each task."""
    groups: list[tuple[str, type[Config]]] = [("Fields of all configs", Config)]
    groups += [(f"Fields of {task.title}", config) for config, task in TASKS.items()]
    known, found = set(FIXED), []
    for title, config in groups:
        described = _descriptions(config)
        for field in dataclasses.fields(config):
            if field.name in known:
                continue
            known.add(field.name)
            kind = _kind(field)
            option = typer.Option(
                None,
                _option(field.name),
                metavar=_metavar(kind),
                help=described.get(field.name, ""),
                rich_help_panel=title,
                autocompletion=_completion(field.name, kind),
            )
            found.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=str | None)
            )
    return found


def _descriptions(config: type[Config]) -> dict[str, str]:
    """What the docstrings of a class and of those it is made from say of each field, without the marks of markup."""
    entries: list[tuple[str, str]] = []
    for ancestor in reversed(config.__mro__):
        listed = inspect.cleandoc(ancestor.__doc__ or "").partition("Args:\n")[2]
        entries += re.findall(r"^ {4}(\w+): (.*?)(?=^ {0,4}\S|\Z|\n\n)", listed, flags=re.S | re.M)
    return {name: re.sub(r"[`\[\]]|rotationout\.experiments\.", "", " ".join(text.split())) for name, text in entries}


def _completion(name: str, kind: str) -> Callable[[str], list[str]] | None:
    """How the value of a field is completed, if it is one of a few."""
    choices = {"noise": tuple(KINDS), "precision": PRECISIONS}.get(name, ("true", "false") if kind == "bool" else ())
    return (lambda incomplete: [word for word in choices if word.startswith(incomplete)]) if choices else None


def changes(fields: Mapping[str, str | None], recipe: str, config: type[Config]) -> dict[str, Any]:
    """The fields that were given, as values of their types."""
    types = {field.name: _kind(field) for field in dataclasses.fields(config)}
    given = {name: text for name, text in fields.items() if text is not None}
    for name in given:
        if name not in types:
            misuse(f"this is no field of {recipe}; its fields are {', '.join(types)}", _option(name))
    return {name: _parsed(name, kind, given[name]) for name, kind in types.items() if name in given}


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with these values. Another experiment has another name: its records must not pass for the recipe's."""
    if not values:
        return config
    name = "_".join([config.recipe, *(f"{name}={_plain(value)}" for name, value in values.items())])
    try:
        return config.replace(**values, recipe=name)
    except (ValueError, TypeError) as error:
        misuse(str(error), "', '".join(map(_option, values)))


def _plain(value: Any) -> str:
    """A value as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", json.dumps(value)).strip("-")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind(field: dataclasses.Field[Any]) -> str:
    """The type of a field as it is written."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def _metavar(kind: str) -> str:
    """The type in the list of options.

    >>> _metavar("float"), _metavar("tuple[int, ...]"), _metavar("dict[str, Any]")
    ('FLOAT', 'INT,INT,…', 'JSON')
    """
    kind = kind.removesuffix(" | None")
    if kind.startswith("tuple["):
        member = kind.removeprefix("tuple[").partition(",")[0].upper()
        return f"{member},{member},…"
    return "JSON" if kind.startswith("dict") else kind.upper()


def _parsed(name: str, kind: str, text: str) -> Any:
    """The text of an option as a value of the type that its field says."""
    try:
        return _value(kind, text)
    except (ValueError, KeyError):
        kind = kind.removesuffix(" | None")
        example = next(shown for begins, shown in EXAMPLES.items() if kind.startswith(begins))
        misuse(f"must be {kind}, for instance {example}, got {text!r}", _option(name))


def _value(kind: str, text: str) -> Any:
    """A value of a type that is written so.

    >>> _value("tuple[int, ...]", "2,3"), _value("float | None", "none"), _value("bool", "true")
    ((2, 3), None, True)
    """
    if kind.endswith(" | None"):
        return None if text.lower() == "none" else _value(kind.removesuffix(" | None"), text)
    plain: dict[str, Callable[[str], Any]] = {
        "int": int,
        "float": float,
        "str": str,
        "bool": lambda word: {"true": True, "false": False}[word.lower()],
    }
    if kind in plain:
        return plain[kind](text)
    if kind.startswith("tuple["):
        member = plain[kind.removeprefix("tuple[").partition(",")[0]]
        return tuple(member(part) for part in text.replace(",", " ").split())
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
