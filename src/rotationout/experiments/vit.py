"""A small vision transformer for CIFAR: the network of the tables of noise on tokens, which the paper does not have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ViT"]

SIDE = 32
"""Pixels of a side of the images."""


class _Block(nn.Module):
    """Attention and a hidden layer, each behind LayerNorm and beside a shortcut.

    As Dropout in the blocks of Dosovitskiy et al. 2021, noise is after every dense layer but those of queries, keys and
    values; that of the hidden layer is after its GELU. They have some before the first block, too.
    """

    def __init__(self, width: int, heads: int, noise: Callable[[int], nn.Module] | None) -> None:
        super().__init__()

        def at(features: int) -> nn.Module:
            return nn.Identity() if noise is None else noise(features)

        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.noise1 = at(width)
        self.norm2 = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.noise2 = at(4 * width)
        self.back = nn.Linear(4 * width, width)
        self.noise3 = at(width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        parts = self.inputs(self.norm1(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        heads = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind())
        x = x + self.noise1(self.outputs(heads.transpose(1, 2).reshape(rows, tokens, width)))
        hidden = self.noise2(F.gelu(self.hidden(self.norm2(x))))
        return cast(Tensor, x + self.noise3(self.back(hidden)))


class ViT(nn.Module):
    """A vision transformer for 32×32 images (Dosovitskiy et al. 2021), which averages its tokens at the end.

    Args:
        blocks: blocks in each of three stages, which are all alike.
        width: features of a token.
        heads: heads of the attention.
        patch: pixels of a side of a patch; each patch is a token.
        classes: number of outputs.
        noise: makes the noise of every place, given the features there.
        stages: the stages with noise, counted from 1.

    >>> ViT(width=12, noise=lambda features: nn.Dropout())(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """

    def __init__(
        self,
        blocks: int = 1,
        width: int = 96,
        heads: int = 3,
        patch: int = 8,
        classes: int = 100,
        noise: Callable[[int], nn.Module] | None = None,
        stages: Collection[int] = (1, 2, 3),
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads = {heads}, got {width!r}")
        if SIDE % patch:
            raise ValueError(f"patch must divide the side of an image, {SIDE}, got {patch!r}")
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.empty(1, (SIDE // patch) ** 2, width))
        self.stages = nn.Sequential()
        for stage in (1, 2, 3):
            for _ in range(blocks):
                self.stages.append(_Block(width, heads, noise if stage in stages else None))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, 32, 32)."""
        tokens = self.stem(x).flatten(2).transpose(1, 2) + self.position
        return cast(Tensor, self.head(self.norm(self.stages(tokens)).mean(1)))
