"""Fields of configs as options of a command: one for each field of each task, described where the field is."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from ..experiments.config import PRECISIONS, Config
from ..experiments.narrow.layers import KERNELS
from ..experiments.networks import NETWORKS
from ..experiments.norms import LABELS
from ..experiments.studies import STUDIES
from ..experiments.tasks import TASKS
from ..registry import KINDS, _resolve
from ..registry import noise as make_noise
from .trouble import misuse

__all__ = ["changed", "changes", "check_noises", "data_of_tasks", "with_fields"]

FIXED = ("recipe", "row", "seed")
"""Fields that have options of their own."""

SHARED = "Fields of several kinds of tables"

CHOICES = {
    "precision": PRECISIONS,
    "network": tuple(NETWORKS),
    "norm": tuple(LABELS),
    "kernels": KERNELS,
    "studies": tuple(STUDIES),
}
"""The values of fields that have few enough to be listed."""

EXAMPLES = {
    "int": "100",
    "float": "0.1",
    "bool": "true",
    "dict": "'{\"dims\": 2}'",
    "tuple[int": "2,3",
    "tuple[float": "0.5,0.1",
    "tuple[str": "one,two",
}
"""Examples of values, by how the type of the field begins."""


def data_of_tasks() -> str:
    """What ``--data`` must be, for each task."""
    return "\n\n".join(f"Data of {task.title}: {task.data}." for task in TASKS.values())


def with_fields(function: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of every config, passed to it as ``**fields``: text, or None."""

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
    """Options for the fields that all configs have, then those that some tasks share, then those of each task."""
    owners: dict[str, list[type[Config]]] = {field.name: [Config] for field in dataclasses.fields(Config)}
    for config in TASKS:
        for field in dataclasses.fields(config):
            if owners.get(field.name) != [Config]:
                owners.setdefault(field.name, []).append(config)
    panels = ["Fields of all tables", SHARED, *(_panel(config) for config in TASKS)]
    found = [_parameter(name, configs) for name, configs in owners.items() if name not in FIXED]
    return sorted(found, key=lambda parameter: panels.index(parameter.default.rich_help_panel))


def _parameter(name: str, configs: Sequence[type[Config]]) -> inspect.Parameter:
    """The option of a field that these configs have."""
    field = next(field for field in dataclasses.fields(configs[0]) if field.name == name)
    option = typer.Option(
        None,
        _option(name),
        metavar=_metavar(_kind(field)),
        help=_help(name, configs),
        rich_help_panel=_panel(configs[0]) if len(configs) == 1 else SHARED,
        autocompletion=_completion(name, _kind(field)),
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=str | None)


def _panel(config: type[Config]) -> str:
    return "Fields of all tables" if config is Config else f"Fields of {TASKS[config].title}"


def _help(name: str, configs: Sequence[type[Config]]) -> str:
    """What a field means; if several tasks have it, which ones, and what it means for each where that differs.

    >>> _help("momentum", list(TASKS)[:2])
    'CIFAR-100, image folders: momentum of SGD.'
    """
    texts: dict[str, list[str]] = {}
    for config in configs:
        title = "" if config is Config else TASKS[config].title
        texts.setdefault(_descriptions(config).get(name, ""), []).append(title)
    lines = [f"{', '.join(titles)}: {text}" if len(configs) > 1 else text for text, titles in texts.items()]
    return " ".join([*lines, f"One of {', '.join(CHOICES[name])}." if name in CHOICES else ""]).strip()


