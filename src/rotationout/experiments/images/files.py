"""Where images are found: in torchvision's ImageFolder layout, or packed, a file for each split.

*Folders*: ``<split>/<class>/<image>``, classes in the order of their names. *Packed*: ``<split>.pt``, which holds the
files of a split as they are, one after the other; one file travels where thirteen thousand do not like to.
"""

from __future__ import annotations

import abc
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..pixels import decode

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ENDINGS", "Files", "Folder", "Packed", "check_classes", "open_split", "pack"]

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Of the names of images, as torchvision has them."""
VERSION = 1


@dataclass(frozen=True)
class Files(abc.ABC):
    """The images of a split, not decoded.

    Attributes:
        split: its name.
        classes: names of the classes, in order.
        names: of the images, ``<class>/<file>``.
        labels: the number of the class of each.
    """

    split: str
    classes: list[str]
    names: list[str]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.names)

    @abc.abstractmethod
    def read(self, index: int) -> bytes:
        """The bytes of a file, which may raise an OSError."""

    def decode(self, index: int) -> tuple[Image, bool]:
        """An image in RGB, and whether it had to be converted: `rotationout.experiments.pixels.decode`."""
        return decode(self.names[index], partial(self.read, index))


@dataclass(frozen=True)
class Folder(Files):
    """Images in folders, read when they are wanted."""

    root: str

    def read(self, index: int) -> bytes:
        """From the disk."""
        return Path(self.root, self.names[index]).read_bytes()


@dataclass(frozen=True)
class Packed(Files):
    """Images in one piece of memory.

    Attributes:
        content: all files one after the other, uint8.
        ends: where each ends, int64.
    """

    content: Tensor
    ends: Tensor

    def read(self, index: int) -> bytes:
        """From memory."""
        start = int(self.ends[index - 1]) if index else 0
        return bytes(self.content[start : int(self.ends[index])].numpy().data)


def open_split(path: Path | str, split: str) -> Files:
    """The images of a split: ``path/split.pt`` if there is one, or those in ``path/split/<class>/``."""
    root = Path(path)
    if (root / f"{split}.pt").is_file():
        return _load(root / f"{split}.pt", split)
    folder = root / split
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if not classes:
        raise FileNotFoundError(
            f"{folder} has no folder for each class, and there is no {split}.pt; the path must be that of a folder "
            "with train/<class>/<image> and val/<class>/<image>, or with what `rotationout images` wrote"
        )
    names, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(entry.name for entry in os.scandir(folder / name) if entry.name.lower().endswith(ENDINGS))
        if not found:
            raise ValueError(
                f"{folder / name} has no images (names that end in {', '.join(ENDINGS)}): a class needs some; remove "
                "the folder here and in the other split if there is no such class"
            )
        names += [f"{name}/{file}" for file in found]
        labels += [label] * len(found)
    return Folder(split, classes, names, labels, str(folder))


def check_classes(train: Files, test: Files) -> None:
    """An error unless both splits have the same classes."""
    for one, other in ((test, train), (train, test)):
        alone = sorted(set(one.classes) - set(other.classes))
        if alone:
            raise ValueError(
                f"{len(alone)} classes of {one.split!r} are not in {other.split!r}: {', '.join(alone[:5])}"
                f"{', …' if len(alone) > 5 else ''}; both must have the same folders"
            )


def pack(path: Path | str, folder: Path, splits: Sequence[str] = ("train", "val")) -> list[Path]:
    """Write the files of some splits as they are to ``folder/<split>.pt``; where they went."""
    written = []
    for split in splits:
        files = open_split(path, split)
        pieces = [files.read(index) for index in range(len(files))]
        content = {
            "version": VERSION,
            **{name: getattr(files, name) for name in ("split", "classes", "names", "labels")},
            "content": torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8),
            "ends": torch.tensor([len(piece) for piece in pieces]).cumsum(0),
        }
        target = folder / f"{split}.pt"
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            torch.save(content, temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        written.append(target)
    return written


def _load(path: Path, split: str) -> Packed:
    """What `pack` wrote, read without running anything in it."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        version = content.pop("version")
        files = Packed(**content)
        sound = files.split == split and len(files) == len(files.labels) == len(files.ends) > 0
        sound = sound and int(files.ends[-1]) == len(files.content)
        sound = sound and sorted(Counter(files.labels)) == list(range(len(files.classes)))
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"{path} does not hold packed images, or is damaged; pack them again: `rotationout images`"
        ) from error
    if version != VERSION or not sound:
        raise ValueError(f"{path} does not hold the images of {split!r} as they are packed now: `rotationout images`")
    return files
