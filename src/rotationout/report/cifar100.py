"""Which table the records of a CIFAR-100 recipe belong to: Table 1, or the table of a separate study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..recipes import name_of
from ..recipes.search import SEARCH, STRONG
from . import ghost, search, shift, table1
from .page import Section, Table

__all__ = ["SECTIONS", "prose", "table", "verdict"]

SECTIONS: dict[str, Callable[[str, Sequence[dict[str, Any]]], Section]] = {
    shift.RECIPE: shift.section,
    ghost.RECIPE: ghost.section,
    SEARCH: search.section,
    STRONG: search.section,
}
"""What makes the sections of recipes that are not part of Table 1, from a title and records."""
_STUDIES: dict[str | None, ModuleType] = {shift.RECIPE: shift, ghost.RECIPE: ghost, SEARCH: search, STRONG: search}


def table(records: Sequence[dict[str, Any]]) -> Table:
    """What the records of one recipe say, as cells."""
    study = _study(records)
    found: Table = table1.table1(records) if study is None else study.table(records)
    return found


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    found: list[str] = (_study(records) or table1).prose(records)
    return found


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """What came out, in words; "" where nothing can be said."""
    found: str = (_study(records) or table1).verdict(records)
    return found


def _study(records: Sequence[dict[str, Any]]) -> ModuleType | None:
    """The module of a study; None for Table 1."""
    return _STUDIES.get(name_of(records[0]["recipe"])) if records else None
