"""``rotationout demo``: the study of handwritten digits, and the page of all records."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..strength import check_rate
from .options import Json, Results
from .output import print_json, show, show_text
from .report import BENCHMARKS, DRAWING, NoTheory, say_what_is_missing
from .trouble import say

__all__ = ["demo"]


ELSEWHERE = (
    "These are small networks that learn from few examples. What larger ones gain and what they do not is on the page, "
    "under “What is reproduced, and what is not”."
)
"""So that nobody takes the demonstration for all that there is."""
NO_RECORDS = (
    "These are small networks that learn from few examples. The records of larger ones are in the folder results of "
    "the repository: run this in a clone of it, or name that folder with --results."
)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number in (0, 1), got {text!r}") from None
    try:
        check_rate(rate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if rate == 0.0:
        raise typer.BadParameter("noises do nothing at p = 0, so there is nothing to compare; give a number in (0, 1)")
    return rate


def demo(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each noise.")] = 5,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the data.")] = 100,
    p: Annotated[
        float, typer.Option("--p", parser=_rate, metavar="RATE", help="Drop probability of both noises.")
    ] = 0.5,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results go.")] = Path("out"),
    results: Results = Path("results"),
    no_theory: NoTheory = False,
    json: Json = False,
) -> None:
    """Train on handwritten digits with no noise, Dropout and RotationOut.

    Takes about a minute on a CPU; the data come with scikit-learn. At the end it writes the same page as rotationout
    report, with the digits first. With --json it prints the record of this study.

    Example:
        rotationout demo
        rotationout demo --seeds 2 --epochs 10 --no-theory
    """
    for needed in ("sklearn.datasets", "matplotlib", "jinja2"):
        importlib.import_module(needed)  # before the work, not after it
    from ..experiments import digits
    from ..report import digits as pictures
    from ..report import whole

    out.mkdir(parents=True, exist_ok=True)
    study = digits.run(p, seeds, epochs)
    study.save(out / "digits.json")
    pictures.write(study, out)
    if not json:
        show(pictures.summary_table(study), f"Digits, p = {study.p:g}")
        print()
        show(pictures.strength_table(study), "Over p")
        show_text(f"{pictures.verdict(study)} {ELSEWHERE if results.is_dir() else NO_RECORDS}")
    benchmarks = BENCHMARKS if BENCHMARKS.is_dir() else None
    say_what_is_missing(results, BENCHMARKS)
    if not no_theory:
        say(DRAWING)
    page = whole.write(out, results, benchmarks, demo=study, figures=not no_theory)
    if json:
        print_json(asdict(study))
        say(f"open {page}")
    else:
        print(f"Open {page}")
