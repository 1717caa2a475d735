"""Which table the records of a CIFAR-100 recipe make: Table 1, or that of a study of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..recipes.search import SEARCH, STRONG
from . import ghost, search, shift
from .page import Section, Table
from .table1 import table1

__all__ = ["SECTIONS", "table"]

SECTIONS: dict[str, Callable[[str, Sequence[dict[str, Any]]], Section]] = {
    shift.RECIPE: shift.section,
    ghost.RECIPE: ghost.section,
    SEARCH: search.section,
    STRONG: search.section,
}
"""The parts of the report that recipes make which are no rows of Table 1: a title and records."""
_TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], Table]] = {
    shift.RECIPE: shift.table,
    ghost.RECIPE: ghost.table,
    SEARCH: search.table,
    STRONG: search.table,
}


def table(records: Sequence[dict[str, Any]]) -> Table:
    """What the records of one recipe say, as cells; if fields were changed, that follows the name of the recipe."""
    recipe = records[0]["recipe"] if records else ""
    for name, make in _TABLES.items():
        if recipe == name or recipe.startswith(f"{name}_"):
            return make(records)
    return table1(records)
