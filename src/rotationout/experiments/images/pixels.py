"""Files to pixels: decoded to RGB, and small enough to be held."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .files import Files

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LONGEST", "ImageError", "Normalize", "decode", "fit", "to_tensor"]

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's training pixels as bytes, per channel, as torchvision has them."""

LONGEST = 4 / 3
"""Of an image that is held no more than so many times its short side is kept, about its middle."""


class ImageError(ValueError):
    """An image that cannot be used; ``reason`` is what records count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def decode(files: Files, index: int) -> tuple[Image, bool]:
    """An image in RGB, and whether it had to be converted, as one in grey or CMYK. EXIF's rotation is not looked at."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(
            "images are decoded by Pillow, of the extra vision: pip install 'rotationout[vision]'"
        ) from error

    name = f"{files.split}/{files.names[index]}"
    try:
        content = files.read(index)
    except OSError as error:
        raise ImageError("unreadable file", f"{name} cannot be read: {error}") from error
    if not content:
        raise ImageError("empty file", f"{name} is empty")
    try:
        image = Image.open(io.BytesIO(content))
        return image.convert("RGB"), image.mode != "RGB"
    except UnidentifiedImageError as error:
        raise ImageError("no image", f"{name} is no image of a format that Pillow knows") from error
    except Exception as error:  # a damaged file can raise anything
        raise ImageError("damaged image", f"{name} is damaged or cut off: {error}") from error


def fit(image: Image, size: int) -> Image:
    """The image with a short side of ``size`` pixels, and of its long side no more than `LONGEST` allows.

    >>> from PIL import Image
    >>> fit(Image.new("RGB", (500, 100)), 128).size, fit(Image.new("RGB", (128, 150)), 128).size
    ((170, 128), (128, 150))
    """
    short, long = sorted(image.size)
    longest = int(LONGEST * size)
    if short == size and long <= longest:
        return image
    kept = min(float(long), short * longest / size)
    shape = size, max(size, round(kept * size / short))
    start = (long - kept) / 2
    if image.width <= image.height:
        return image.resize(shape, box=(0, start, short, start + kept), resample=_bilinear())
    return image.resize(shape[::-1], box=(start, 0, start + kept, short), resample=_bilinear())


def _bilinear() -> int:
    from PIL.Image import Resampling

    return Resampling.BILINEAR


def to_tensor(image: Image) -> Tensor:
    """Its bytes, (3, height, width)."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1)


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
