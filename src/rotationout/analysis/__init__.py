"""The paper's theory as tools."""

from . import batchnorm

__all__ = ["batchnorm"]
