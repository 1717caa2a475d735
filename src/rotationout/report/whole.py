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
from . import digits, forms, reproduced, small_batch, speed, style
from .gallery import Drawing
from .gallery.catalogue import all_figures
from .modules import module_of
from .others import other_runs
from .page import Section, render

__all__ = ["sections", "write"]


def sections(
    results: Path, benchmarks: Path | None = None, *, demo: Study | None = None, figures: bool = True
) -> list[Section]:
    """The sections of the page: every part that has records, and at the end which parts have none.

    Args:
        results: where the records of experiments are.
        benchmarks: where those of benchmarks are.
        demo: the study of digits that comes first, instead of the one in ``results``.
        figures: with the figures of `all_figures`; those of the theory take half a minute to compute.
    """
    found: list[Section] = []
    if demo is None and (results / "digits.json").is_file():
        demo = Study.load(results / "digits.json")
    if demo is not None:
        found += digits.sections(demo)
    if (results / "forms.json").is_file():
        found += forms.sections(FormsStudy.load(results / "forms.json"))
    for recipe in TABLES:
        records = read_records(results, recipe)
        if records:
            with readable(results / recipe):
                found.append(module_of(recipe).section(recipe, records))
    if (results / "small_batch.json").is_file():
        found.append(_small_batch(results / "small_batch.json"))
    if benchmarks is not None:
        found += _speed(benchmarks)
    if figures:
        found += [_figure(drawing) for drawing in all_figures(results)]
    return [*found, *other_runs(results), reproduced.section(results)]


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
        "paper’s numbers are as printed."
    )
    page = render("RotationOut", lead, sections(results, benchmarks, demo=demo, figures=figures), footer)
    path = out / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _small_batch(path: Path) -> Section:
    study = SmallBatchStudy.load(path)
    findings = [small_batch.verdict(study, norm, measure) for norm in ("poly", "cross") for measure in MEASURES]
    return Section(
        "Appendix B: BatchNorm of small batches, on digits",
        [
            "Test accuracy with BatchNorm and the paper’s two replacements. “Running” statistics are those of "
            "training; “averaged” ones are recomputed over many batches.",
            *findings,
        ],
        small_batch.table(study),
    )


MEASURES = ("test_accuracy", "test_loss")


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
