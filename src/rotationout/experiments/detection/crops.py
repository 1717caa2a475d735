"""Random scales, crops and mirrors of images and of the boxes in them: all of a batch at once, on any device.

An image is scaled so that its longer side has a random number of pixels. A square window is then placed on it at
random, or, if the image is smaller than the window, the image in the window. Half of the images are mirrored. This is
the augmentation of DropBlock's detectors (Ghiasi et al. 2018), which the paper follows. Four numbers describe it, the
*plan* of an image: the longer side, the offsets of the window to the right and down as fractions (0 to 1) of what is
possible, and whether the image is mirrored. Where the window shows no image it has the colour `FILL`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["cut", "draw_plans", "fixed_plans", "move", "restore"]

FILL = (124, 116, 104)
"""The mean of ImageNet's pixels as bytes: about zero after normalisation."""
LEAST_SEEN = 0.25
"""Boxes with less than this share of their area in the window are dropped."""
LEAST_SIDE = 2.0
"""Boxes whose shorter side in the window has fewer pixels than this are dropped, too."""


def draw_plans(count: int, scales: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draw the plans of ``count`` images, (count, 4), fp32, on the CPU; longer sides are uniform between the scales.

    >>> plans = draw_plans(1000, (512, 768), torch.Generator().manual_seed(0))
    >>> plans[:, 0].aminmax().min >= 512, plans[:, 3].unique()
    (tensor(True), tensor([0., 1.]))
    """
    low, high = scales
    plans = torch.rand(count, 4, generator=generator)
    plans[:, 0] = low + (high - low) * plans[:, 0]
    plans[:, 3] = (plans[:, 3] < 0.5).float()
    return plans


def fixed_plans(count: int, window: int) -> Tensor:
    """Plans for tests: images scaled to the window, in its upper left corner, not mirrored."""
    return torch.tensor([float(window), 0, 0, 0]).expand(count, 4)


def _placed(sizes: Tensor, plans: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """The scale of each image, and the offsets of the window from its corner, right and down, in scaled pixels.

    All three are (N, 1).
    """
    scale = plans[:, :1] / sizes.amax(1, keepdim=True)
    height, width = (sizes * scale).unsqueeze(1).unbind(2)
    return scale, plans[:, 1:2] * (width - window), plans[:, 2:3] * (height - window)


def cut(pixels: Tensor, sizes: Tensor, plans: Tensor, window: int) -> Tensor:
    """The window on each image, (N, 3, window, window), uint8, by bilinear interpolation.

    Args:
        pixels: images of up to H × W pixels, each in the upper left of (N, 3, H, W), uint8.
        sizes: height and width of each image, (N, 2).
        plans: the plan of each image, (N, 4).
        window: side of the window in pixels.
    """
    scale, right, down = _placed(sizes, plans, window)
    place = torch.arange(window, device=pixels.device) + 0.5
    columns = torch.where(plans[:, 3:] > 0, window - place, place)
    x, y = (columns + right) / scale - 0.5, (place + down) / scale - 0.5  # 0 is the centre of the image's first pixel
    height, width = sizes.unsqueeze(1).unbind(2)
    inside = ((y > -0.5) & (y < height - 0.5)).unsqueeze(2) & ((x > -0.5) & (x < width - 0.5)).unsqueeze(1)
    # Within half a pixel of the border, repeat the border pixels.
    x, y = x.clamp(min=0).minimum(width - 1.0), y.clamp(min=0).minimum(height - 1.0)
    x, y = 2 * x / max(pixels.size(3) - 1, 1) - 1, 2 * y / max(pixels.size(2) - 1, 1) - 1
    grid = torch.stack([x.unsqueeze(1).expand(-1, window, -1), y.unsqueeze(2).expand(-1, -1, window)], dim=3)
    seen = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=True)
    fill = torch.stack([seen.new_full((), value) for value in FILL]).view(3, 1, 1)
    return torch.where(inside.unsqueeze(1), seen, fill).round().to(torch.uint8)


def move(boxes: Tensor, labels: Tensor, sizes: Tensor, plans: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The boxes, (N, G, 4), in the coordinates of the window and clipped to it, and labels, −1 for dropped boxes."""
    scale, right, down = (value.unsqueeze(2) for value in _placed(sizes, plans, window))
    x, y = boxes[..., 0::2] * scale - right, boxes[..., 1::2] * scale - down
    x = torch.where(plans[:, 3:].unsqueeze(2) > 0, window - x.flip(2), x)
    whole = (x[..., 1] - x[..., 0]) * (y[..., 1] - y[..., 0])
    x, y = x.clamp(0, window), y.clamp(0, window)
    width, height = x[..., 1] - x[..., 0], y[..., 1] - y[..., 0]
    kept = (labels >= 0) & (width * height >= LEAST_SEEN * whole) & (torch.minimum(width, height) >= LEAST_SIDE)
    moved = torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], dim=2)
    return moved.masked_fill(~kept.unsqueeze(2), 0), labels.masked_fill(~kept, -1)


def restore(boxes: Tensor, size: Tensor, window: int) -> Tensor:
    """Map boxes (K, 4) in the window of `fixed_plans` back to the image, and clip them to it."""
    height, width = size.tolist()
    found = boxes * (max(height, width) / window)
    return torch.stack([found[:, 0::2].clamp(0, width), found[:, 1::2].clamp(0, height)], dim=2).flatten(1)
