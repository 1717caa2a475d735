"""The network of Table 3: torchvision's RetinaNet on a ResNet with a feature pyramid."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from ..results import check_readable

__all__ = ["BACKBONES", "Detector", "load_weights"]

BACKBONES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
"""For each backbone the class of its blocks, and their number in every stage."""
STRIDES = (8, 16, 32, 64, 128)
"""The stride of every map of the pyramid, in pixels of the image."""
ANCHORS = 9
"""Anchors at every position: three sizes of three shapes."""
DETECTIONS = 100
"""The largest number of detections per image; COCO's score uses no more."""


class Detector(RetinaNet):  # type: ignore[misc]  # torchvision has no types
    """RetinaNet: predicts the class and the box of every anchor. Anchors and decoding are torchvision's.

    BatchNorm is trained, as it must be with random initial weights; torchvision's own detectors freeze it.

    Args:
        classes: the number of classes, without the background.
        backbone: one of `BACKBONES`.
        layers: blocks of each stage, if not the backbone's own.
        width: channels of the pyramid and of the head.
        head_norm: GroupNorm after the convolutions of the head, as in torchvision's second version. Without it, as in
            Lin et al., four layers with such small initial weights pass on little of the signal: enough with a
            backbone pretrained on ImageNet, but training from random weights starts slowly.
        weights: pretrained weights of the whole ResNet, in torchvision's format, instead of random ones.
    """

    def __init__(
        self,
        classes: int,
        backbone: str = "resnet50",
        *,
        layers: tuple[int, ...] | None = None,
        width: int = 256,
        head_norm: bool = True,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        block, depth = BACKBONES[backbone]
        body = ResNet(block, list(layers or depth))
        if weights is not None:
            try:
                body.load_state_dict(weights)
            except RuntimeError as error:
                raise ValueError(f"weights do not fit the backbone {backbone!r}: {error}") from error
        channels = [64 * block.expansion * 2**k for k in (1, 2, 3)]
        pyramid = BackboneWithFPN(
            body,
            {f"layer{k}": str(k) for k in (2, 3, 4)},
            channels,
            width,
            extra_blocks=LastLevelP6P7(width, width),
        )
        norm = partial(nn.GroupNorm, min(32, width // 2)) if head_norm else None
        head = RetinaNetHead(width, ANCHORS, classes, norm_layer=norm)
        super().__init__(pyramid, classes, head=head, detections_per_img=DETECTIONS)

    @property
    def body(self) -> nn.Module:
        """The stages of the ResNet."""
        found: nn.Module = self.backbone.body
        return found

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, A, classes) and deltas (N, A, 4) for normalised images (N, 3, H, W)."""
        found = self.head(list(self.backbone(images).values()))
        return found["cls_logits"], found["bbox_regression"]

    def anchors(self, side: int) -> list[Tensor]:
        """The anchors on a square image, a tensor for each map of the pyramid; ``side`` is a multiple of 128."""
        grids = [[side // stride] * 2 for stride in STRIDES]
        made: list[Tensor] = self.anchor_generator.grid_anchors(grids, [[stride] * 2 for stride in STRIDES])
        return made

    @torch.no_grad()
    def detect(self, logits: Tensor, deltas: Tensor, anchors: list[Tensor], side: int) -> list[dict[str, Tensor]]:
        """The detections in each square image: boxes, scores and labels, ordered by falling score."""
        counts = [len(level) for level in anchors]
        outputs = {"cls_logits": logits.split(counts, 1), "bbox_regression": deltas.split(counts, 1)}
        images = len(logits)
        found: list[dict[str, Tensor]] = self.postprocess_detections(
            outputs, [anchors] * images, [(side, side)] * images
        )
        return found


def load_weights(path: Path) -> dict[str, Tensor]:
    """Load the weights of a ResNet from torchvision's checkpoint; its classifier is not used."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; initialization = 'imagenet' needs torchvision's checkpoint of the backbone there"
        )
    check_readable(path)
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        weights["conv1.weight"], weights["layer4.0.bn1.running_var"]
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{path} does not hold weights of torchvision's ResNet, or is damaged") from error
    return weights
