"""The networks of Table 1, ResNet and WideResNet for CIFAR, with noise before the convolutions of chosen stages.

Beside them networks whose features are vectors and tokens, `MLP` and `rotationout.experiments.vit.ViT`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..strength import check_choice
from .narrow.conditions import is_identity
from .narrow.layers import convolve, convolve_normalised, convolve_with_shortcut, normalise
from .vit import ViT

__all__ = ["MLP", "NETWORKS", "PLACES", "ResNet", "WideResNet", "use_torch_kernels_"]

MakeNoise = Callable[[int], nn.Module]
"""Makes a noise, given the number of channels or features."""
PLACES = ("conv1", "bn1", "conv2")
"""Where a block of `ResNet` can have noise: directly before the layer of that name. Noise before bn1 is the paper's
Dropout-a (section 3.2), noise before conv2, two layers before bn2, its Dropout-b. Table 1 has noise before both
convolutions."""


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut: the basic block of He et al. 2016."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        noise: MakeNoise | None,
        places: Collection[str],
        authors: bool,
        fused: bool,
    ) -> None:
        super().__init__()
        self.fused = fused

        def at(place: str, channels: int) -> nn.Module:
            return nn.Identity() if noise is None or place not in places else noise(channels)

        self.noise1 = at("conv1", inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.noise_a = at("bn1", outputs)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.noise2 = at("conv2", outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            if authors:  # a 1×1 convolution
                self.shortcut = _Normalised(nn.Conv2d(inputs, outputs, 1, stride, bias=False), fused)
            else:
                self.shortcut = _Padding(outputs - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and is_identity(self.noise_a):
            # in eval mode one launch per convolution and norm
            y = convolve_normalised(self.conv1, self.bn1, self.noise1(x), fused=self.fused)
            return convolve_normalised(self.conv2, self.bn2, self.noise2(y), self.shortcut(x), fused=self.fused)
        norm = self.bn1 if is_identity(self.noise_a) else None  # with noise, bn1 needs statistics of the disturbed maps
        y, x, statistics = convolve_with_shortcut(self.conv1, self.noise1(x), x, self.fused, norm=norm)
        y = normalise(self.bn1, self.noise_a(y), statistics=statistics, fused=self.fused)
        residual = self.shortcut(x)
        y, statistics = convolve(self.conv2, self.noise2(y), self.fused, norm=self.bn2, residual=residual)
        return normalise(self.bn2, y, residual, statistics=statistics, fused=self.fused)


class _Normalised(nn.Sequential):
    """A convolution followed by BatchNorm, without a ReLU."""

    def __init__(self, convolution: nn.Conv2d, fused: bool) -> None:
        super().__init__(convolution, nn.BatchNorm2d(convolution.out_channels))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        convolution, norm = self
        return convolve_normalised(convolution, norm, x, relu=False, fused=self.fused)


class _Padding(nn.Module):
    """Shortcut without parameters, option A of He et al. 2016: subsample the map, and append channels of zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


