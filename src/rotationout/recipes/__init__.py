"""Recipes: functions that return complete configs. A table is a recipe's rows."""

from collections.abc import Callable, Sequence

from ..experiments.config import Config
from . import cifar100, detection, images, search, speech

__all__ = ["TABLES", "cifar100", "detection", "images", "name_of", "search", "speech"]

TABLES: dict[str, Callable[[], Sequence[Config]]] = {
    **cifar100.TABLES,
    **search.TABLES,
    **images.TABLES,
    **detection.TABLES,
    **speech.TABLES,
}
"""Every table by its name: the configs of its rows, all of one class."""


def name_of(recipe: str) -> str | None:
    """The table that a recipe of records is of, or None: changed fields follow the name of the table.

    >>> name_of("an4"), name_of("an4_strength_p=0.1"), name_of("an44")
    ('an4', 'an4_strength', None)
    """
    names = [name for name in TABLES if recipe == name or recipe.startswith(f"{name}_")]
    return max(names, key=len, default=None)
