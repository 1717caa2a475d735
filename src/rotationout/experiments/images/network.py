"""ResNet-50 as torchvision has it, with the noise of a row of Table 2 in its place."""

from __future__ import annotations

from torch import nn

from ...placing import insert
from ...registry import noise as make_noise
from ..resnet import STAGES, insert_noise
from .config import ImagesConfig

__all__ = ["LAYERS", "build_network"]

LAYERS = (3, 4, 6, 3)
"""Blocks of the stages of ResNet-50."""
BEFORE_LINEAR = {"spatial": "dropout", "dropblock": "dropout"}
"""What noises of maps are on the map of one position that the last linear layer is given."""


def build_network(config: ImagesConfig, classes: int) -> nn.Module:
    """The network of a config with its noise; initial weights by torch's default generator.

    Cutout is on the images, DropPath on the residual branches of the last stages. The others are before every
    convolution of those branches, and before the last linear layer.
    """
    try:
        from torchvision.models.resnet import Bottleneck, ResNet
    except ImportError as error:
        raise ImportError(
            "ResNet-50 is torchvision's, of the extra vision: pip install 'rotationout[vision]'"
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
            # Not inserted: a BatchNorm layer is another one, without its hooks, once it is made to take statistics over
            # processes.
            last = block.get_submodule("bn3")
            block.bn3 = nn.Sequential(last, make_noise("droppath", config.p, **config.noise_options))
