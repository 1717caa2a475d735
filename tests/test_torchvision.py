"""Noises that are torchvision's: what it makes of maps smaller than a block, and that they are known as noises."""

import pytest
import torch
from torch import nn

import rotationout as ro

ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")


def test_they_are_torchvisions() -> None:
    assert type(ro.noise("dropblock", 0.1)) is ops.DropBlock2d
    assert type(ro.noise("dropblock3d", 0.1, block_size=3)) is ops.DropBlock3d
    assert type(ro.noise("stochastic-depth", 0.1)) is ops.StochasticDepth
    assert ro.registry.is_noise(ops.StochasticDepth(0.1, "row"))
    assert ro.registry.is_stochastic_depth(ops.StochasticDepth(0.1, "row"))


def test_a_block_larger_than_the_map_is_clipped_to_an_odd_side_or_refused() -> None:
    """What the registry says of DropBlock; should torchvision change its mind, so should we."""
    layer = ro.noise("dropblock", 0.5, block_size=7)
    assert not torch.equal(layer(torch.ones(64, 4, 5, 5)), torch.ones(64, 4, 5, 5))
    with pytest.raises(ValueError, match=r"block size should be odd\. Got 4"):
        layer(torch.ones(2, 4, 4, 6))


def test_features_are_extracted_from_a_swapped_model() -> None:
    """torch.fx traces it in both modes; in training the noise acts, as Dropout did."""
    from torchvision.models import mobilenet_v3_small
    from torchvision.models.feature_extraction import create_feature_extractor

    model = mobilenet_v3_small(num_classes=3)
    assert len(ro.swap(model)) == 1
    extractor, x = create_feature_extractor(model, ["classifier.2"]), torch.randn(2, 3, 32, 32)
    extractor.eval()
    assert torch.equal(extractor(x)["classifier.2"], extractor(x)["classifier.2"])
    extractor.classifier.train()
    assert not torch.equal(extractor(x)["classifier.2"], extractor(x)["classifier.2"])


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:Please use quant_min")
def test_a_model_with_noise_is_prepared_for_quantization() -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), ro.RotationOut(0.5), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    prepared = prepare_qat_fx(model.train(), get_default_qat_qconfig_mapping("x86"), (x,))
    assert not torch.equal(prepared(x), prepared(x))
    assert sum(isinstance(module, ro.RotationOut) for module in prepared.modules()) == 1
