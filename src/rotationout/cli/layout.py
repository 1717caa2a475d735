"""How help looks: flags show no type, as they take no value, and other options show their type in capitals."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]

TYPES = {int: "INT", float: "FLOAT", str: "TEXT"}


class Command(TyperCommand):
    """A command whose options are listed that way."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All of them, ``--help`` among them."""
        return [_plain(parameter) for parameter in super().get_params(ctx)]


class Group(TyperGroup):
    """The same for the options before a command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All of them, ``--help`` among them."""
        return [_plain(parameter) for parameter in super().get_params(ctx)]


def _plain(parameter: Any) -> Any:
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    elif parameter.metavar is None:
        described = getattr(parameter, "type_descriptor", None)  # typer has had it since 0.29
        parameter.metavar = None if described is None else TYPES.get(described.annotation)
    return parameter
