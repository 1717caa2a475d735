"""Table 2 of the paper: ResNet-50 on ImageNet (`imagenet`), and on Imagewoof (`imagewoof`), which stands in for it.

The paper gives the epochs, the drops of the learning rate and the rates of the noises. For the rest it refers to
He et al. 2016: batches of 256, a learning rate of 0.1, weight decay 1e-4, momentum 0.9, and the crops of Szegedy et al.
2015. Noises of maps are before every convolution of the residual branches of the third and fourth stage and, as Dropout
or RotationOut on vectors, before the last linear layer. What the paper leaves open is chosen as follows:

- *DropBlock*: blocks of 7 × 7 in both stages, as in Ghiasi et al. 2018, from whom the paper takes the numbers of all
  other methods; p does not change during training.
- *Cutout*: squares of half the side of an image, p = 0.25; DeVries and Taylor 2017 give no values for ImageNet.
- *RotationOut in blocks*: a tenth of the positions lies in blocks, as with DropBlock.

At 128 pixels the maps of these stages are 8 × 8 and 4 × 4 instead of 14 × 14 and 7 × 7. Blocks shrink with them: those
of RotationOut from 7 and 3 to 4 and 2, and those of DropBlock, which must be odd in torchvision, from 7 to 3.

Imagewoof has so few updates that a start at a learning rate of 0.1 costs too much: the loss first grew far above that
of guessing. Therefore `imagewoof`, but not `imagenet`, follows Goyal et al. 2017: the learning rate grows over five
epochs, and the last BatchNorm of every residual branch starts at zero.
"""

from __future__ import annotations

from collections.abc import Callable

from ..experiments.images.config import ImagesConfig

__all__ = ["TABLES", "imagenet", "imagewoof", "rows"]

EPOCHS, DROPS = 240, (120, 190, 230)
"""The epochs of the paper, and those after which the learning rate drops."""


def imagenet() -> ImagesConfig:
    """The base config of ImageNet (ILSVRC 2012), without noise: 1,281,167 images, 5,004 batches of 256 per epoch."""
    return _base("imagenet", batches=5004, epochs=EPOCHS)


def imagewoof() -> ImagesConfig:
    """The base config of Imagewoof, without noise: 9,025 images, 35 batches of 256 per epoch, a third of the epochs."""
    return _base("imagewoof", batches=35, epochs=EPOCHS // 3).replace(
        size=128, short_side=128, held=True, warmup=5 * 35, network_options={"zero_init_residual": True}
    )


def _base(recipe: str, batches: int, epochs: int) -> ImagesConfig:
    steps = epochs * batches
    return ImagesConfig(
        recipe=recipe, row="none", steps=steps, milestones=tuple(round(steps * drop / EPOCHS) for drop in DROPS)
    )


def rows(
    base: ImagesConfig, *, blocks: tuple[int, int] = (7, 3), drop_blocks: tuple[int, int] = (7, 7)
) -> list[ImagesConfig]:
    """The eight rows of the table, with the keep rates of the paper.

    Args:
        base: the row without noise.
        blocks: sides of RotationOut's blocks in the third and fourth stage.
        drop_blocks: sides of DropBlock's blocks there.
    """
    rotation = base.replace(noise="rotation", p=0.2, noise_options={"dims": 2})  # λ = p / (1 − p) = 1/4
    return [
        base,
        base.replace(row="dropout keep 0.7", noise="dropout", p=0.3),
        base.replace(row="droppath keep 0.9", noise="droppath", p=0.1),
        base.replace(row="spatial dropout keep 0.9", noise="spatial", p=0.1, noise_options={"dims": 2}),
        base.replace(row="cutout", noise="cutout", p=0.25),
        base.replace(
            row="dropblock keep 0.9", noise="dropblock", p=0.1, noise_options={"dims": 2}, block_sizes=drop_blocks
        ),
        rotation.replace(row="rotation"),
        rotation.replace(row="rotation block", block_sizes=blocks),
    ]


TABLES: dict[str, Callable[[], list[ImagesConfig]]] = {
    "imagenet": lambda: rows(imagenet()),
    "imagewoof": lambda: rows(imagewoof(), blocks=(4, 2), drop_blocks=(3, 3)),
}
"""Every table by its name: a function that returns the configs of its rows."""