def _descriptions(config: type[Config]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say about each field, without markup."""
    entries: list[tuple[str, str]] = []
    for ancestor in reversed(config.__mro__):
        listed = inspect.cleandoc(ancestor.__doc__ or "").partition("Args:\n")[2]
        entries += re.findall(r"^ {4}(\w+): (.*?)(?=^ {0,4}\S|\Z|\n\n)", listed, flags=re.S | re.M)
    return {name: re.sub(r"[`\[\]]|rotationout\.experiments\.", "", " ".join(text.split())) for name, text in entries}


def _completion(name: str, kind: str) -> Callable[[str], list[str]] | None:
    """How the value of a field is completed, if it is one of a few."""
    choices = tuple(KINDS) if name == "noise" else ("true", "false") if kind == "bool" else CHOICES.get(name, ())
    return (lambda incomplete: [word for word in choices if word.startswith(incomplete)]) if choices else None


def changes(fields: Mapping[str, str | None], recipe: str, config: type[Config]) -> dict[str, Any]:
    """The fields that were given, as values of their types."""
    types = {field.name: _kind(field) for field in dataclasses.fields(config)}
    given = {name: text for name, text in fields.items() if text is not None}
    for name in given:
        if name not in types:
            own = ", ".join(_option(known) for known in types if known not in FIXED)
            misuse(f"{recipe} has no such field; its fields are {own}", _option(name))
    if "noise" in given:
        try:
            _resolve(given["noise"])  # before data are read, not after it
        except ValueError as error:
            misuse(str(error), _option("noise"))
    return {name: _parsed(name, kind, given[name]) for name, kind in types.items() if name in given}


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with these values. Another experiment has another name: its records must not pass for the recipe's."""
    if not values:
        return config
    compared = {field.name for field in dataclasses.fields(config) if field.compare}
    other = (f"{name}={_plain(value)}" for name, value in values.items() if name in compared)
    name = "_".join([config.recipe, *other])
    try:
        return config.replace(**values, recipe=name)
    except (ValueError, TypeError) as error:
        named = [name for name in values if re.search(rf"\b{name}\b", str(error))]
        misuse(str(error), "', '".join(map(_option, named or values)))


def check_noises(configs: Sequence[Config], values: Mapping[str, Any]) -> None:
    """Before data are read: a `misuse` if p has no effect as no row has noise, or if a noise lacks a given option.

    A sweep may hold rows without noise: they are what its other rows are compared with.
    """
    without = [name for name in ("p", "noise_options") if values.get(name)]
    if without and all(_resolve(config.noise)[0] == "none" for config in configs):
        hint = "choose another --noise" if "noise" in values else "choose another with --row, or give a --noise"
        misuse(f"has no effect: the row {configs[0].row!r} has no noise; {hint}", "', '".join(map(_option, without)))
    for config in configs if {"noise", "noise_options"} & values.keys() else ():
        _check_noise(config, values)


def _check_noise(config: Config, values: Mapping[str, Any]) -> None:
    # How many channels there are is known later; any number will do to check the other options.
    options = {name: 2 if value == "channels" else value for name, value in config.noise_options.items()}
    try:
        make_noise(config.noise, config.p, **options)
    except (ValueError, TypeError) as error:
        given = [name for name in ("noise", "noise_options") if name in values]
        hint = ""
        if "noise_options" not in given and config.noise_options:
            hint = f"; the row {config.row!r} has options of another noise: give --noise-options, '{{}}' for none"
        misuse(f"{error}{hint}", "', '".join(map(_option, given)))


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
    if kind.startswith("tuple["):
        member = kind.removeprefix("tuple[").partition(",")[0].upper()
        return f"{member},{member},…"
    return "JSON" if kind.startswith("dict") else kind.upper()


def _parsed(name: str, kind: str, text: str) -> Any:
    """The text of an option as a value of the type that its field says."""
    try:
        return _value(kind, text)
    except (ValueError, KeyError):
        example = next(shown for begins, shown in EXAMPLES.items() if kind.startswith(begins))
        misuse(f"must be {_metavar(kind)}, for instance {example}, got {text!r}", _option(name))


def _value(kind: str, text: str) -> Any:
    """A value of a type that is written so.

    >>> _value("tuple[int, ...]", "2,3"), _value("float", "0.1"), _value("bool", "true")
    ((2, 3), 0.1, True)
    """
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
