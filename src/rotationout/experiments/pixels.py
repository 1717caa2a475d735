"""Files of images to pixels: decoded to RGB, all of a split at once if they are to be held, and normalised."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TextIO, TypeVar

import torch
from torch import Tensor

from .problems import Problem, UnusableError, refuse_if_many, report_all

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MEAN", "STD", "Normalize", "decode", "read_all", "to_tensor"]

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's training pixels as bytes, per channel, as torchvision has them."""
MOST_THREADS = 16
"""Pillow lets go of the interpreter while it decodes, but not between images: more threads would only wait for it."""

T = TypeVar("T")


def decode(name: str, read: Callable[[], bytes]) -> tuple[Image, bool]:
    """An image in RGB, and whether it had to be converted, as one in grey or CMYK. EXIF's rotation is not looked at.

    Args:
        name: what it is called if it is `rotationout.experiments.problems.UnusableError`.
        read: gives the bytes of its file.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(
            "images are decoded by Pillow, of the extra vision: pip install 'rotationout[vision]'"
        ) from error

    try:
        content = read()
    except FileNotFoundError as error:
        raise UnusableError("missing image", f"{name} is missing") from error
    except OSError as error:
        raise UnusableError("unreadable file", f"{name} cannot be read: {error}") from error
    if not content:
        raise UnusableError("empty file", f"{name} is empty")
    try:
        image = Image.open(io.BytesIO(content))
        return image.convert("RGB"), image.mode != "RGB"
    except UnidentifiedImageError as error:
        raise UnusableError("no image", f"{name} is no image of a format that Pillow knows") from error
    except Exception as error:  # a damaged file can raise anything
        raise UnusableError("damaged image", f"{name} is damaged or cut off: {error}") from error


def to_tensor(image: Image) -> Tensor:
    """Its bytes, (3, height, width)."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1)


def read_all(
    split: str, names: Sequence[str], read: Callable[[int], T], out: TextIO | None = None
) -> tuple[list[T], dict[int, Problem]]:
    """What ``read`` makes of all images of a split, in threads, and why it could not, by the places of the images.

    Args:
        split: its name.
        names: of its images.
        read: makes something of an image, by its place; may raise `rotationout.experiments.problems.UnusableError`.
        out: where to report what is left out, stderr if not given. More than a tenth is an error.

    >>> read_all("val", ["a", "b"], lambda place: 10 * place)
    ([0, 10], {})
    """

    def attempt(place: int) -> T | Problem:
        try:
            return read(place)
        except UnusableError as error:
            return error.problem(split, names[place])

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        found = list(pool.map(attempt, range(len(names))))
    bad = {place: item for place, item in enumerate(found) if isinstance(item, Problem)}
    report_all(bad.values(), out)
    refuse_if_many(bad.values(), [split] * len(names), "images")
    return [item for item in found if not isinstance(item, Problem)], bad


class Normalize:
    """Makes what a network is given of bytes of images: about mean 0 and variance 1, in the layout that is fastest.

    Args:
        device: where the images are.
    """

    def __init__(self, device: torch.device) -> None:
        self.mean, self.std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))

    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, 3, H, W), bytes or numbers between 0 and 255."""
        return ((pixels.float() - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
