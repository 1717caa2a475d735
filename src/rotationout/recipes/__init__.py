"""Recipes of the paper's tables: functions that return complete configs, one for each row of a table.

`cifar100` has Table 1, Figure 2, appendix B and noise on vectors, `search` a search under stronger weight decay,
`images` Table 2, `detection` Table 3, `speech` Table 4.
"""

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
"""Every table by its name: a function that returns the configs of its rows, all of one class."""


def name_of(recipe: str) -> str | None:
    """The name of the table of a recipe in records, or None. A recipe may be that name followed by changed fields.

    >>> name_of("an4"), name_of("an4_strength_p=0.1"), name_of("an44")
    ('an4', 'an4_strength', None)
    """
    names = [name for name in TABLES if recipe == name or recipe.startswith(f"{name}_")]
    return max(names, key=len, default=None)
