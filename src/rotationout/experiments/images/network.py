"""The network of Table 2: torchvision's ResNet-50, with the noise of a row."""

from __future__ import annotations

from torch import nn

from ...placing import insert
from ...registry import noise as make_noise
from ..resnet import STAGES, insert_noise
from .config import ImagesConfig

__all__ = ["LAYERS", "build_network"]

LAYERS = (3, 4, 6, 3)
"""Blocks in each stage of ResNet-50."""
BEFORE_LINEAR = {"spatial": "dropout", "dropblock": "dropout"}
"""The noise before the last linear layer, whose input is a vector, where it is not the noise of the maps."""


def build_network(config: ImagesConfig, classes: int) -> nn.Module:
    """The network of a config with its noise; torch's default generator draws the initial weights.

    Cutout acts on the images, DropPath on the residual branches of the last stages. All other noises are before every
    convolution of these branches, and before the last linear layer.
    """
    try:
        from torchvision.models.resnet import Bottleneck, ResNet
    except ImportError as error:
        raise ImportError(
            "ResNet-50 needs torchvision, part of the extra 'vision': pip install 'rotationout[vision]'"
        ) from error

    network: nn.Module = ResNet(Bottleneck, num_classes=classes, **{"layers": LAYERS, **config.network_options})
    if config.noise == "cutout":
        insert(network, make_noise("cutout", config.p, **config.noise_options), before="conv1")
    elif config.noise == "droppath":
        _drop_paths(network, config)
    elif config.noise != "none":
        insert_noise(network, config, last=config.last_stages, block_sizes=config.block_sizes)
        kind = BEFORE_LINEAR.get(config.noise, config.noise)
        insert(network, make_noise(kind, config.p), before="fc")
    return network


def _drop_paths(network: nn.Module, config: ImagesConfig) -> None:
    for stage in range(STAGES - config.last_stages, STAGES):
        for block in network.get_submodule(f"layer{stage + 1}").children():
            # Not by `insert`, which uses hooks: SyncBatchNorm, which may replace this layer, would lose them.
            last = block.get_submodule("bn3")
            block.bn3 = nn.Sequential(last, make_noise("droppath", config.p, **config.noise_options))
