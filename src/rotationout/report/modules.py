"""Which module of this package shows the records of a recipe.

Such a module has a ``table`` of records, the ``prose`` that explains it, a ``verdict`` on them in words, and the
``section`` of the page that has all of these. It may have ``notes``: further findings in Markdown.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..experiments.tasks import TASKS
from ..recipes import TABLES
from ..recipes.search import SEARCH, STRONG

__all__ = ["module_of"]

STUDIES = {"cifar100_resnet110_shift": "shift", "cifar100_ghost": "ghost", SEARCH: "search", STRONG: "search"}
"""The modules of recipes that are not part of the table of their task."""


def module_of(name: str) -> ModuleType:
    """The module for the records of the table ``name``, imported when it is needed.

    It imports matplotlib only to make a section: tables need none.

    >>> module_of("cifar100_ghost").__name__, module_of("an4").__name__
    ('rotationout.report.ghost', 'rotationout.report.table4')
    """
    module = STUDIES.get(name) or TASKS[type(TABLES[name]()[0])].report
    return import_module(f".{module}", __package__)
