"""RetinaNet's loss (Lin et al. 2017) for padded boxes: with fixed shapes and without synchronisation with the host.

It equals torchvision's `RetinaNet.compute_loss`, which works image by image, with indices whose number depends on the
data. Here the targets of all anchors of all images are computed at once, so that a CUDA graph can capture it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.models.detection._utils import encode_boxes
from torchvision.ops import box_iou, sigmoid_focal_loss

__all__ = ["BACKGROUND", "IGNORED", "detection_loss", "match"]

FOREGROUND_IOU, BACKGROUND_IOU = 0.5, 0.4
"""An anchor with at least the first overlap (IoU) is matched to a box; below the second it is background; in between it
has no part in the loss."""
BACKGROUND, IGNORED = -1, -2
"""What `match` returns for background, and for anchors in between."""


@torch.no_grad()
def match(boxes: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Match every anchor to a box of its image: the index of the box, or `BACKGROUND`, or `IGNORED`, (N, A).

    An anchor is matched to the box that it overlaps most, if by `FOREGROUND_IOU` or more. The anchors that overlap a
    box most are matched even if that overlap is small.

    Args:
        boxes: (N, G, 4).
        labels: (N, G); negative where there is no box.
        anchors: (A, 4).

    >>> anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 20], [30, 30, 40, 40]])
    >>> match(torch.tensor([[[0.0, 0, 10, 11]]]), torch.tensor([[0]]), anchors)
    tensor([[ 0,  0, -1]])
    """
    images, most, _ = boxes.shape
    overlaps = box_iou(boxes.reshape(-1, 4), anchors).view(images, most, -1)
    overlaps = torch.where((labels >= 0).unsqueeze(2), overlaps, -1.0)
    best, nearest = overlaps.max(1)
    matched = nearest.masked_fill(best < FOREGROUND_IOU, IGNORED).masked_fill(best < BACKGROUND_IOU, BACKGROUND)
    peak = overlaps.amax(2, keepdim=True)
    wanted = ((overlaps == peak) & (peak > 0)).any(1)
    return torch.where(wanted, nearest, matched)


def detection_loss(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> Tensor:
    """Focal loss of the classes plus L1 loss of the boxes, divided by the number of matched anchors, per image: (N,).

    As every image has its own divisor (at least 1), the mean of a batch is the mean of its parts: processes that share
    a batch need not exchange the numbers of matched anchors.

    Args:
        logits: scores of all classes for every anchor, (N, A, K).
        deltas: predicted offsets from anchors to boxes, in torchvision's encoding, (N, A, 4).
        anchors: (A, 4).
        boxes: (N, G, 4).
        labels: (N, G); negative where there is no box.
        alpha: the weight of objects; background has 1 − alpha.
        gamma: the exponent of the focal loss: the larger, the less an easy anchor counts.
    """
    images, count, classes = logits.shape
    matched = match(boxes, labels, anchors)
    found = matched >= 0
    box = matched.clamp(min=0)
    kind = labels.gather(1, box)
    target = (kind.unsqueeze(2) == torch.arange(classes, device=logits.device)) & found.unsqueeze(2)
    focal = sigmoid_focal_loss(logits, target.to(logits.dtype), alpha, gamma)
    focal = focal.sum(2).masked_fill(matched == IGNORED, 0).sum(1)

    own = boxes.gather(1, box.unsqueeze(2).expand(-1, -1, 4))
    every = anchors.expand(images, -1, -1)
    own = torch.where(found.unsqueeze(2), own, every).view(-1, 4)  # no box: a target with finite logarithms
    wanted = encode_boxes(own, every.reshape(-1, 4), anchors.new_ones(4)).view(images, count, 4)
    distance = (deltas - wanted).abs().sum(2).masked_fill(~found, 0).sum(1)
    total: Tensor = (focal + distance) / found.sum(1).clamp(min=1)
    return total
