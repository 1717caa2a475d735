"""Recipes: functions that return complete configs. A table is a recipe's rows."""

from . import cifar100
from .cifar100 import TABLES

__all__ = ["TABLES", "cifar100"]
