"""Recipes: functions that return complete configs. A table is a recipe's rows."""

from collections.abc import Callable, Sequence

from ..experiments.config import Config
from . import cifar100, detection, images, speech

__all__ = ["TABLES", "cifar100", "detection", "images", "speech"]

TABLES: dict[str, Callable[[], Sequence[Config]]] = {
    **cifar100.TABLES,
    **images.TABLES,
    **detection.TABLES,
    **speech.TABLES,
}
"""Every table by its name: the configs of its rows, all of one class."""
