"""What decides a run of object detection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...strength import check_choice
from ..resnet import check_block_sizes
from ..vision import VisionConfig

__all__ = ["INITIALIZATIONS", "DetectionConfig"]

BACKBONES = ("resnet18", "resnet50")
INITIALIZATIONS = ("random", "imagenet")
LARGEST_STRIDE = 128


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(VisionConfig):
    """A run of object detection: RetinaNet, SGD, average precision.

    Args:
        noise_options: of the noise before every convolution of the last stages' branches.
        backbone: the ResNet, ``"resnet18"`` or ``"resnet50"``.
        backbone_options: keyword arguments of `rotationout.experiments.detection.network.Detector`: layers, width,
            head_norm.
        initialization: ``"random"``, or ``"imagenet"``: torchvision's checkpoint, ``<backbone>.pth`` beside the data.
        stages: so many of the last stages have the noise.
        block_sizes: ``block_size`` of the noise in each of these stages, the last one last; empty if it has none.
        alpha: of the focal loss, the weight of objects.
        gamma: of the focal loss, its exponent.
        scales: the least and the largest longer side of a training image.
        crop: pixels of a side of the window that is cut out; a multiple of 128.
        held: keep all images on the device; if not, worker processes read them again and again.
        train_split: the split to learn from.
        test_split: the split to test on.
        test_every: epochs from test to test; the last one is always tested.
    """

    batch: int = 64
    learning_rate: float = 0.01
    backbone: str = "resnet50"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    initialization: str = "random"
    stages: int = 2
    block_sizes: tuple[int, ...] = ()
    alpha: float = 0.25
    gamma: float = 1.5
    scales: tuple[int, int] = (512, 768)
    crop: int = 640
    held: bool = True
    train_split: str = "train"
    test_split: str = "test"
    test_every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("backbone", self.backbone, BACKBONES)
        check_choice("initialization", self.initialization, INITIALIZATIONS)
        self._check_least(1, "crop", "test_every", "stages")
        self._check_least(0, "gamma")
        self._make_tuples("block_sizes", "scales")
        if len(self.scales) != 2 or not 0 < self.scales[0] <= self.scales[1]:
            raise ValueError(f"scales must be a least and a largest number of pixels, got {self.scales!r}")
        if self.crop % LARGEST_STRIDE:
            raise ValueError(f"crop must be a multiple of {LARGEST_STRIDE}, got {self.crop!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha!r}")
        check_block_sizes(self.block_sizes, self.stages)
