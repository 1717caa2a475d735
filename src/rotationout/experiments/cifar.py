"""CIFAR-100 (Krizhevsky 2009): read from its standard files, kept on one device, and augmented there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .results import check_readable

__all__ = ["MEAN", "STD", "Images", "augment", "draw_cuts", "load"]

CLASSES, SIZE, PADDING = 100, 32, 4
COUNTS = {"train": 50_000, "test": 10_000}
_SHARES = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
MEAN, STD = ((255 * torch.tensor(values)).tolist() for values in _SHARES)  # rounded as in runs that are recorded
"""Mean and standard deviation of the training pixels per channel, on the scale of bytes."""


@dataclass(frozen=True)
class Images:
    """Images (N, 3, 32, 32), uint8, and their labels (N,), int64."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Images:
        """The same images on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def split(self, held_out: int, seed: int) -> tuple[Images, Images]:
        """All but ``held_out`` of the images, and the held-out ones; ``seed`` alone decides which ones these are."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        kept, held = order[held_out:], order[:held_out]
        return Images(self.pixels[kept], self.labels[kept]), Images(self.pixels[held], self.labels[held])


def load(root: Path | str, split: str) -> Images:
    """Read the ``"train"`` or ``"test"`` images. ``root`` is ``cifar-100-python/``, or the folder that holds it.

    The files are pickles. A restricted unpickler reads them, which makes arrays and plain types only.
    """
    folder = Path(root)
    folder = folder if folder.name == "cifar-100-python" else folder / "cifar-100-python"
    path = folder / split
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; give the folder that holds cifar-100-python/{{train,test}}, as unpacked from "
            "cifar-100-python.tar.gz"
        )
    check_readable(path)
    try:
        with path.open("rb") as file:
            content = _Plain(file, encoding="latin1").load()
        pixels = content["data"].bytes.view(-1, 3, SIZE, SIZE)
        labels = torch.as_tensor(content["fine_labels"], dtype=torch.int64)
        counts = labels.bincount(minlength=CLASSES)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"{path} is not a CIFAR-100 file, or is damaged: {error}") from error
    if len(pixels) != len(labels) or len(labels) != COUNTS[split]:
        raise ValueError(
            f"{path} must hold {COUNTS[split]:,} images with a label each, got {len(pixels):,} images and "
            f"{len(labels):,} labels"
        )
    if len(counts) != CLASSES or not bool((counts == COUNTS[split] // CLASSES).all()):
        raise ValueError(f"{path} must hold {COUNTS[split] // CLASSES} images of each of {CLASSES} classes")
    return Images(pixels, labels)


class _Bytes:
    """Stands for a numpy array of bytes while unpickling."""

    bytes: Tensor

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or kind.name not in ("u1", "|u1", "uint8") or fortran:
            raise pickle.UnpicklingError("it holds an array that is not of bytes in row-major order")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        self.bytes = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)


class _Kind:
    """Stands for a numpy dtype while unpickling."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


class _Plain(pickle.Unpickler):
    """An unpickler for arrays of bytes and plain types only: any other class could run code."""

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Bytes(),
            ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Bytes(),
            ("numpy", "ndarray"): _Bytes,
            ("numpy", "dtype"): _Kind,
            ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # how protocol 2 of Python 3 writes bytes
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it wants to import {module}.{name}")
        return known[module, name]


def draw_cuts(count: int, generator: torch.Generator) -> Tensor:
    """Draw random crops: for each image its offset down, its offset right, and whether to mirror it, (count, 3).

    >>> draw_cuts(1000, torch.Generator().manual_seed(0)).amax(0)
    tensor([8, 8, 1])
    """
    return torch.stack([torch.randint(n, (count,), generator=generator) for n in (*(2 * PADDING + 1,) * 2, 2)], dim=1)


def augment(pixels: Tensor, cuts: Tensor) -> Tensor:
    """Pad by 4 black pixels, crop 32 × 32 pixels, and mirror some of the images (He et al. 2016).

    ``cuts`` has the crop of every image, see `draw_cuts`; all are taken in one gather, on the device of the images.
    """
    padded = torch.nn.functional.pad(pixels, (PADDING,) * 4)
    down, right, mirrored = cuts.unsqueeze(-1).unbind(1)
    place = torch.arange(SIZE, device=pixels.device)
    rows = down + place
    columns = right + torch.where(mirrored == 1, SIZE - 1 - place, place)
    image = torch.arange(len(pixels), device=pixels.device)
    return padded.movedim(1, -1)[image[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
