"""Where the networks of the experiments have their noise."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rotationout.experiments.networks import MLP, ResNet


def names(**options: Any) -> list[str]:
    network = ResNet(1, noise=lambda channels: nn.Dropout(), **options)
    return [name for name, module in network.named_modules() if isinstance(module, nn.Dropout)]


def test_noise_is_where_the_places_say() -> None:
    assert names() == ["stages.2.noise1", "stages.2.noise2"]
    assert names(places=("bn1",)) == ["stages.2.noise_a"]
    assert names(places=("conv2",), stages=(1, 3)) == ["stages.0.noise2", "stages.2.noise2"]
    with pytest.raises(ValueError, match="places must be"):
        names(places=("conv3",))


def test_silent_branches_leave_the_shortcuts() -> None:
    network, x = ResNet(1, silent=True), torch.rand(2, 16, 8, 8)
    assert torch.equal(network.stages[0](x), x)
    assert not torch.equal(ResNet(1).stages[0](x), x)
    with pytest.raises(ValueError, match="authors and silent"):
        ResNet(1, authors=True, silent=True)


@pytest.mark.parametrize(("place", "layer"), [("conv1", "conv1"), ("bn1", "bn1"), ("conv2", "conv2")])
def test_the_layer_behind_a_place_gets_the_noise(place: str, layer: str) -> None:
    network = ResNet(1, noise=lambda channels: nn.Dropout(0.999999), places=(place,))
    seen: list[Tensor] = []
    network.stages[2].get_submodule(layer).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    network(torch.randn(2, 3, 32, 32))
    assert seen[0].count_nonzero() < 9


def test_the_authors_form_of_a_resnet() -> None:
    """What only their code has: weights of the last norms, shortcuts with weights, and a stem without ReLU."""
    entered: list[Tensor] = []
    for authors in (True, False):
        network = ResNet(3, authors=authors)
        network.stages.register_forward_hook(lambda module, args, output: entered.append(args[0]))
        network(torch.randn(4, 3, 32, 32))
        for block in network.stages:
            torch.testing.assert_close(block.bn2.weight, torch.full_like(block.bn2.weight, 3**-0.5 if authors else 1.0))
            torch.testing.assert_close(block.bn1.weight, torch.ones_like(block.bn1.weight))
        shortcuts = [network.stages[place].shortcut for place in (3, 6)]
        assert [any(True for _ in shortcut.parameters()) for shortcut in shortcuts] == [authors] * 2
    assert entered[0].min() < 0 == entered[1].min()


def test_hidden_layers_have_noise_after_the_relu() -> None:
    network = MLP(8, noise=lambda features: nn.Dropout(features / 10), stages=(1, 3))
    found = {name: module.p for name, module in network.named_modules() if isinstance(module, nn.Dropout)}
    assert found == {"stages.0.2": 0.8, "stages.2.2": 0.8}
    seen: list[Tensor] = []
    for stage in network.stages:
        stage[2].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 100)
    assert [tuple(x.shape) for x in seen] == [(2, 8)] * 3
    assert min(x.min() for x in seen) == 0, "what a ReLU has made zero"
