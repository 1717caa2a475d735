"""Noises that are torchvision's: what it makes of maps smaller than a block, and that they are known as noises."""

import pytest
import torch

import rotationout as ro

ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")


def test_they_are_torchvisions() -> None:
    assert type(ro.noise("dropblock", 0.1)) is ops.DropBlock2d
    assert type(ro.noise("dropblock3d", 0.1, block_size=3)) is ops.DropBlock3d
    assert type(ro.noise("stochastic-depth", 0.1)) is ops.StochasticDepth
    assert ro.registry.is_noise(ops.StochasticDepth(0.1, "row"))


def test_a_block_larger_than_the_map_is_clipped_to_an_odd_side_or_refused() -> None:
    """What the registry says of DropBlock; should torchvision change its mind, so should we."""
    layer = ro.noise("dropblock", 0.5, block_size=7)
    assert not torch.equal(layer(torch.ones(64, 4, 5, 5)), torch.ones(64, 4, 5, 5))
    with pytest.raises(ValueError, match=r"block size should be odd\. Got 4"):
        layer(torch.ones(2, 4, 4, 6))