class ResNet(nn.Module):
    """ResNet for 32×32 images: three stages of 16, 32 and 64 channels (He et al. 2016, section 4.2).

    Args:
        blocks: blocks per stage; 3 make ResNet20, 18 ResNet110.
        classes: number of outputs.
        noise: makes the noise of every place, given the channels there.
        stages: the stages with noise, counted from 1.
        places: the places in each block with noise, of `PLACES`.
        authors: as in the authors' public code: 1×1 convolutions as shortcuts, no ReLU after the stem, and the weight
            of the last BatchNorm of each branch starts at blocks^(−½).
        silent: the weight of the last BatchNorm of each branch starts at 0, so that every block begins as its shortcut
            (Goyal et al. 2017).
        fused: on a GPU, use the kernels of `rotationout.experiments.narrow`.
    """

    def __init__(
        self,
        blocks: int = 18,
        classes: int = 100,
        noise: MakeNoise | None = None,
        stages: Collection[int] = (3,),
        places: Collection[str] = ("conv1", "conv2"),
        authors: bool = False,
        silent: bool = False,
        fused: bool = False,
    ) -> None:
        super().__init__()
        if authors and silent:
            raise ValueError("authors and silent both set the last BatchNorm of every branch: give only one of them")
        for place in places:
            check_choice("places", place, PLACES)
        self.authors = authors
        self.stem = _Normalised(nn.Conv2d(3, 16, 3, 1, 1, bias=False), fused)
        widths = (16, 16, 32, 64)
        self.stages = nn.Sequential()
        for stage in (1, 2, 3):
            here = noise if stage in stages else None
            for k in range(blocks):
                inputs = widths[stage - 1] if k == 0 else widths[stage]
                stride = 2 if stage > 1 and k == 0 else 1
                self.stages.append(_Block(inputs, widths[stage], stride, here, places, authors, fused))
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if authors and isinstance(module, _Block):
                nn.init.constant_(module.bn2.weight, blocks**-0.5)
            if silent and isinstance(module, _Block):
                nn.init.zeros_(module.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, 32, 32)."""
        x = self.stem(x)
        features: Tensor = self.stages(x if self.authors else F.relu(x))
        return cast(Tensor, self.head(features.mean((2, 3))))


class _WideBlock(nn.Module):
    """BatchNorm and ReLU before each of two convolutions (Zagoruyko and Komodakis 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, noise: MakeNoise | None) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.noise1 = nn.Identity() if noise is None else noise(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.noise2 = nn.Identity() if noise is None else noise(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(self.noise1(y))
        y = self.conv2(self.noise2(F.relu(self.bn2(y))))
        return cast(Tensor, kept + y)


class _Pool(nn.Module):
    """The mean over positions after BatchNorm and ReLU, a module of its own so that these can be compiled together."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x)).mean((2, 3))


class WideResNet(nn.Module):
    """WideResNet for 32×32 images: three stages of 16·k, 32·k and 64·k channels.

    Args:
        blocks: blocks per stage; 4 make WRN28.
        widen: the factor k.
        classes: number of outputs.
        noise: makes the noise before both convolutions of every block, given the channels; never on the shortcut.
        stages: the stages with noise, counted from 1.
    """

    def __init__(
        self,
        blocks: int = 4,
        widen: int = 10,
        classes: int = 100,
        noise: MakeNoise | None = None,
        stages: Collection[int] = (2, 3),
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
        self.stages = nn.Sequential()
        for stage in (1, 2, 3):
            here = noise if stage in stages else None
            for k in range(blocks):
                inputs = widths[stage - 1] if k == 0 else widths[stage]
                stride = 2 if stage > 1 and k == 0 else 1
                self.stages.append(_WideBlock(inputs, widths[stage], stride, here))
        self.pool = _Pool(widths[3])
        self.head = nn.Linear(widths[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, 32, 32)."""
        return cast(Tensor, self.head(self.pool(self.stages(self.stem(x)))))


class MLP(nn.Module):
    """Three hidden layers on the pixels of 32×32 images.

    Args:
        width: features of a hidden layer.
        classes: number of outputs.
        noise: makes the noise after the ReLU of a hidden layer, given its features.
        stages: the hidden layers with noise, counted from 1.
    """

    def __init__(
        self,
        width: int = 512,
        classes: int = 100,
        noise: MakeNoise | None = None,
        stages: Collection[int] = (1, 2, 3),
    ) -> None:
        super().__init__()
        self.stages = nn.Sequential()
        for stage in (1, 2, 3):
            here = nn.Identity() if noise is None or stage not in stages else noise(width)
            inputs = 3 * 32 * 32 if stage == 1 else width
            self.stages.append(nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), here))
        self.head = nn.Linear(width, classes)
        for module in self.stages.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, 32, 32)."""
        return cast(Tensor, self.head(self.stages(x.flatten(1))))


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet20": partial(ResNet, 3),
    "resnet110": partial(ResNet, 18),
    "wrn28_10": partial(WideResNet, 4, 10),
    "mlp": MLP,
    "vit": ViT,
}
"""The networks by the names that configs use. Tests build smaller ones from the classes."""


def use_torch_kernels_(network: nn.Module) -> nn.Module:
    """Make a network use torch's kernels instead of the narrow ones, which are slow to launch outside a CUDA graph."""
    for module in network.modules():
        if isinstance(module, (_Block, _Normalised)):
            module.fused = False
    return network
