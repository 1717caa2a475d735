"""What decides a run on a folder of images."""

from __future__ import annotations

from dataclasses import dataclass

from ..classifier import ClassifierConfig
from ..resnet import check_block_sizes

__all__ = ["ImagesConfig"]


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(ClassifierConfig):
    """A run of torchvision's ResNet-50 on a folder of images.

    Args:
        size: pixels of the sides of a crop.
        short_side: pixels of the short side of an image of which the middle is tested.
        held: keep all images on the device, decoded and with that short side, and cut them there. Otherwise they are
            read for every epoch.
        last_stages: how many of the four stages have noise, counted from the end.
        block_sizes: of noises that act in blocks, for each of those stages; that of the last one last.
        train_split: the folder to learn from.
        test_split: the folder to test on.
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
