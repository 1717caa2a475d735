"""Table 3 of the paper: RetinaNet on COCO (`coco`), and on BCCD's blood cells (`bccd`), which stand in for it.

The paper follows DropBlock's detectors (Ghiasi et al. 2018): longer sides of 512 to 768 pixels, crops of 640, focal
loss with α = 0.25 and γ = 1.5, batches of 64, 35 epochs with drops at 20 and 28. It gives no learning rate: here it is
four times RetinaNet's own, which is 0.01 for a batch of 16 (Lin et al. 2017). RotationOut is that of the paper's
ImageNet experiment: λ = 1/4, before every convolution of the last two stages, in blocks of 7 and 3 or everywhere.

BCCD has 205 training images and the same geometry (its images of 640 × 480 are tested at their own size). It is trained
for 60 epochs from random weights, with drops at the same fractions of them, and a batch of 8, which makes 1,500
updates. Training is on ``train`` and the test on ``test``; choices are to be made on ``val`` (``--test-split val``).
"""

from __future__ import annotations

from collections.abc import Callable

from ..experiments.detection.config import DetectionConfig

__all__ = ["ROTATION_P", "TABLES", "bccd", "coco", "coco_rows", "rows"]

ROTATION_P = 0.2
"""The strength of RotationOut: λ = p / (1 − p) = 1/4."""
ROTATION_BLOCKS, DROPBLOCK_SIZE = (7, 3), 5
COCO_IMAGES, BCCD_IMAGES = 118_287, 205
"""The number of training images: of train2017, and of BCCD's train."""


def coco() -> DetectionConfig:
    """The base config of COCO: from random weights, without noise, trained on train2017, tested on val2017."""
    return _base("coco", batches=COCO_IMAGES // 64, epochs=35, drops=(20, 28)).replace(
        batch=64,
        learning_rate=0.04,
        warmup=500,
        held=False,
        train_split="train2017",
        test_split="val2017",
        test_every=5,
    )


def bccd() -> DetectionConfig:
    """The base config of BCCD: from random weights, without noise."""
    return _base("bccd", batches=BCCD_IMAGES // 8, epochs=60, drops=(34, 48)).replace(
        batch=8, learning_rate=0.01, warmup=100
    )


def _base(recipe: str, batches: int, epochs: int, drops: tuple[int, ...]) -> DetectionConfig:
    milestones = tuple(batches * epoch for epoch in drops)
    return DetectionConfig(recipe=recipe, row="none", steps=epochs * batches, milestones=milestones)


def rows(base: DetectionConfig) -> list[DetectionConfig]:
    """The five rows of the table: no noise, Dropout, DropBlock, and RotationOut without and with blocks."""
    rotation = base.replace(noise="rotation", p=ROTATION_P, noise_options={"dims": 2})
    return [
        base,
        base.replace(row="dropout keep 0.9", noise="dropout", p=0.1),
        base.replace(
            row=f"dropblock keep 0.9, block {DROPBLOCK_SIZE}",
            noise="dropblock",
            p=0.1,
            block_sizes=(DROPBLOCK_SIZE,) * base.stages,
        ),
        rotation.replace(row="rotation"),
        rotation.replace(row="rotation block", block_sizes=ROTATION_BLOCKS),
    ]


def coco_rows() -> list[DetectionConfig]:
    """The rows of the table on COCO. Those that the paper starts from ImageNet weights are there with both starts."""
    drawn = rows(coco())
    pretrained = [
        row.replace(row=f"{row.row}, ImageNet", initialization="imagenet")
        for row in drawn
        if row.noise in ("none", "rotation")
    ]
    return [*drawn, *pretrained]


TABLES: dict[str, Callable[[], list[DetectionConfig]]] = {"bccd": lambda: rows(bccd()), "coco": coco_rows}
"""Every table by its name: a function that returns the configs of its rows."""
