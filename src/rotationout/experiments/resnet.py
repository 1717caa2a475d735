"""Insert the noise of a config into the last stages of torchvision's ResNets (Tables 2 and 3)."""

from __future__ import annotations

import re

from torch import nn

from ..placing import insert_in_stages
from ..registry import noise as make_noise
from .vision import VisionConfig

__all__ = ["STAGES", "check_block_sizes", "insert_noise", "residual_blocks"]

STAGES = 4
"""Stages of a ResNet: ``layer1`` to ``layer4``."""


def check_block_sizes(sizes: tuple[int, ...], last: int) -> None:
    """Check the fields of a config: at most `STAGES` stages, and a block size for each of them or none at all."""
    if last > STAGES:
        raise ValueError(f"noise can be in the last {STAGES} stages at most, got {last!r}")
    if sizes and len(sizes) != last:
        raise ValueError(f"block_sizes must have one size for each of the last {last} stages, got {sizes!r}")


def insert_noise(network: nn.Module, config: VisionConfig, *, last: int, block_sizes: tuple[int, ...] = ()) -> None:
    """Insert the noise of a config before every convolution of the residual branches of the last stages.

    Args:
        network: torchvision's ResNet; changed in place.
        config: its noise, p and noise_options are used.
        last: how many stages, counted from the end.
        block_sizes: ``block_size`` of the noise in each of these stages, in their order; empty for a noise without.
    """

    def noise(name: str, convolution: nn.Module) -> nn.Module:
        assert isinstance(convolution, nn.Conv2d)
        options = config.options_at(convolution.in_channels)
        if block_sizes:
            options["block_size"] = block_sizes[_stage(name) - 1 - STAGES]
        return make_noise(config.noise, config.p, **options)

    insert_in_stages(network, noise, last=last)


def residual_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks of all stages, for `rotationout.experiments.run.Run.regions`; most have the same shapes."""
    stages = [network.get_submodule(f"layer{stage + 1}") for stage in range(STAGES)]
    return [block for stage in stages for block in stage.children()]


def _stage(name: str) -> int:
    """The stage of a convolution by its name, 3 for ``layer3.0.conv1``."""
    found = re.match(r"layer(\d)\.", name)
    assert found is not None, name
    return int(found[1])
