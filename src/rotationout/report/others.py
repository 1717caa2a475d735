"""Runs with changed fields: records under a name of their own, that of a table and the changes, in a part each."""

from __future__ import annotations

import re
from pathlib import Path

from ..experiments.records import readable
from ..experiments.results import read_records
from ..experiments.tasks import TASKS
from ..recipes import TABLES, name_of
from .page import Section

__all__ = ["other_runs"]


def other_runs(results: Path) -> list[Section]:
    """A part for every folder of records that is not that of a table, but of one with changed fields."""
    folders = sorted(folder for folder in results.iterdir() if folder.is_dir()) if results.is_dir() else []
    return [_section(folder, name) for folder in folders if (name := _changed(folder))]


def _changed(folder: Path) -> str | None:
    """The table whose fields were changed; None if there are no such records in a folder."""
    name = name_of(folder.name)
    return name if folder.name != name and any(folder.glob("*.json")) else None


def _section(folder: Path, name: str) -> Section:
    records = read_records(folder.parent, folder.name)
    task = TASKS[type(TABLES[name]()[0])]
    changes = re.sub(r"(=[^_]*)_", r"\1, ", folder.name.removeprefix(f"{name}_"))  # a value has no _
    with readable(folder):
        where = ", ".join(sorted({record["device"] for record in records}))
        steps = ", ".join(f"{steps:,}" for steps in sorted({record["steps"] for record in records}))
        prose = [
            f"The table {name} with other settings: {changes}. Runs of {steps} steps on {where}. "
            "What the paper prints is of its own settings."
        ]
        return Section(f"Other runs: {name}, {changes}", prose, task.table(records))
