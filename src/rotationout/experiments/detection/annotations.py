"""Read and check the annotations of a data set in COCO's layout (Lin et al. 2014): images, boxes and categories.

A data set has ``annotations/instances_<split>.json``, and its images in ``<split>/``, ``images/<split>/`` or
``images/``, the first of these that exists.

A bad annotation file is an error. A single box or image that cannot be used is left out, reported and counted; the
table in `rotationout.experiments.detection` lists all cases.
"""

from __future__ import annotations

import json
import reprlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..problems import Problem, UnusableError, refuse_if_many, report_all

__all__ = ["Split", "corners", "ground_truth", "image_folder", "read_annotations", "read_split"]

LEAST_SIDE = 1e-3
"""The smallest side of a usable box, in pixels."""


Box = tuple[tuple[float, float, float, float], int]
"""Left, top, right and bottom in pixels, and the label."""


Images = dict[Any, dict[str, Any]]
"""The entries of images in an annotation file, by their ids."""


@dataclass(frozen=True)
class Split:
    """The usable images of a split, and the boxes of all of them, concatenated.

    Attributes:
        name: the name of the split.
        source: its annotation file.
        ids: ids of the images in that file.
        paths: paths of the images.
        sizes: height and width of each image, (images, 2), int64.
        boxes: left, top, right and bottom of every box in pixels, (boxes, 4), fp32; boxes of crowds are not included.
        labels: the label of every box, an index into ``categories``, (boxes,), int64.
        starts: the first box of each image, and the number of all boxes, (images + 1,), int64.
        categories: ids and names of the categories, in the order of their labels.
        bad_boxes: the boxes that were left out.
        bad_images: the images that were left out.

    It is an error if no box is left, or if more than a tenth of the images are left out.
    """

    name: str
    source: Path
    ids: list[int]
    paths: list[Path]
    sizes: Tensor
    boxes: Tensor
    labels: Tensor
    starts: Tensor
    categories: dict[int, str]
    bad_boxes: list[Problem] = field(default_factory=list)
    bad_images: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        refuse_if_many(self.bad_images, [self.name] * (len(self) + len(self.bad_images)), "images")
        if not len(self.boxes):
            raise ValueError(
                f"{self.source} has no box to learn or to find: a split needs at least one that can be used and is not "
                "of a crowd"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def problems(self) -> list[Problem]:
        """The boxes and images that were left out."""
        return [*self.bad_boxes, *self.bad_images]

    @property
    def max_boxes(self) -> int:
        """The largest number of boxes in an image."""
        return int(self.starts.diff().max())

    def boxes_of(self, index: int) -> tuple[Tensor, Tensor]:
        """The boxes of an image, (n, 4), and their labels, (n,)."""
        begin, end = self.starts[index : index + 2].tolist()
        return self.boxes[begin:end], self.labels[begin:end]

    def padded_boxes(self, index: int) -> tuple[Tensor, Tensor]:
        """The boxes of an image, (max_boxes, 4), and their labels, (max_boxes,), padded with zeros and with −1."""
        boxes, labels = self.boxes_of(index)
        missing = self.max_boxes - len(labels)
        return F.pad(boxes, (0, 0, 0, missing)), F.pad(labels, (0, missing), value=-1)

    def without(self, problems: dict[int, Problem]) -> Split:
        """The split without some bad images, given the problem of each by its index."""
        kept = [index for index in range(len(self)) if index not in problems]
        rows = [torch.arange(*self.starts[index : index + 2].tolist()) for index in kept]
        chosen = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
        return Split(
            self.name,
            self.source,
            [self.ids[index] for index in kept],
            [self.paths[index] for index in kept],
            self.sizes[kept],
            self.boxes[chosen],
            self.labels[chosen],
            torch.tensor([0, *(len(row) for row in rows)]).cumsum(0),
            self.categories,
            self.bad_boxes,
            [*self.bad_images, *problems.values()],
        )


def read_split(folder: Path | str, split: str) -> Split:
    """Read the images of a split and their boxes; what cannot be used is reported on stderr."""
    root = Path(folder)
    source = root / "annotations" / f"instances_{split}.json"
    images, annotations, categories = read_annotations(source)
    place = image_folder(root, split)
    boxes, bad_boxes = _read_boxes(split, source, images, annotations, categories)
    spoilt = {image for image, _ in bad_boxes if isinstance(image, int) and not boxes.get(image)}
    bad_images = _bad_images(split, place, images, spoilt)
    problems = [problem for _, problem in bad_boxes]
    refuse_if_many(problems, [split] * len(annotations), "boxes")
    kept = [identity for identity in images if identity not in bad_images]
    found = [box for identity in kept for box in boxes[identity]]
    made = Split(
        split,
        source,
        kept,
        [place / images[identity]["file_name"] for identity in kept],
        torch.tensor([[images[identity][side] for side in ("height", "width")] for identity in kept]).view(-1, 2),
        torch.tensor([corner for corner, _ in found], dtype=torch.float32).view(-1, 4),
        torch.tensor([label for _, label in found], dtype=torch.int64),
        torch.tensor([0, *(len(boxes[identity]) for identity in kept)]).cumsum(0),
        categories,
        problems,
        list(bad_images.values()),
    )
    report_all(made.problems)
    return made


def _read_boxes(
    split: str, source: Path, images: Images, annotations: list[dict[str, Any]], categories: dict[int, str]
) -> tuple[dict[Any, list[Box]], list[tuple[Any, Problem]]]:
    """The usable boxes of every image; and the problems of the others, each with the id of its image."""
    labels = {identity: label for label, identity in enumerate(categories)}
    boxes: dict[Any, list[Box]] = {identity: [] for identity in images}
    bad: list[tuple[Any, Problem]] = []
    for number, annotation in enumerate(annotations):
        try:
            image, box = _usable(annotation, images, labels)
        except UnusableError as error:
            image = annotation.get("image_id")
            known = isinstance(image, int) and image in images
            name = f"{images[image]['file_name'] if known else source.name}, box {number}"
            bad.append((image, Problem(split, name, error.reason, f"{name}: {error}")))
            continue
        if not annotation.get("iscrowd"):
            boxes[image].append(box)
    return boxes, bad


def _bad_images(split: str, place: Path, images: Images, spoilt: set[Any]) -> dict[Any, Problem]:
    """Images that are missing, and images all of whose boxes were left out, which would look like empty ones."""
    names = {path.name for path in place.iterdir()}  # one listing instead of a hundred thousand checks
    bad: dict[Any, Problem] = {}
    for identity, image in images.items():
        file = image["file_name"]
        if file not in names and not (place / file).is_file():
            bad[identity] = Problem(split, file, "missing image", f"{file} is missing in {place}")
        elif identity in spoilt:
            bad[identity] = Problem(split, file, "no usable box", f"{file} has no box that can be used")
    return bad


def image_folder(root: Path, split: str) -> Path:
    """The folder with the images of a split."""
    places = (root / split, root / "images" / split, root / "images")
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise FileNotFoundError(
            f"{root} has no images of {split!r}: they must be in {split}/, images/{split}/ or images/"
        )
    return found


def corners(bbox: Any, width: float, height: float) -> tuple[float, float, float, float]:
    """Convert a COCO box (left, top, width, height) to left, top, right and bottom, clipped to its image.

    >>> corners([10, 20, 30, 40], 35, 100)
    (10.0, 20.0, 35.0, 60.0)
    """
    numbers = isinstance(bbox, list) and len(bbox) == 4 and all(isinstance(v, int | float) for v in bbox)
    if not numbers or not all(abs(value) <= sys.float_info.max for value in bbox):  # also of NaN, and of huge integers
        raise UnusableError("malformed box", f"bbox must be four numbers, got {reprlib.repr(bbox)}")
    x, y, w, h = map(float, bbox)
    if min(w, h) < LEAST_SIDE:
        raise UnusableError("box without size", f"width and height of bbox must be positive, got {bbox!r}")
    left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
    if min(right - left, bottom - top) < LEAST_SIDE:
        raise UnusableError("box outside its image", f"bbox {bbox!r} lies outside the {width} × {height} image")
    return left, top, right, bottom


def _usable(annotation: dict[str, Any], images: Images, labels: dict[int, int]) -> tuple[Any, Box]:
    """The image id of an annotation, and its box with the label; an `UnusableError` if it is bad."""
    image, category = annotation.get("image_id"), annotation.get("category_id")
    if not isinstance(image, int) or image not in images:
        raise UnusableError("annotation without image", f"there is no image {image!r}")
    if not isinstance(category, int) or category not in labels:
        raise UnusableError("unknown category", f"there is no category {category!r}")
    return image, (corners(annotation.get("bbox"), images[image]["width"], images[image]["height"]), labels[category])


def ground_truth(source: Path) -> dict[str, Any]:
    """The ground truth for scoring: the annotation file without unusable boxes, but with crowds.

    Boxes are clipped to their images, as those that are learnt; ids of annotations are numbered from 1, as pycocotools
    needs them.
    """
    images, annotations, categories = read_annotations(source)
    known = dict.fromkeys(categories, 0)
    usable: list[dict[str, Any]] = []
    for annotation in annotations:
        try:
            image, ((left, top, right, bottom), _) = _usable(annotation, images, known)
        except UnusableError:
            continue
        width, height = right - left, bottom - top
        area = annotation.get("area")
        usable.append(
            {
                "id": len(usable) + 1,
                "image_id": image,
                "category_id": annotation["category_id"],
                "bbox": [left, top, width, height],
                "area": area if isinstance(area, int | float) else width * height,
                "iscrowd": int(bool(annotation.get("iscrowd"))),
            }
        )
    kinds = [{"id": identity, "name": name} for identity, name in categories.items()]
    return {"images": list(images.values()), "annotations": usable, "categories": kinds}


def read_annotations(source: Path) -> tuple[Images, list[dict[str, Any]], dict[int, str]]:
    """Read an annotation file: images by their ids, annotations, and names of categories by their sorted ids."""
    if not source.is_file():
        found = sorted(p.stem.removeprefix("instances_") for p in source.parent.glob("instances_*.json"))
        there = f"it has {', '.join(found)}" if found else "a data set has annotations/instances_<split>.json"
        raise FileNotFoundError(f"{source} does not exist; {there}")
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        images = {image["id"]: image for image in content["images"]}
        annotations: list[dict[str, Any]] = content["annotations"]
        categories = {kind["id"]: str(kind["name"]) for kind in sorted(content["categories"], key=lambda k: k["id"])}
        sound = all(map(_is_described, images.values())) and all(isinstance(identity, int) for identity in categories)
        if not all(isinstance(annotation, dict) for annotation in annotations):
            raise TypeError("annotations must be objects")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{source} is not an annotation file in COCO's format, with images, annotations and categories ({error!r})"
        ) from error
    if not sound or len(images) < len(content["images"]):
        raise ValueError(
            f"{source}: every image must have an id of its own, a file_name, a width and a height; ids are integers"
        )
    if not images or not categories:
        raise ValueError(
            f"{source} must have images and categories, got {len(images)} images and {len(categories)} categories"
        )
    return images, annotations, categories


def _is_described(image: dict[str, Any]) -> bool:
    kinds = {"id": int, "file_name": str, "width": int, "height": int}
    known = all(isinstance(image.get(name), kind) for name, kind in kinds.items())
    return known and image["width"] > 0 and image["height"] > 0
