"""The whole report: all results, next to the paper's, on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..experiments.forms import FormsStudy
from ..experiments.records import Study, readable
from ..experiments.results import read_records
from ..experiments.small_batch import SmallBatchStudy
from ..recipes import TABLES
from . import digits, forms, reproduced, sizes, small_batch, speed, style
from .gallery import Drawing
from .gallery.catalogue import all_figures
from .modules import module_of
from .others import other_runs
from .page import Section, render

__all__ = ["sections", "write"]


STUDIES: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "digits.json": (Study.load, digits),
    "forms.json": (FormsStudy.load, forms),
    "sizes.json": (FormsStudy.load, sizes),
    "small_batch.json": (SmallBatchStudy.load, small_batch),
}
"""By the name of its record, what reads a study of digits, and the module that shows it."""


def sections(
    results: Path, benchmarks: Path | None = None, *, demo: Study | None = None, figures: bool = True
) -> list[Section]:
    """The sections of the page: what of the paper is reproduced, and then every part that has records.

    Args:
        results: where the records of experiments are.
        benchmarks: where those of benchmarks are.
        demo: the study of digits that comes first, instead of the one in ``results``.
        figures: with the figures of `all_figures`; those of the theory take half a minute to compute.
    """
    found = [] if demo is None else digits.sections(demo)
    found.append(reproduced.section(results))
    for recipe in TABLES:
        records = read_records(results, recipe)
        if records:
            with readable(results / recipe):
                found.append(module_of(recipe).section(recipe, records))
    for name, (load, report) in STUDIES.items():
        if (results / name).is_file() and (demo is None or report is not digits):
            found += report.sections(load(results / name))
    if benchmarks is not None:
        found += _speed(benchmarks)
    if figures:
        found += [_figure(drawing) for drawing in all_figures(results)]
    return [*found, *other_runs(results)]


def write(
    out: Path,
    results: Path,
    benchmarks: Path | None = None,
    *,
    demo: Study | None = None,
    figures: bool = True,
) -> Path:
    """Write the page of `sections` to ``out``/index.html, and return that path."""
    out.mkdir(parents=True, exist_ok=True)
    lead = "RotationOut rotates features instead of dropping them: what was measured, next to what the paper reports."
    footer = (
        "Every measured number on this page comes from a record, which says what was run and on which machine. The "
        "paper’s numbers are as printed. Labels such as eq6 are those of the paper’s LaTeX source."
    )
    page = render("RotationOut", lead, sections(results, benchmarks, demo=demo, figures=figures), footer)
    path = out / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _speed(folder: Path) -> list[Section]:
    found = []
    kinds: tuple[tuple[str, Callable[[Path], Any], str], ...] = (
        ("nvidia", speed.gpu_table, "GPU time of forward and backward, captured in a CUDA graph"),
        ("cpu", speed.cpu_table, "Time of forward and backward"),
    )
    for kind, make, what in kinds:
        for path in sorted(folder.glob(f"ops_{kind}*.json")):
            machine = path.stem.removeprefix("ops_").replace("_torch-", ", torch ")
            found.append(Section(f"Speed: {machine}", [f"{what}, relative to nn.Dropout."], make(path)))
    return found


def _figure(drawing: Drawing) -> Section:
    return Section(drawing.title, [], None, style.to_svg(drawing.draw(drawing.compute())), drawing.caption)
