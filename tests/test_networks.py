"""Where the networks of the experiments have their noise."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rotationout.experiments.networks import MLP, ResNet
from rotationout.experiments.vit import ViT


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


def test_blocks_of_a_transformer_have_noise_where_its_authors_have_dropout() -> None:
    network = ViT(blocks=2, width=12, noise=lambda features: nn.Dropout(features / 100), stages=(2,))
    found = {name: module.p for name, module in network.named_modules() if isinstance(module, nn.Dropout)}
    each = {"noise1": 0.12, "noise2": 0.48, "noise3": 0.12}
    assert found == {f"stages.{block}.{name}": p for block in (2, 3) for name, p in each.items()}
    block = network.stages[2]
    seen: dict[str, Tensor] = {}
    for name in each:
        getattr(block, name).register_forward_pre_hook(lambda module, args, name=name: seen.update({name: args[0]}))
    assert network.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 100)
    assert {name: tuple(x.shape) for name, x in seen.items()} == {
        name: (2, 16, round(100 * p)) for name, p in each.items()
    }
    assert -0.2 < seen["noise2"].min() < 0, "what a GELU lets pass"


def test_a_transformers_block_is_torchs() -> None:
    torch.manual_seed(0)
    block, x = ViT(width=12).stages[0], torch.randn(2, 5, 12)
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    attention.in_proj_weight, attention.in_proj_bias = block.inputs.weight, block.inputs.bias
    attention.out_proj = block.outputs
    normed = block.norm1(x)
    expected = x + attention(normed, normed, normed)[0]
    expected = expected + block.back(nn.functional.gelu(block.hidden(block.norm2(expected))))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 100}, "width must be a multiple of heads = 3, got 100"),
        ({"patch": 5}, "patch must divide .* got 5"),
    ],
)
def test_tokens_that_are_not_whole_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViT(**options)
