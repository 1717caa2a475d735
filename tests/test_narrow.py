"""Layers and networks of few channels with kernels against plain torch: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, all_of, error, fused, layer, leaves, maps, normalised, weights
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import _few_programs as _few_programs
from tests.narrow_maps import small_tiles as small_tiles
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rotationout.experiments.narrow import conditions, layers
from rotationout.experiments.narrow.batchnorm import Normalisation
from rotationout.experiments.narrow.convolution import Convolution, Fork
from rotationout.experiments.networks import ResNet

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]


def steps(network: nn.Module, count: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses and gradients of some steps."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    x, labels = torch.randn(4, 3, 8, 8).to(DEVICE), (torch.arange(4) % 3).to(DEVICE)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x.contiguous(memory_format=LAST)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize("authors", [True, False], ids=["projections", "padding"])
def test_a_network_learns_as_torchs_does(authors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain = ResNet(1, 3, authors=authors).to(DEVICE).to(memory_format=LAST)
    ours = ResNet(1, 3, authors=authors, fused=True).to(DEVICE).to(memory_format=LAST)
    ours.load_state_dict(plain.state_dict())
    used: dict[str, int] = {}
    for function in (Convolution, Fork, Normalisation):
        used[function.__name__] = 0

        def counted(*args: Any, name: str = function.__name__, apply: Any = function.apply) -> Any:
            used[name] += 1
            return apply(*args)

        monkeypatch.setattr(function, "apply", counted)
    losses, gradients = steps(ours, 2)
    # Of six convolutions in blocks three are at a fork; and there is the stem's. There are six norms, the stem's, and
    # those of two projections.
    assert used == {"Convolution": 2 * 4, "Fork": 2 * 3, "Normalisation": 2 * (9 if authors else 7)}
    expected, right = steps(plain, 2)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients.items():
        assert error(gradient, right[name].double()) < 1e-3, name
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize(
    ("place", "switch", "expected"),
    [
        ("conv1", True, [True] * 7),
        ("bn1", True, [True, False, *[True] * 5]),  # there is a noise in between
        ("conv1", False, [False] * 7),
    ],
)
def test_sums_go_to_the_norm_that_follows(
    place: str, switch: bool, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "SUMMED", switch)
    given = []

    def seen(*args: Any, apply: Any = Normalisation.apply) -> Any:
        given.append(args[-1] is not None)
        return apply(*args)

    monkeypatch.setattr(Normalisation, "apply", seen)
    network = ResNet(1, 3, lambda _: nn.Dropout(0.5), stages=(1,), places=(place,), fused=True).to(DEVICE)
    x = torch.randn(2, 3, 8, 8).to(DEVICE).contiguous(memory_format=LAST)
    network.to(memory_format=LAST)(x)
    assert given == expected
    given.clear()
    network.eval()(x)
    assert not given


def through_twice(block: nn.Module, x: Tensor) -> Tensor:
    """Also past itself, so that gradients of one output come from three places."""
    y = block(x)
    return block(y) + y.square()


def frozen(block: nn.Module, x: Tensor) -> Tensor:
    block.conv1.weight.requires_grad_(False)
    block.bn2.weight.requires_grad_(False)
    return block(x)


def with_kept_statistics(block: nn.Module, x: Tensor) -> Tensor:
    block.bn1.eval()
    return block(x)


def found_again(block: nn.Module, x: Tensor) -> Tensor:
    """Twice, so that a convolution that is done again begins with what a norm gave."""
    y: Tensor = checkpoint(block, x, use_reentrant=False)
    z: Tensor = checkpoint(block, y, use_reentrant=False)
    return z


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize("use", [through_twice, frozen, with_kept_statistics, found_again])
def test_blocks_may_be_used_as_torchs(use: Any) -> None:
    plain, ours = (ResNet(1, 3, fused=fused).stages[0].to(DEVICE).to(memory_format=LAST) for fused in (False, True))
    ours.load_state_dict(plain.state_dict())
    x, given = maps(2, 16, 5, 7), maps(2, 16, 5, 7)

    def maps_of(block: nn.Module) -> tuple[Tensor, Tensor]:
        (start,) = leaves(x)
        for _ in range(2):  # gradients add up
            end = use(block, start)
            end.backward(given)
        return end.detach(), start.grad

    for mine, theirs in zip(maps_of(ours), maps_of(plain), strict=True):
        assert error(mine, theirs.double()) < 1e-4
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        assert mine.grad is None or error(mine.grad, theirs.grad.double()) < 1e-4, name
    for name, value in plain.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lies", ["expanded", "contiguous"])
def test_gradients_may_lie_otherwise(lies: str) -> None:
    """As a mean over positions gives them, or a layer that is not in channels_last."""
    given, other = (
        (torch.randn(3, 32, 1, 1), torch.randn(3, 32, 1, 1)) if lies == "expanded" else torch.randn(2, 3, 32, 5, 7)
    )
    given, other = (g.to(DEVICE).expand(3, 32, 5, 7) for g in (given, other))
    x, weight = leaves(maps(3, 32, 5, 7), weights(32, 32))
    exact_x, exact_weight = leaves(x, weight, dtype=torch.float64)
    torch.autograd.backward(Fork.apply(x, weight), (given, other))
    torch.autograd.backward((F.conv2d(exact_x, exact_weight, padding=1), exact_x), (given.double(), other.double()))
    assert error(x.grad, exact_x.grad) < 5e-6
    assert error(weight.grad, exact_weight.grad) < 5e-6
    norm = layer(32)
    theirs = copy.deepcopy(norm).double()
    x, residual = leaves(maps(3, 32, 5, 7), maps(3, 32, 5, 7))
    found = all_of(fused, norm, x, residual, True, given)
    expected = all_of(normalised, theirs, *leaves(x, residual, dtype=torch.float64), True, given.double())
    for name in ("x", "residual", "weight", "bias"):
        assert error(found[name], expected[name]) < 1e-5, name


@pytest.mark.usefixtures("_everywhere")
def test_what_goes_past_a_noise_is_not_what_it_gave() -> None:
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4).requires_grad_()
    given = 2 * x
    y, shortcut, _ = layers.convolve_with_shortcut(conv, given, x)
    assert shortcut is x
    assert type(y.grad_fn).__name__ == "ConvolutionBackward"
    assert type(layers.convolve_with_shortcut(conv, x, x)[0].grad_fn).__name__ == "ForkBackward"


@pytest.mark.usefixtures("_everywhere")
def test_what_goes_past_is_neither_cast_nor_copied() -> None:
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4)
    with torch.autocast(DEVICE, HALF):
        y, shortcut, _ = layers.convolve_with_shortcut(conv, x, x)
    assert shortcut is x
    assert y.dtype == HALF
    x = x.contiguous()
    y, shortcut, _ = layers.convolve_with_shortcut(conv, x, x)
    assert shortcut is x
    torch.testing.assert_close(y, conv(x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_everywhere")
def test_autocast_casts_maps_and_kernels_the_weights() -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE)
    x = maps(2, 16, 4, 4)
    with torch.autocast(DEVICE, HALF):
        y, _ = layers.convolve(conv, x)
        assert torch.equal(y, layers.convolve(conv, x.to(HALF))[0])
    assert y.dtype == HALF
    y.float().sum().backward()
    assert conv.weight.grad.dtype == torch.float32
    assert layers.convolve(conv, x)[0].dtype == torch.float32


@pytest.mark.usefixtures("_everywhere")
def test_whoever_watches_a_module_sees_it_called() -> None:
    conv, norm, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), layer(16), maps(2, 16, 4, 4)
    seen = []
    handles = [module.register_forward_hook(lambda module, args, y: seen.append(y)) for module in (conv, norm)]
    watched = layers.normalise(norm, layers.convolve(conv, x)[0], x)
    assert len(seen) == 2
    assert torch.equal(watched, F.relu(x + seen[1]))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(layers.normalise(norm, layers.convolve(conv, x)[0], x), watched, rtol=1e-4, atol=1e-4)
    assert len(seen) == 2


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(
    "change",
    [
        {"stride": 3},
        {"stride": (1, 2)},
        {"padding": 0},
        {"kernel_size": 1, "padding": 0},
        {"bias": True},
        {"groups": 2},
        {"padding_mode": "circular"},
        {"out_channels": 24},
        {"out_channels": 80},
        {"in_channels": 8},
        {"dilation": 2},
    ],
    ids=str,
)
def test_other_convolutions_are_torchs(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convolution, "apply", lambda *_: pytest.fail("no kernel does this"))
    options = {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "padding": 1, "bias": False, **change}
    conv, x = nn.Conv2d(**options).to(DEVICE), maps(2, options["in_channels"], 6, 6)
    assert torch.equal(layers.convolve(conv, x)[0], conv(x))


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(("channels", "sides"), [(16, (5, 6)), (16, (6, 5)), (3, (6, 6))])
def test_strides_that_do_not_halve_are_torchs(channels: int, sides: tuple[int, int]) -> None:
    """And those of images."""
    conv, x = nn.Conv2d(channels, 16, 3, 2, 1, bias=False).to(DEVICE), maps(2, channels, *sides)
    assert torch.equal(layers.convolve(conv, x)[0], conv(x))


@pytest.mark.usefixtures("_everywhere")
def test_images_that_need_a_gradient_are_torchs() -> None:
    conv, x = nn.Conv2d(3, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 3, 6, 6)
    assert type(layers.convolve(conv, x)[0].grad_fn).__name__ == "ConvolutionBackward"  # not torch's, which has a 0
    assert torch.equal(layers.convolve(conv, x.requires_grad_())[0], conv(x))


@pytest.mark.usefixtures("_everywhere")
def test_other_norms_and_modes_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Normalisation, "apply", lambda *_: pytest.fail("no kernel does this"))
    x = maps(2, 16, 4, 4)
    for norm in (
        nn.BatchNorm2d(16).eval(),
        nn.BatchNorm2d(16, momentum=None),
        nn.BatchNorm2d(16, affine=False),
        nn.BatchNorm2d(16, track_running_stats=False),
        nn.GroupNorm(4, 16),
        nn.Identity(),
    ):
        norm.to(DEVICE)
        assert torch.equal(layers.normalise(norm, x, relu=False), copy.deepcopy(norm)(x))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layers.normalise(layer(16), maps(1, 16, 1, 1))
