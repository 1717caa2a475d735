"""Small data sets in COCO's layout for the tests of detection: coloured rectangles, and a few of BCCD's images."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

BCCD = Path(__file__).parents[2] / "shared" / "data" / "bccd"
needs_bccd = pytest.mark.skipif(not BCCD.is_dir(), reason=f"the BCCD images are not at {BCCD}")
has_pycocotools = importlib.util.find_spec("pycocotools") is not None
needs_pycocotools = pytest.mark.skipif(not has_pycocotools, reason="pycocotools, of 'detection', is not installed")

RED, BLUE = (220, 40, 40), (40, 60, 220)
CATEGORIES = [{"id": 3, "name": "red"}, {"id": 8, "name": "blue"}]


def painted(height: int, width: int, boxes: list[tuple[int, ...]], seed: int = 0) -> torch.Tensor:
    """A grey noisy image with rectangles (label, left, top, right, bottom): red for 0, blue for 1."""
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randint(90, 130, (3, height, width), generator=source, dtype=torch.uint8)
    for label, left, top, right, bottom in boxes:
        pixels[:, top:bottom, left:right] = torch.tensor((RED, BLUE)[label], dtype=torch.uint8).view(3, 1, 1)
    return pixels


def drawn_boxes(height: int, width: int, source: torch.Generator) -> list[tuple[int, ...]]:
    """A red and a blue rectangle, side by side."""
    found = []
    for label, begin in ((0, 0), (1, width // 2)):
        w, h = (torch.randint(36, 54, (2,), generator=source)).tolist()
        left = begin + int(torch.randint(width // 2 - w, (1,), generator=source))
        top = int(torch.randint(height - h, (1,), generator=source))
        found.append((label, left, top, left + w, top + h))
    return found


def write_album(root: Path, counts: dict[str, int], size: tuple[int, int] = (96, 128)) -> Path:
    """A data set of painted images, so many of each split; ids are not in order and begin anywhere."""
    from torchvision.io import write_png

    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    source = torch.Generator().manual_seed(0)
    for split, count in counts.items():
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(count):
            boxes = drawn_boxes(*size, source)
            name, identity = f"{split}_{number}.png", 100 - number
            write_png(painted(*size, boxes, seed=number), str(root / "images" / name))
            images.append({"id": identity, "file_name": name, "height": size[0], "width": size[1]})
            for label, left, top, right, bottom in boxes:
                bbox = [left, top, right - left, bottom - top]
                annotations.append(
                    {
                        "id": len(annotations),
                        "image_id": identity,
                        "category_id": CATEGORIES[label]["id"],
                        "bbox": bbox,
                        "area": bbox[2] * bbox[3],
                        "iscrowd": 0,
                    }
                )
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def edit(root: Path, split: str, change: Any) -> None:
    """Change the annotation file of a split."""
    path = root / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def some_of_bccd(root: Path, train: int = 6, test: int = 3, names: tuple[str, str] = ("train", "test")) -> Path:
    """The first images of BCCD; with the names of COCO's splits also in its layout."""
    (root / "annotations").mkdir(parents=True)
    for split, ours, count in (("train", names[0], train), ("test", names[1], test)):
        content = json.loads((BCCD / "annotations" / f"instances_{split}.json").read_text())
        content["images"] = content["images"][:count]
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in kept]
        (root / "annotations" / f"instances_{ours}.json").write_text(json.dumps(content))
        folder = root / ("images" if ours == split else ours)
        folder.mkdir(exist_ok=True)
        for image in content["images"]:
            shutil.copy(BCCD / "images" / image["file_name"], folder)
    return root
