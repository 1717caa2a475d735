"""From image files to network inputs: decode to RGB with Pillow, read a whole split in threads, and normalise."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from .problems import Problem, UnusableError, refuse_if_many, report_all

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MEAN", "STD", "Normalize", "decode", "fetch", "read_all", "to_tensor"]

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and standard deviation of ImageNet's training pixels per channel, on the scale of bytes, from torchvision."""
MOST_THREADS = 16
"""Threads that decode images. Pillow releases the GIL only while it decodes: more threads would wait for it."""

T = TypeVar("T")


def decode(name: str, read: Callable[[], bytes]) -> tuple[Image, bool]:
    """Decode an image to RGB; also, whether it had to be converted, from grey or CMYK for example.

    EXIF's rotation is ignored. An image that cannot be used is a `rotationout.experiments.problems.UnusableError`.

    Args:
        name: the name of the image, for errors.
        read: returns the bytes of its file.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(
            "images are decoded by Pillow, part of the extra 'vision': pip install 'rotationout[vision]'"
        ) from error

    content = fetch(name, read)
    if not content:
        raise UnusableError("empty file", f"{name} is empty")
    try:
        image = Image.open(io.BytesIO(content))
        return image.convert("RGB"), image.mode != "RGB"
    except UnidentifiedImageError as error:
        raise UnusableError("no image", f"{name} is not an image in a format that Pillow knows") from error
    except Exception as error:  # a damaged file can raise anything
        raise UnusableError("damaged image", f"{name} is damaged or cut off: {error}") from error


def fetch(name: str, read: Callable[[], bytes]) -> bytes:
    """The bytes of an image's file, as ``read`` returns them; an `UnusableError` if they cannot be read."""
    try:
        return read()
    except FileNotFoundError as error:
        raise UnusableError("missing image", f"{name} is missing") from error
    except OSError as error:
        raise UnusableError("unreadable file", f"{name} cannot be read: {error}") from error


def to_tensor(image: Image) -> Tensor:
    """The pixels of an RGB image, (3, height, width), uint8."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1)


def read_all(split: str, names: Sequence[str], read: Callable[[int], T]) -> tuple[list[T], dict[int, Problem]]:
    """Call ``read`` for all images of a split, in threads; its results, and the problems by the index of the image.

    Images with problems are reported. If they are more than a tenth, that is an error.

    Args:
        split: the name of the split.
        names: the names of its images.
        read: reads the image of an index; may raise `rotationout.experiments.problems.UnusableError`.

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
    report_all(bad.values())
    refuse_if_many(bad.values(), [split] * len(names), "images")
    return [item for item in found if not isinstance(item, Problem)], bad


class Normalize:
    """Turns images in bytes into network inputs: about mean 0 and variance 1 per channel, in channels_last.

    Args:
        device: the device of the images.
        mean: of the pixels per channel, on the scale of bytes; that of ImageNet if not given.
        std: their standard deviation.
    """

    def __init__(self, device: torch.device, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        self.mean, self.std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (mean, std))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise (N, 3, H, W), bytes or floats between 0 and 255."""
        return ((pixels.float() - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
