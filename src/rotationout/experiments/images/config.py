"""The config of a run on a folder of images (Table 2)."""

from __future__ import annotations

from dataclasses import dataclass

from ..classifier import ClassifierConfig
from ..resnet import check_block_sizes

__all__ = ["ImagesConfig"]


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(ClassifierConfig):
    """A run of torchvision's ResNet-50 on a folder of images.

    Args:
        size: side of a crop in pixels.
        short_side: before a test crop is taken from its middle, an image is resized to this short side in pixels.
        held: keep all images on the device, decoded and resized to ``short_side``, and crop them there. Otherwise
            worker processes read them again in every epoch.
        last_stages: how many of the four stages get noise, counted from the end.
        block_sizes: block size of a noise that acts in blocks, for each stage with noise, in the order of the stages.
        train_split: the folder of the training images.
        test_split: the folder of the test images.
    """

    batch: int = 256
    size: int = 224
    short_side: int = 256
    held: bool = False
    last_stages: int = 2
    block_sizes: tuple[int, ...] = ()
    train_split: str = "train"
    test_split: str = "val"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._make_tuples("block_sizes")
        self._check_least(1, "size", "last_stages")
        if self.short_side < self.size:
            raise ValueError(f"short_side must be at least size = {self.size}, got {self.short_side!r}")
        check_block_sizes(self.block_sizes, self.last_stages)
