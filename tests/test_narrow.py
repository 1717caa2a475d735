"""Kernels for residual networks of few channels against plain torch: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.interpreted import DEVICE, GPU, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.experiments.narrow import layers, tiles
from rotationout.experiments.narrow.batchnorm import Normalisation, Running
from rotationout.experiments.narrow.convolution import Convolution, Fork
from rotationout.experiments.networks import ResNet

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]
HALF = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter multiplies no bf16
LAST = torch.channels_last
# N, C, outputs, H, W: odd sizes, several programs, every table of tiles, channels that are no power of two.
CONVOLUTIONS = {
    "odd": (3, 16, 16, 5, 7),
    "one row": (2, 16, 32, 1, 9),
    "one column": (2, 32, 16, 9, 1),
    "one position": (5, 16, 16, 1, 1),
    "several programs": (3, 16, 16, 10, 13),
    "32": (3, 32, 32, 8, 6),
    "64": (2, 64, 64, 6, 6),
    "to more": (3, 16, 64, 5, 7),
    "to fewer": (3, 64, 16, 5, 7),
    "48": (3, 48, 48, 5, 7),
}


@pytest.fixture(autouse=True)
def _exact() -> Any:
    """Fp32 in cuDNN too."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on whatever device there is."""
    monkeypatch.setattr(layers, "_on_gpu", lambda x: True)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts of several steps each, also of small maps."""
    for table in (tiles.NORMALISED, tiles.REVERSED):
        for channels in table:
            monkeypatch.setitem(table, channels, tiles.Sums(512, 4, 5))
    for channels in tiles.CONVOLVED:
        monkeypatch.setitem(tiles.CONVOLVED, channels, tiles.CONVOLVED[channels]._replace(positions=64))
        monkeypatch.setitem(tiles.WEIGHED, channels, tiles.WEIGHED[channels]._replace(positions=64, programs=6))
    monkeypatch.setattr(tiles, "ADDED", (2, 64))


def maps(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).contiguous(memory_format=LAST)


def weights(outputs: int, channels: int, memory: torch.memory_format = LAST) -> Tensor:
    return (torch.randn(outputs, channels, 3, 3) / channels**0.5 / 3).to(DEVICE).contiguous(memory_format=memory)


def leaves(*tensors: Tensor | None, dtype: torch.dtype | None = None) -> list[Any]:
    return [t if t is None else t.detach().to(dtype or t.dtype).clone().requires_grad_() for t in tensors]


def error(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest value."""
    return float(
        (found.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max().clamp(min=1e-30)
    )


def convolved(run: Any, x: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    y = run(x, weight)
    y.backward(given)
    return y.detach(), x.grad, weight.grad


@pytest.mark.parametrize(
    ("case", "memory"), [*((case, LAST) for case in CONVOLUTIONS), ("to more", torch.contiguous_format)], ids=str
)
def test_convolutions_are_torchs(case: str, memory: torch.memory_format, small_tiles: None) -> None:
    count, channels, outputs, height, width = CONVOLUTIONS[case]
    x, weight = leaves(maps(count, channels, height, width), weights(outputs, channels, memory))
    given = maps(count, outputs, height, width)
    found = convolved(Convolution.apply, x, weight, given)
    exact = convolved(lambda x, w: F.conv2d(x, w, padding=1), *leaves(x, weight, dtype=torch.float64), given.double())
    for mine, theirs in zip(found, exact, strict=True):
        assert mine.dtype == torch.float32
        assert error(mine, theirs) < 5e-6
    assert found[0].is_contiguous(memory_format=LAST)
    assert weight.grad.stride() == weight.stride()


@pytest.mark.parametrize("channels", [16, 32, 64])
@pytest.mark.parametrize("taps", [1, 3])
def test_any_tile_does(channels: int, taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision, whose tiles are as the tables say; with loops that load ahead."""
    for table in (tiles.CONVOLVED, tiles.WEIGHED):
        monkeypatch.setitem(table, channels, tiles.Tile(64, taps, 4, 2, 1))
    x, weight = leaves(maps(3, channels, 5, 7, dtype=HALF), weights(16, channels).to(HALF).float())
    given = maps(3, 16, 5, 7, dtype=HALF)
    found = convolved(Convolution.apply, x, weight, given)
    exact = convolved(lambda x, w: F.conv2d(x, w, padding=1), *leaves(x, weight, dtype=torch.float64), given.double())
    for mine, theirs in zip(found, exact, strict=True):
        assert error(mine, theirs) < (5e-6 if mine.dtype == torch.float32 else torch.finfo(HALF).eps)


@pytest.mark.parametrize("channels", [16, 32, 64])
def test_halves_are_multiplied_as_torch_does(channels: int) -> None:
    """At most twice its error; and the gradient of the weight is not rounded to half precision at all."""
    x, weight = leaves(maps(4, channels, 6, 6, dtype=HALF), weights(channels, channels))
    given = maps(4, channels, 6, 6, dtype=HALF)
    found = convolved(Convolution.apply, x, weight, given)

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w.to(x.dtype), padding=1)

    theirs = convolved(plain, *leaves(x, weight), given)
    rounded = weight.detach().to(HALF)  # what both multiply by
    exact = convolved(plain, *leaves(x, rounded, dtype=torch.float64), given.double())
    assert [tensor.dtype for tensor in found] == [HALF, HALF, torch.float32]
    for mine, torchs, right in zip(found, theirs, exact, strict=True):
        assert error(mine, right) <= 2 * error(torchs, right)
    assert error(found[2], exact[2]) < 1e-5


def normalised(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    y = norm(x) if residual is None else residual + norm(x)
    return y.relu() if relu else y


def fused(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    running = Running(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)
    return Normalisation.apply(x, residual, norm.weight, norm.bias, running, norm.eps, relu)


def all_of(run: Any, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool, given: Tensor) -> Any:
    """Everything that a layer gives, and keeps: two batches, the second of which is differentiated."""
    run(norm, x.detach() + 1, residual, relu)
    y = run(norm, x, residual, relu)
    y.backward(given)
    found = {"y": y.detach(), "x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return found | dict(norm.named_buffers()) | ({} if residual is None else {"residual": residual.grad})


def layer(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("relu", [True, False], ids=["relu", "no relu"])
@pytest.mark.parametrize("added", [True, False], ids=["residual", "alone"])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (7, 32, 3, 11), (4, 64, 4, 4), (3, 48, 5, 5), (2, 16, 1, 1)])
def test_normalisation_is_torchs(shape: tuple[int, ...], added: bool, relu: bool, small_tiles: None) -> None:
    norm, given = layer(shape[1]), maps(*shape)
    theirs = copy.deepcopy(norm).double()
    x, residual = leaves(2 * maps(*shape) + 3, maps(*shape) if added else None)
    found = all_of(fused, norm, x, residual, relu, given)
    expected = all_of(normalised, theirs, *leaves(x, residual, dtype=torch.float64), relu, given.double())
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        if right.is_floating_point():
            tolerance = 1e-3 if x.numel() == 2 * shape[1] and name == "x" else 1e-5  # the former is all cancelled
            assert error(found[name], right) < tolerance, name
        else:
            assert found[name] == right == 2


def test_a_large_mean_costs_no_variance(small_tiles: None) -> None:
    """A mean of 1000 deviations: sums of squares about zero would leave nothing of the variance in fp32."""
    x = maps(8, 16, 8, 8) + 1000
    norm = layer(16)
    expected = normalised(copy.deepcopy(norm).double(), x.double(), None, False)
    assert error(fused(norm, x, None, False), expected) < 1e-3


@pytest.mark.parametrize("channels", [16, 64])
def test_halves_are_normalised_as_torch_does(channels: int) -> None:
    norm, shape = layer(channels), (8, channels, 8, 8)
    given = maps(*shape, dtype=HALF)
    x, residual = leaves(maps(*shape, dtype=HALF), maps(*shape, dtype=HALF))
    theirs, exact = copy.deepcopy(norm), copy.deepcopy(norm).double()
    found = all_of(fused, norm, x, residual, True, given)
    plain = all_of(normalised, theirs, *leaves(x, residual), True, given)
    right = all_of(normalised, exact, *leaves(x, residual, dtype=torch.float64), True, given.double())
    for name in ("y", "x", "residual", "weight", "bias", "running_mean", "running_var"):
        assert error(found[name], right[name]) <= max(2 * error(plain[name], right[name]), 2e-6), name
    assert found["y"].dtype == found["x"].dtype == found["residual"].dtype == HALF


def test_what_is_not_a_number_stays_so() -> None:
    """It must reach the loss, which ends the run."""
    x = maps(2, 16, 4, 4)
    x[0, 3, 1, 1] = float("nan")
    y = fused(layer(16), x, None, True)
    assert y[:, 3].isnan().all()
    assert not y[:, 4].isnan().any()


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


@pytest.mark.usefixtures("_everywhere")
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
    # Of six convolutions in blocks four have stride 1, one of them at a fork; and there are six norms, the stem's, and
    # those of two projections.
    assert used == {"Convolution": 2 * 3, "Fork": 2, "Normalisation": 2 * (9 if authors else 7)}
    expected, right = steps(plain, 2)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients.items():
        assert error(gradient, right[name].double()) < 1e-3, name
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("followed", ["both", "the convolution", "what goes past"])
def test_gradients_meet_at_a_fork(followed: str, small_tiles: None) -> None:
    def total(run: Any, x: Tensor, weight: Tensor) -> Tensor:
        y, past = run(x, weight)
        parts = {"the convolution": (y * y).sum(), "what goes past": (past * past * past).sum()}
        return sum(part for name, part in parts.items() if followed in ("both", name))

    x, weight = leaves(maps(3, 32, 5, 7), weights(32, 32))
    exact_x, exact_weight = leaves(x, weight, dtype=torch.float64)
    total(Fork.apply, x, weight).backward()
    total(lambda x, w: (F.conv2d(x, w, padding=1), x), exact_x, exact_weight).backward()
    assert error(x.grad, exact_x.grad) < 5e-6
    if followed == "what goes past":
        assert weight.grad is None
    else:
        assert error(weight.grad, exact_weight.grad) < 5e-6


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


def test_only_what_is_asked_for_is_differentiated() -> None:
    """Maps that come from no parameter, weights that are frozen; and a second time, if the graph is kept."""
    x, weight = maps(2, 16, 4, 4), weights(16, 16)
    given = maps(2, 16, 4, 4)
    y, past = Fork.apply(x, weight.requires_grad_())
    torch.autograd.backward((y, past), (given, given), retain_graph=True)
    once = weight.grad.clone()
    torch.autograd.backward((y, past), (given, given))
    torch.testing.assert_close(weight.grad, 2 * once)
    assert x.grad is None
    (of_x,) = torch.autograd.grad(Convolution.apply(x.requires_grad_(), weight.detach()), x, given)
    exact = F.conv_transpose2d(given.double(), weight.detach().double(), padding=1)
    assert error(of_x, exact) < 5e-6
    with torch.no_grad():
        y, past = Fork.apply(x, weight)
    assert not y.requires_grad
    assert not past.requires_grad


@pytest.mark.usefixtures("_everywhere")
def test_what_goes_past_a_noise_is_not_what_it_gave() -> None:
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4).requires_grad_()
    given = 2 * x
    y, past = layers.convolve_beside(conv, given, x)
    assert past is x
    assert type(y.grad_fn).__name__ == "ConvolutionBackward"
    assert type(layers.convolve_beside(conv, x, x)[0].grad_fn).__name__ == "ForkBackward"


@pytest.mark.usefixtures("_everywhere")
def test_what_goes_past_is_neither_cast_nor_copied() -> None:
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4)
    with torch.autocast(DEVICE, HALF):
        y, past = layers.convolve_beside(conv, x, x)
    assert past is x
    assert y.dtype == HALF
    x = x.contiguous()
    y, past = layers.convolve_beside(conv, x, x)
    assert past is x
    torch.testing.assert_close(y, conv(x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_everywhere")
def test_autocast_casts_maps_and_kernels_the_weights() -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE)
    x = maps(2, 16, 4, 4)
    with torch.autocast(DEVICE, HALF):
        y = layers.convolve(conv, x)
        assert torch.equal(y, layers.convolve(conv, x.to(HALF)))
    assert y.dtype == HALF
    y.float().sum().backward()
    assert conv.weight.grad.dtype == torch.float32
    assert layers.convolve(conv, x).dtype == torch.float32


@pytest.mark.usefixtures("_everywhere")
def test_whoever_watches_a_module_sees_it_called() -> None:
    conv, norm, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), layer(16), maps(2, 16, 4, 4)
    seen = []
    handles = [module.register_forward_hook(lambda module, args, y: seen.append(y)) for module in (conv, norm)]
    watched = layers.normalise(norm, layers.convolve(conv, x), x)
    assert len(seen) == 2
    assert torch.equal(watched, F.relu(x + seen[1]))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(layers.normalise(norm, layers.convolve(conv, x), x), watched, rtol=1e-4, atol=1e-4)
    assert len(seen) == 2


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(
    "change",
    [
        {"stride": 2},
        {"padding": 0},
        {"kernel_size": 1, "padding": 0},
        {"bias": True},
        {"groups": 2},
        {"padding_mode": "circular"},
        {"out_channels": 24},
        {"out_channels": 80},
        {"dilation": 2},
    ],
    ids=str,
)
def test_other_convolutions_are_torchs(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convolution, "apply", lambda *_: pytest.fail("no kernel does this"))
    options = {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "padding": 1, "bias": False, **change}
    conv, x = nn.Conv2d(**options).to(DEVICE), maps(2, 16, 6, 6)
    assert torch.equal(layers.convolve(conv, x), conv(x))


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


def test_the_same_numbers_come_again(small_tiles: None) -> None:
    x, weight = leaves(maps(5, 16, 6, 6), weights(16, 16))
    given = maps(5, 16, 6, 6)
    runs = [convolved(Convolution.apply, *leaves(x, weight), given) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
