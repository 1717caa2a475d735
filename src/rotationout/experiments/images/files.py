"""The files of a data set of images: in torchvision's ImageFolder layout, or packed into one file for each split.

*Folders*: ``<split>/<class>/<image>``, classes in the order of their names. *Packed*: ``<split>.pt``, which holds the
undecoded files of a split one after the other; it is easier to copy than thousands of small files.
"""

from __future__ import annotations

import abc
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..pixels import decode, fetch
from ..problems import Problem, UnusableError, refuse_if_many
from ..results import check_readable, write_whole

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ENDINGS", "Files", "Folder", "Packed", "check_classes", "open_split", "pack"]

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the names of images, from torchvision."""
VERSION = 1


@dataclass(frozen=True)
class Files(abc.ABC):
    """The image files of a split, not decoded.

    Attributes:
        split: the name of the split.
        classes: names of the classes, in order.
        names: names of the images, ``<class>/<file>``.
        labels: for each image the number of its class.
    """

    split: str
    classes: list[str]
    names: list[str]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.names)

    @abc.abstractmethod
    def read(self, index: int) -> bytes:
        """The bytes of a file; may raise an OSError."""

    def decode(self, index: int) -> tuple[Image, bool]:
        """Decode an image to RGB; also, whether it had to be converted, see `rotationout.experiments.pixels.decode`."""
        return decode(self.names[index], partial(self.read, index))


@dataclass(frozen=True)
class Folder(Files):
    """Image files in folders, read from the disk when they are needed."""

    root: str

    def read(self, index: int) -> bytes:
        """Read the file from the disk."""
        return Path(self.root, self.names[index]).read_bytes()


@dataclass(frozen=True)
class Packed(Files):
    """Image files in memory, as one tensor.

    Attributes:
        content: all files one after the other, uint8.
        ends: the offset at which each file ends, int64.
    """

    content: Tensor
    ends: Tensor

    def read(self, index: int) -> bytes:
        """Copy the file from memory."""
        start = int(self.ends[index - 1]) if index else 0
        return bytes(self.content[start : int(self.ends[index])].numpy().data)


def open_split(path: Path | str, split: str) -> Files:
    """Open a split: the packed file ``path/split.pt`` if it exists, else the folders ``path/split/<class>/``."""
    root = Path(path)
    if (root / f"{split}.pt").is_file():
        return _load(root / f"{split}.pt", split)
    folder = root / split
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if not classes:
        raise FileNotFoundError(
            f"{folder} has no folder for each class, and there is no {split}.pt; the path must be that of a folder "
            "with train/<class>/<image> and val/<class>/<image>, or with the files that `rotationout images` writes"
        )
    names, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(entry.name for entry in os.scandir(folder / name) if entry.name.lower().endswith(ENDINGS))
        if not found:
            raise ValueError(
                f"{folder / name} has no images (names that end in {', '.join(ENDINGS)}): every class needs some; "
                "remove the folder here and in the other split if there is no such class"
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
    """Pack the undecoded files of some splits into ``folder/<split>.pt``; the paths written.

    A file that cannot be read, as a broken link, is reported and packed as an empty one: training leaves out that, too.
    """
    written = []
    for split in splits:
        files = open_split(path, split)
        pieces = _contents(files)
        content = {
            "version": VERSION,
            **{name: getattr(files, name) for name in ("split", "classes", "names", "labels")},
            "content": torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8),
            "ends": torch.tensor([len(piece) for piece in pieces]).cumsum(0),
        }
        target = folder / f"{split}.pt"
        write_whole(target, partial(torch.save, content))
        written.append(target)
    return written


def _contents(files: Files) -> list[bytes]:
    """The bytes of all files of a split, none for those that cannot be read."""
    pieces: list[bytes] = []
    problems: list[Problem] = []
    for index, name in enumerate(files.names):
        try:
            pieces.append(fetch(name, partial(files.read, index)))
        except UnusableError as error:
            pieces.append(b"")
            problems.append(error.problem(files.split, name))
            print(f"{files.split}, {error}; it is packed as an empty file, which is left out", file=sys.stderr)
    refuse_if_many(problems, {files.split: len(files)}, "images")
    return pieces


def _load(path: Path, split: str) -> Packed:
    """Read a file that `pack` wrote, without executing any code in it."""
    check_readable(path)
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
        raise ValueError(
            f"{path} does not hold the images of {split!r} in the format of this version; pack them again: "
            "`rotationout images`"
        )
    return files
