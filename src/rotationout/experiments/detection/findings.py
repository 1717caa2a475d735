"""Detections in test images as rows of numbers (`COLUMNS`), in pixels of the image and with the data set's ids."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from .annotations import Split
from .crops import restore

__all__ = ["COLUMNS", "as_rows", "examples"]

COLUMNS = ("image", "category", "left", "top", "width", "height", "score")
SHOWN, SURE, MOST_SHOWN = 4, 0.3, 40
"""How many images a record shows, the lowest score of the detections shown, and how many it shows per image."""


def as_rows(split: Split, index: int, seen: dict[str, Tensor], window: int) -> Tensor:
    """The detections in the window on an image as rows, (n, 7), fp64, on the CPU.

    Args:
        split: the split of the image.
        index: the index of the image.
        seen: the detections: boxes, scores and labels.
        window: side of the window in pixels; the image was in its upper left corner.
    """
    boxes = restore(seen["boxes"].double().cpu(), split.sizes[index], window)
    kinds = torch.tensor(list(split.categories), dtype=torch.float64)[seen["labels"].cpu()]
    images = torch.full_like(kinds, split.ids[index])
    sizes = boxes[:, 2:] - boxes[:, :2]
    return torch.column_stack([images, kinds, boxes[:, :2], sizes, seen["scores"].double().cpu()])


def examples(split: Split, found: Tensor, bad: Collection[str] = ()) -> list[dict[str, Any]]:
    """A few images, evenly spread over the split, with their true boxes and their detections above a score.

    None of them is among the ``bad`` images, by name, which could not be read. A box is the name of its category, left,
    top, right and bottom; a detection has its score after that.
    """
    names = list(split.categories.values())
    shown = []
    usable = [index for index, path in enumerate(split.paths) if path.name not in bad]
    for index in usable[:: max(1, len(usable) // SHOWN)][:SHOWN]:
        boxes, labels = split.boxes_of(index)
        mine = found[(found[:, 0] == split.ids[index]) & (found[:, 6] >= SURE)][:MOST_SHOWN].tolist()
        shown.append(
            {
                "name": split.paths[index].name,
                "size": split.sizes[index].tolist(),
                "true": [
                    [names[label], *_rounded(*box)] for label, box in zip(labels.tolist(), boxes.tolist(), strict=True)
                ],
                "seen": [
                    [split.categories[int(kind)], *_rounded(x, y, x + w, y + h), round(score, 3)]
                    for _, kind, x, y, w, h, score in mine
                ],
            }
        )
    return shown


def _rounded(*box: float) -> list[float]:
    return [round(value, 1) for value in box]
