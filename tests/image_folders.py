"""Folders of random images, whole and spoilt, for the tests of Table 2; and where Imagewoof is."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image

WOOF = Path(__file__).parents[2] / "shared" / "data" / "imagewoof"
needs_woof = pytest.mark.skipif(not WOOF.is_dir(), reason=f"Imagewoof is not at {WOOF}")


def picture(seed: int, size: tuple[int, int] = (20, 16), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    bands = {"RGB": 3, "L": 1, "CMYK": 4, "P": 1, "RGBA": 4}[mode]
    source = torch.Generator().manual_seed(seed)
    content = torch.randint(256, (size[0] * size[1] * bands,), dtype=torch.uint8, generator=source)
    file = io.BytesIO()
    Image.frombytes(mode, size, bytes(content.tolist())).save(file, kind)
    return file.getvalue()


def data_set(root: Path, classes: int = 2, train: int = 12, val: int = 4) -> Path:
    """Of random images, with something beside them that is none."""
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            folder = root / split / f"n{label}"
            folder.mkdir(parents=True)
            (folder / "Thumbs.db").write_bytes(b"no image")
            for number in range(count):
                shape = (16 + number % 5, 16) if number % 2 else (16, 16 + number % 5)
                (folder / f"{number:02}.JPEG").write_bytes(picture(100 * label + number + len(split), shape))
    return root


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "damaged image": lambda content: content[: len(content) // 2],
    "empty file": lambda content: b"",
    "no image": lambda content: b"GIF, or so it says",
}


def spoil(path: Path, how: str) -> None:
    path.write_bytes(SPOILT[how](path.read_bytes()))
