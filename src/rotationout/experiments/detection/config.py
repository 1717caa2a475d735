"""The config of a run of object detection (Table 3)."""

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
        noise_options: further keyword arguments of the noise; the value ``"channels"``, as in
            ``num_features="channels"``, stands for the number of channels at each place.
        backbone: the ResNet, ``"resnet18"`` or ``"resnet50"``.
        backbone_options: keyword arguments of `rotationout.experiments.detection.network.Detector`: layers, width,
            head_norm.
        initialization: initial weights of the backbone: ``"random"``, or ``"imagenet"`` for torchvision's checkpoint,
            the file ``<backbone>.pth`` in the folder of the data.
        stages: how many of the last stages of the backbone get noise, before every convolution of their branches.
        block_sizes: block size of a noise that acts in blocks, for each stage with noise, in the order of the stages.
        alpha: weight of objects in the focal loss.
        gamma: exponent of the focal loss.
        scales: the smallest and the largest size in pixels to which the longer side of a training image is scaled.
        crop: side in pixels of the square crop that the network is given; a multiple of 128.
        held: keep all images on the device; if not, worker processes read them again in every epoch.
        train_split: the split to train on.
        test_split: the split to test on.
        test_every: number of epochs from test to test; the last epoch is always tested.
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
            raise ValueError(f"scales must be a smallest and a largest number of pixels, got {self.scales!r}")
        if self.crop % LARGEST_STRIDE:
            raise ValueError(f"crop must be a multiple of {LARGEST_STRIDE}, got {self.crop!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha!r}")
        check_block_sizes(self.block_sizes, self.stages)
