"""``rotationout study``: smaller studies on handwritten digits, each with one record of all its runs."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import show, show_text
from .trouble import check_file, chosen, say

__all__ = ["study"]

STUDIES = ("forms", "sizes", "small_batch")
"""Names of studies, which are also those of their modules in ``experiments`` and ``report``, and of their records."""


def known(incomplete: str) -> list[str]:
    """Completes the name of a study."""
    return [name for name in STUDIES if name.startswith(incomplete)]


def study(
    name: Annotated[
        str, typer.Argument(metavar="STUDY", help="One of forms, sizes, small_batch.", autocompletion=known)
    ],
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Networks per row.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Passes over the data.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Networks to train at a time; one for each core if not given.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the record goes.")] = Path("out"),
) -> None:
    """Run a smaller study on handwritten digits, and write its record.

    forms: which choices of RotationOut matter. sizes: whether Dropout or RotationOut is ahead, with fewer and more
    examples. small_batch: BatchNorm, CrossNorm and PolyBatchNorm where batches are small. They need no GPU; each takes
    some minutes, or up to half an hour on two cores.

    Example:
        rotationout study forms
        rotationout study sizes --seeds 5 --jobs 2
    """
    path = out / f"{chosen('STUDY', name, STUDIES)}.json"
    check_file(path, "--out")
    importlib.import_module("sklearn.datasets")  # before the work, not after it
    report = importlib.import_module(f"rotationout.report.{name}")
    out.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {"seeds": seeds, "epochs": epochs, "jobs": jobs or os.cpu_count()}
    module = importlib.import_module(f"rotationout.experiments.{name}")
    found = module.run(**{option: value for option, value in given.items() if value is not None})
    found.save(path)
    for section in report.sections(found):
        show(section.table, section.title)
        for paragraph in [section.finding] if section.finding else section.prose[1:]:
            show_text(paragraph)
        print()
    say(f"written: {path}")
