"""``rotationout score``: score detections that were made on a machine without pycocotools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Recipe, Records
from .output import print_json
from .trouble import chosen, say

__all__ = ["score"]


def score(
    recipe: Recipe,
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", exists=True, help="The data set in COCO's layout; only its annotations are needed."
        ),
    ],
    results: Records = Path("results"),
    again: Annotated[bool, typer.Option("--again", help="Also score records that have scores already.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="DIR", help="Also draw detections on test images, in this folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Score detections that were made on a machine without pycocotools, and add AP to their records.

    Training leaves the detections beside each record. Records that have scores already are skipped.

    Example:
        rotationout score bccd --data BCCD --picture out/figures
    """
    from ..experiments.detection.scoring import score_records
    from ..recipes import detection, name_of

    if name_of(recipe) not in detection.TABLES:
        chosen("TABLE", recipe, detection.TABLES)
    found = score_records(results, recipe, data, again=again)
    if not found:
        say(f"all records of {recipe} in {results} have scores already; --again scores them anew")
    drawn = _draw(recipe, results, data, picture) if picture is not None else []
    if json:
        scored = [{"record": str(path), **scores} for path, scores in found.items()]
        print_json({"scores": scored, "pictures": [str(path) for path in drawn]})
        return
    for path, scores in found.items():
        print(f"{path}: {', '.join(f'{name} {value:.2f}' for name, value in scores.items())}")
    for drawing in drawn:
        print(drawing)


def _draw(recipe: str, results: Path, data: Path, folder: Path) -> list[Path]:
    from ..experiments.results import read_records
    from ..report.gallery import write
    from ..report.gallery.detections import seen_boxes

    return list(write([seen_boxes(recipe, read_records(results, recipe), data)], folder))
