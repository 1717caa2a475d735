"""Random scales, crops and mirrors of images and of the boxes in them: all of a batch at once, on any device.

An image is scaled so that its longer side has so many pixels, laid at random under (or, if it is smaller, into) a
square window, and mirrored or not: the augmentation of DropBlock's detectors (Ghiasi et al. 2018), which the paper
follows. What an image goes through is four numbers, its *plan*: the longer side, how far to the right and down of what
is possible the window lies (0 to 1), and whether it is mirrored. Where there is no image the window has `FILL`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["cut", "draw_plans", "move", "restore", "still_plans"]

FILL = (124, 116, 104)
"""The mean of ImageNet's pixels as bytes: about zero for the network."""
LEAST_SEEN = 0.25
"""Boxes of which less than this share of the area lies in the window are dropped."""
LEAST_SIDE = 2.0
"""So are those that have fewer pixels than this from side to side."""


def draw_plans(count: int, scales: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Plans for so many images, (count, 4), fp32, on the CPU; longer sides are uniform between the scales.

    >>> plans = draw_plans(1000, (512, 768), torch.Generator().manual_seed(0))
    >>> plans[:, 0].aminmax().min >= 512, plans[:, 3].unique()
    (tensor(True), tensor([0., 1.]))
    """
    low, high = scales
    plans = torch.rand(count, 4, generator=generator)
    plans[:, 0] = low + (high - low) * plans[:, 0]
    plans[:, 3] = (plans[:, 3] < 0.5).float()
    return plans


def still_plans(count: int, window: int) -> Tensor:
    """Plans for tests: images as large as the window, in its upper left corner, not mirrored."""
    return torch.tensor([float(window), 0, 0, 0]).expand(count, 4)


def _placed(sizes: Tensor, plans: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """The scale of each image, (N, 1), and how far right and down of its corner the window begins, after scaling."""
    scale = plans[:, :1] / sizes.amax(1, keepdim=True)
    height, width = (sizes * scale).unsqueeze(1).unbind(2)
    return scale, plans[:, 1:2] * (width - window), plans[:, 2:3] * (height - window)


def cut(pixels: Tensor, sizes: Tensor, plans: Tensor, window: int) -> Tensor:
    """What the window shows of each image, (N, 3, window, window), uint8, bilinear.

    Args:
        pixels: images of up to (H, W) pixels in the upper left of (N, 3, H, W), uint8.
        sizes: height and width of each, (N, 2).
        plans: what each goes through, (N, 4).
        window: pixels of a side.
    """
    scale, right, down = _placed(sizes, plans, window)
    place = torch.arange(window, device=pixels.device) + 0.5
    columns = torch.where(plans[:, 3:] > 0, window - place, place)
    x, y = (columns + right) / scale - 0.5, (place + down) / scale - 0.5  # 0 is the centre of the image's first pixel
    height, width = sizes.unsqueeze(1).unbind(2)
    inside = ((y > -0.5) & (y < height - 0.5)).unsqueeze(2) & ((x > -0.5) & (x < width - 0.5)).unsqueeze(1)
    # Half a pixel around the centres at the border is as they are.
    x, y = x.clamp(min=0).minimum(width - 1.0), y.clamp(min=0).minimum(height - 1.0)
    x, y = 2 * x / max(pixels.size(3) - 1, 1) - 1, 2 * y / max(pixels.size(2) - 1, 1) - 1
    grid = torch.stack([x.unsqueeze(1).expand(-1, window, -1), y.unsqueeze(2).expand(-1, -1, window)], dim=3)
    seen = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=True)
    fill = torch.stack([seen.new_full((), value) for value in FILL]).view(3, 1, 1)
    return torch.where(inside.unsqueeze(1), seen, fill).round().to(torch.uint8)


def move(boxes: Tensor, labels: Tensor, sizes: Tensor, plans: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The boxes, (N, G, 4), where the window shows them, clipped to it, and their labels, −1 where none is left."""
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
    """Boxes (K, 4) that were found in the window of a `still_plans` where they are in the image, clipped to it."""
    height, width = size.tolist()
    found = boxes * (max(height, width) / window)
    return torch.stack([found[:, 0::2].clamp(0, width), found[:, 1::2].clamp(0, height)], dim=2).flatten(1)
