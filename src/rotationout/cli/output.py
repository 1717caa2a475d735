"""Data on stdout: tables for people, Markdown for files and pipes, JSON for programs."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..report.page import Table

__all__ = ["as_dicts", "print_json", "show", "show_text"]

WIDEST = 100
"""Characters of a line of text: longer ones are hard to read."""


def print_json(data: Any) -> None:
    """Plain data as JSON; what is not a number is null, for which JSON has no other word.

    >>> print_json({"p": [0.5, float("nan")]})
    {
     "p": [
      0.5,
      null
     ]
    }
    """
    every = sys.stdout.encoding is None or sys.stdout.encoding.lower().startswith("utf")  # else characters are escaped
    text = json.dumps(_finite(data), indent=1, ensure_ascii=not every, allow_nan=False)
    # Bytes of a file's name that are no characters are no JSON either.
    print(re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def show(table: Table, title: str = "") -> None:
    """A table: drawn on a terminal, elsewhere Markdown."""
    if not sys.stdout.isatty():
        print(f"{title}\n\n{table.markdown()}" if title else table.markdown())
        return
    from rich.console import Console

    from ..report.terminal import print_table

    print_table(table, title, Console(highlight=False))


def show_text(paragraph: str) -> None:
    """A paragraph after an empty line: broken into lines on a terminal, elsewhere one."""
    lines = fill(paragraph, min(shutil.get_terminal_size().columns, WIDEST)) if sys.stdout.isatty() else paragraph
    print(f"\n{lines}")


def as_dicts(table: Table) -> list[dict[str, str]]:
    """A row for each, cells by the name of their column; columns of one name are numbered.

    >>> from rotationout.report.page import Table
    >>> as_dicts(Table(["row", "%", "%"], [["none", "70", "71"]]))
    [{'row': 'none', '%': '70', '% (2)': '71'}]
    """
    names: list[str] = []
    for name in table.header:
        again = sum(known == name or known.startswith(f"{name} (") for known in names)
        names.append(f"{name} ({again + 1})" if again else name)
    return [dict(zip(names, row, strict=True)) for row in table.rows]
