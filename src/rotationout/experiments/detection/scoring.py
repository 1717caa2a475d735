"""Average precision of detections as COCO has it, by pycocotools: with the run that made them, or elsewhere later."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import results
from ..records import readable
from .annotations import truth

__all__ = ["SUFFIX", "average_precision", "can_score", "pack", "score_records", "unpack"]

SUFFIX = ".detections.json.gz"
"""A record's detections are beside it, under its name with this ending."""
MEASURES = ("ap", "ap50", "ap75")
"""The first three of COCO's numbers: precision averaged over overlaps from 0.5 to 0.95, at 0.5, and at 0.75."""


def can_score() -> bool:
    """Whether pycocotools is there."""
    return importlib.util.find_spec("pycocotools") is not None


def pack(found: Tensor) -> bytes:
    """Detections, (n, 7): image, category, left, top, width, height, score; as a file of COCO's results, compressed.

    >>> import torch
    >>> unpack(pack(torch.tensor([[7, 2, 10.04, 20, 30, 40, 0.5]])))
    [{'image_id': 7, 'category_id': 2, 'bbox': [10.0, 20.0, 30.0, 40.0], 'score': 0.5}]
    """
    return gzip.compress(json.dumps(_plain(found), separators=(",", ":")).encode(), mtime=0)


def unpack(content: bytes) -> list[dict[str, Any]]:
    """What `pack` wrote."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(content))
    return found


def _plain(found: Tensor) -> list[dict[str, Any]]:
    return [
        {"image_id": int(image), "category_id": int(kind), "bbox": [round(v, 1) for v in box], "score": round(score, 4)}
        for image, kind, *box, score in found.double().tolist()
    ]


def average_precision(source: Path, found: Tensor | Sequence[dict[str, Any]]) -> dict[str, float]:
    """`MEASURES` in per cent of detections, against an annotation file without the boxes that cannot be used.

    All images of the file count, also those in which nothing was found. Numbers are rounded first, as in the file that
    is kept: it makes no difference when they are scored.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("scores need pycocotools: pip install 'rotationout[detection]'") from error
    plain = _plain(found) if isinstance(found, Tensor) else [dict(detection) for detection in found]
    if not plain:  # pycocotools would look at the first
        return dict.fromkeys(MEASURES, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):  # it reports how long everything takes
        expected = COCO()
        expected.dataset = truth(source)
        expected.createIndex()
        evaluation = COCOeval(expected, expected.loadRes(plain), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    first = evaluation.stats[: len(MEASURES)].tolist()  # −1 where there is nothing to be found
    return {name: round(100 * max(value, 0.0), 4) for name, value in zip(MEASURES, first, strict=True)}


def score_records(folder: Path, recipe: str, data: Path, *, again: bool = False) -> dict[Path, dict[str, float]]:
    """Score the detections beside the records of a recipe that have no scores yet, or of all; the scores by record.

    Args:
        folder: where the records are.
        recipe: their recipe.
        data: the data set, of which only the annotations are read.
        again: also those that have scores.
    """
    found: dict[Path, dict[str, float]] = {}
    paths = sorted((folder / recipe).glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder / recipe} has no records; recipe must be the name of a folder in {folder}")
    for path in paths:
        record = results.read_record(path)
        if "ap" in record and not again:
            continue
        kept = path.with_suffix(SUFFIX)
        if not kept.is_file():
            raise FileNotFoundError(f"{kept} does not exist: the detections of a run stay beside its record")
        with readable(path):
            source = data / "annotations" / f"instances_{record['config']['test_split']}.json"
        found[path] = average_precision(source, _kept_detections(kept))
        results.amend_record(path, found[path])
    return found


def _kept_detections(path: Path) -> list[dict[str, Any]]:
    try:
        return unpack(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise ValueError(f"{path} does not hold detections, or is damaged ({error!r})") from error
