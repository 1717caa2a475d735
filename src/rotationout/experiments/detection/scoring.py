"""COCO's average precision by pycocotools, at the end of a run or later (`rotationout score`), from its detections."""

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
from .annotations import ground_truth

__all__ = ["SUFFIX", "average_precision", "can_score", "pack", "score_records", "unpack"]

SUFFIX = ".detections.json.gz"
"""The detections of a run are beside its record, under its name with this ending."""
MEASURES = ("ap", "ap50", "ap75")
"""The first three of COCO's numbers: precision averaged over overlaps from 0.5 to 0.95, at 0.5, and at 0.75."""


def can_score() -> bool:
    """Whether pycocotools is installed."""
    return importlib.util.find_spec("pycocotools") is not None


def pack(found: Tensor) -> bytes:
    """Detections (n, 7) of `findings.COLUMNS`, as a gzipped file in COCO's format of results.

    >>> import torch
    >>> unpack(pack(torch.tensor([[7, 2, 10.04, 20, 30, 40, 0.5]])))
    [{'image_id': 7, 'category_id': 2, 'bbox': [10.0, 20.0, 30.0, 40.0], 'score': 0.5}]
    """
    return gzip.compress(json.dumps(_plain(found), separators=(",", ":")).encode(), mtime=0)


def unpack(content: bytes) -> list[dict[str, Any]]:
    """Read what `pack` wrote."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(content))
    return found


def _plain(found: Tensor) -> list[dict[str, Any]]:
    return [
        {"image_id": int(image), "category_id": int(kind), "bbox": [round(v, 1) for v in box], "score": round(score, 4)}
        for image, kind, *box, score in found.double().tolist()
    ]


def average_precision(source: Path, found: Tensor | Sequence[dict[str, Any]]) -> dict[str, float]:
    """The `MEASURES` of detections in per cent, against an annotation file without its unusable boxes.

    All images of the file count, also those without detections. Numbers are rounded as in the file of `pack`, so that
    scores do not depend on whether they are computed from that file.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("scores need pycocotools: pip install 'rotationout[detection]'") from error
    plain = _plain(found) if isinstance(found, Tensor) else [dict(detection) for detection in found]
    if not plain:  # pycocotools fails without detections
        return dict.fromkeys(MEASURES, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its timings
        expected = COCO()
        expected.dataset = ground_truth(source)
        expected.createIndex()
        evaluation = COCOeval(expected, expected.loadRes(plain), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    first = evaluation.stats[: len(MEASURES)].tolist()  # −1 if there are no boxes
    return {name: round(100 * max(value, 0.0), 4) for name, value in zip(MEASURES, first, strict=True)}


def score_records(folder: Path, recipe: str, data: Path, *, again: bool = False) -> dict[Path, dict[str, float]]:
    """Score the detections of all records of a recipe without scores, add the scores to these records, and return them.

    Args:
        folder: the folder of the records.
        recipe: the recipe of the records.
        data: the data set, of which only the annotations are read.
        again: also score records that have scores already.
    """
    found: dict[Path, dict[str, float]] = {}
    paths = results.record_files(folder / recipe)
    if not paths:
        from ...recipes import name_of  # recipes use this package

        raise FileNotFoundError(
            f"there are no records of {recipe} in {folder} yet; if they are elsewhere, give --results, or run "
            f"rotationout train {name_of(recipe) or recipe} --data PATH"
        )
    for path in paths:
        record = results.read_record(path)
        if "ap" in record and not again:
            continue
        kept = path.with_suffix(SUFFIX)
        if not kept.is_file():
            raise FileNotFoundError(f"{kept} does not exist: the detections of a run must be beside its record")
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
