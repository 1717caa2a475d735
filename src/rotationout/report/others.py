"""Runs with changed fields, whose records are named by the table and the changes: a section for each name."""

from __future__ import annotations

import re
from pathlib import Path

from ..experiments.records import readable
from ..experiments.results import read_records, record_files
from ..recipes import name_of
from .modules import module_of
from .page import Section

__all__ = ["changed_table", "other_runs"]


def other_runs(results: Path) -> list[Section]:
    """A section for every folder with records of a table whose fields were changed."""
    folders = sorted(folder for folder in results.iterdir() if folder.is_dir()) if results.is_dir() else []
    return [_section(folder, name) for folder in folders if (name := changed_table(folder))]


def changed_table(folder: Path) -> str | None:
    """The table whose fields were changed; None if the folder has no such records."""
    name = name_of(folder.name)
    return name if folder.name != name and record_files(folder) else None


def _section(folder: Path, name: str) -> Section:
    records = read_records(folder.parent, folder.name)
    changes = re.sub(r"(=[^_]*)_", r"\1, ", folder.name.removeprefix(f"{name}_"))  # a value has no _
    with readable(folder):
        where = ", ".join(sorted({record["device"] for record in records}))
        steps = ", ".join(f"{steps:,}" for steps in sorted({record["steps"] for record in records}))
        prose = [
            f"The table {name} with other settings: {changes}. Runs of {steps} steps on {where}. "
            "The paper’s numbers are for its own settings."
        ]
        return Section(f"Other runs: {name}, {changes}", prose, module_of(name).table(records))
