"""``rotationout rows`` and ``rotationout table``: the rows of a table, and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Recipe, Records, rows_of, some_recipes
from .output import as_dicts, print_json, show, show_text
from .trouble import chosen

__all__ = ["rows", "table"]


def rows(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="Name of a table; lists all tables if not given.", autocompletion=some_recipes
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the rows of a table, or all tables.

    With --json, prints the whole config of each row.

    Example:
        rotationout rows
        rotationout rows cifar100_resnet110_authors
    """
    from dataclasses import asdict

    from ..recipes import SUBJECTS, TABLES

    if recipe is None:
        tables = {name: table() for name, table in TABLES.items()}
        if json:
            print_json({name: [config.row for config in found] for name, found in tables.items()})
        else:
            for name, found in tables.items():
                print(f"{name}: {len(found)} rows. {SUBJECTS[name]}.")
        return
    chosen("TABLE", recipe, TABLES)
    if json:
        print_json([asdict(config) for config in TABLES[recipe]()])
    else:
        print("\n".join(rows_of(recipe)))


def table(
    recipe: Recipe,
    results: Records = Path("results"),
    json: Json = False,
) -> None:
    """Print the results of a table, next to the paper's numbers.

    Values are mean ± standard deviation over seeds. Runs with changed fields are tables of their own: give the name of
    their folder in --results, which is the table and the changes.

    Example:
        rotationout table an4
    """
    from ..experiments.records import readable
    from ..experiments.results import read_records
    from ..recipes import TABLES, name_of
    from ..report.modules import module_of
    from ..report.others import changed_table

    name = name_of(recipe) or chosen("TABLE", recipe, TABLES)
    records = read_records(results, recipe)
    if not records:
        changed = sorted(folder.name for folder in results.glob("*") if changed_table(folder) == name)
        others = f". There are records with changed fields, of {', '.join(changed)}" if changed else ""
        raise ValueError(
            f"there are no records of {recipe} in {results} yet; if they are elsewhere, give --results, or run "
            f"rotationout sweep {name} --data PATH{others}"
        )
    report = module_of(name)
    with readable(results / recipe):
        cells, prose, verdict = report.table(records), report.prose(records), report.verdict(records)
        notes = report.notes(records) if hasattr(report, "notes") else ""
    if json:
        said = {"prose": prose, "verdict": verdict, "notes": notes.splitlines()}
        print_json({"recipe": recipe, "runs": len(records), "rows": as_dicts(cells), **said})
        return
    show(cells)
    if recipe != name:
        changed_to = recipe.removeprefix(f"{name}_")
        show_text(f"The rows are those of {name}, and named so, but run with {changed_to}.")
    for paragraph in filter(None, [*prose, verdict]):
        show_text(paragraph)
    if notes:
        print(f"\n{notes}")
