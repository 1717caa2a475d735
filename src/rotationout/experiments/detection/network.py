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

__all__ = ["BACKBONES", "Detector", "load_weights"]

BACKBONES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
"""Blocks of each, and how many a stage has."""
STRIDES = (8, 16, 32, 64, 128)
"""Pixels of the image from place to place, on every map of the pyramid."""
ANCHORS = 9
"""At every place: three sizes of three shapes."""
DETECTIONS = 100
"""At most so many are made of an image; COCO's score looks at no more."""


class Detector(RetinaNet):  # type: ignore[misc]  # torchvision has no types
    """Tells for every anchor what it shows and how the object lies in it; anchors and decoding are torchvision's.

    BatchNorm learns, as it must where the weights are drawn: torchvision's own detectors have it frozen.

    Args:
        classes: what is to be told apart; nothing is none of them.
        backbone: one of `BACKBONES`.
        layers: blocks of each stage, if other than the backbone's own.
        width: channels of the pyramid and of the head.
        head_norm: GroupNorm behind the convolutions of the head, as in torchvision's second version. Without it, as
            printed by Lin et al., four layers of weights as small as theirs are let through little of what is seen:
            enough for a backbone that has learnt ImageNet, but drawn weights start slowly.
        weights: of the whole ResNet, as torchvision has it, instead of drawn ones.
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
        """What is seen in each square image: boxes, scores and labels, the surest first."""
        counts = [len(level) for level in anchors]
        outputs = {"cls_logits": logits.split(counts, 1), "bbox_regression": deltas.split(counts, 1)}
        images = len(logits)
        found: list[dict[str, Tensor]] = self.postprocess_detections(
            outputs, [anchors] * images, [(side, side)] * images
        )
        return found


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a ResNet from a file of torchvision's, whose classifier is not used."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; initialization = 'imagenet' needs torchvision's checkpoint of the backbone there"
        )
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        weights["conv1.weight"], weights["layer4.0.bn1.running_var"]
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{path} does not hold weights of torchvision's ResNet, or is damaged") from error
    return weights
