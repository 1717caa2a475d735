"""Random crops of a batch of images: the boxes are drawn on the CPU, and all crops are resampled at once on the device.

Boxes are drawn as by torchvision's RandomResizedCrop, the crops of Szegedy et al. 2015: an area between 8 % and all of
the image, a ratio of the sides between 3/4 and 4/3. Resampling is linear in the pixels and separable: a crop is A·X·Bᵀ
with two small matrices for every image, whose rows are the weights of a bilinear filter with antialiasing. These
products have fixed shapes, whatever the sizes of the images, so that a CUDA graph can capture them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["centre_boxes", "draw_boxes", "resample"]

AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def draw_boxes(sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a random box in each image, and whether to mirror it.

    Ten boxes are drawn per image, and the first that fits is used; if none fits, the largest centred box with an
    allowed ratio.

    Args:
        sizes: height and width of every image, (N, 2), int64, on the CPU.
        generator: the generator that draws them.

    Returns:
        top, left, height, width, mirrored: (N, 5), int64.

    >>> boxes = draw_boxes(torch.tensor([[128, 160]] * 1000), torch.Generator().manual_seed(0))
    >>> bool((boxes[:, :2] + boxes[:, 2:4] <= torch.tensor([128, 160])).all()), boxes[:, 2:].amin(0).tolist()
    (True, [37, 37, 0])
    """
    count = len(sizes)
    high, wide = sizes.double().unsqueeze(-1).unbind(1)  # (N, 1) each
    area = high * wide * _uniform(*AREA, (count, TRIES), generator)
    ratio = _uniform(math.log(RATIO[0]), math.log(RATIO[1]), (count, TRIES), generator).exp()
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (width <= wide) & (height <= high) & (width > 0) & (height > 0)
    first = fits.int().argmax(1, keepdim=True)  # argmax returns the first maximum
    height, width = height.gather(1, first), width.gather(1, first)
    place = _uniform(0.0, 1.0, (count, 2), generator)
    top = (place[:, :1] * (high - height + 1)).floor()
    left = (place[:, 1:] * (wide - width + 1)).floor()
    largest = _largest_boxes(high, wide)
    mirrored = torch.randint(2, (count, 1), generator=generator)
    boxes = torch.where(fits.any(1, keepdim=True), torch.cat([top, left, height, width], 1), largest)
    return torch.cat([boxes.long(), mirrored], dim=1)


def _largest_boxes(high: Tensor, wide: Tensor) -> Tensor:
    height = torch.minimum(high, (wide / RATIO[0]).round())
    width = torch.minimum(wide, (high * RATIO[1]).round())
    return torch.cat([(high - height).div(2).floor(), (wide - width).div(2).floor(), height, width], dim=1)


def _uniform(low: float, high: float, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)


def centre_boxes(sizes: Tensor, size: int) -> Tensor:
    """The box of ``size`` × ``size`` pixels in the middle of each image, (N, 5).

    >>> centre_boxes(torch.tensor([[128, 161]]), 128)
    tensor([[  0,  16, 128, 128,   0]])
    """
    corner = ((sizes - size).double() / 2).round().long()  # as torchvision's CenterCrop
    shape = torch.tensor([size, size, 0]).expand(len(sizes), 3)
    return torch.cat([corner, shape], dim=1)


def resample(pixels: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Resize the content of each box to ``size`` × ``size`` pixels, in fp32.

    The same as torchvision's ``resized_crop`` with antialiasing, but all at once, and not rounded to bytes.

    Args:
        pixels: (N, C, H, W); pixels outside the boxes have no influence.
        boxes: top, left, height, width, mirrored: (N, 5).
        size: side of the result.

    >>> image = torch.arange(16.0).view(1, 1, 4, 4)
    >>> resample(image, torch.tensor([[1, 0, 2, 4, 1]]), 2)
    tensor([[[[ 6.2857,  4.7143],
              [10.2857,  8.7143]]]])
    """
    top, left, height, width, mirrored = boxes.view(-1, 5, 1, 1).unbind(1)
    down = _weights(top, height, size, pixels.size(-2))
    right = _weights(left, width, size, pixels.size(-1))
    right = torch.where(mirrored == 1, right.flip(1), right)
    with torch.autocast(pixels.device.type, enabled=False):
        return down.unsqueeze(1) @ pixels.float() @ right.mT.unsqueeze(1)


def _weights(start: Tensor, length: Tensor, size: int, extent: int) -> Tensor:
    """Triangular weights of each of ``extent`` input pixels in each of ``size`` output pixels, (N, size, extent)."""
    step = length / size
    reach = step.clamp(min=1)  # a wider filter where the image shrinks: antialiasing
    centre = start + (torch.arange(size, device=start.device).view(1, -1, 1) + 0.5) * step
    pixel = torch.arange(extent, device=start.device) + 0.5
    inside = (pixel > start) & (pixel < start + length)
    weight = (1 - (pixel - centre).abs() / reach).clamp(min=0) * inside
    return weight / weight.sum(-1, keepdim=True)
