"""Tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable

from .page import Table

__all__ = ["print_table"]


def print_table(table: Table, title: str, console: Console) -> None:
    """Print a table: names to the left, numbers to the right.

    >>> print_table(Table(["noise", "%"], [["none", "70.1"]]), "Accuracy", Console(width=20, color_system=None))
    Accuracy
    ┏━━━━━━━┳━━━━━━┓
    ┃ noise ┃    % ┃
    ┡━━━━━━━╇━━━━━━┩
    │ none  │ 70.1 │
    └───────┴──────┘
    """
    printed = RichTable(title=title, title_justify="left")
    for place, name in enumerate(table.header):
        printed.add_column(name, justify="right" if place else "left")
    for row in table.rows:
        printed.add_row(*row)
    console.print(printed)
