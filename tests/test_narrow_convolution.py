"""Convolutions of few channels in kernels against plain torch: on a GPU if there is one, else interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.devices import MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, convolved, error, layer, leaves, maps, training_norm, weights
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import small_tiles as small_tiles
from torch import Tensor
from torch.nn import functional as F

from rotationout.experiments.narrow import tiles
from rotationout.experiments.narrow.convolution import Convolution, Fork

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]
# N, C, outputs, H, W: odd sizes, several programs, every table of tiles, channels that are no power of two.
CONVOLUTIONS = {
    "odd": (3, 16, 16, 5, 7),
    "one row": (2, 16, 32, 1, 9),
    "one column": (2, 32, 16, 9, 1),
    "one position": (5, 16, 16, 1, 1),
    "several programs": (3, 16, 16, 8, 9),
    "32": (3, 32, 32, 8, 6),
    "64": (2, 64, 64, 6, 6),
    "to more": (3, 16, 64, 5, 7),
    "to fewer": (3, 64, 16, 5, 7),
    "48": (3, 48, 48, 5, 7),
}
IMAGES = 3, 3, 16, 5, 7


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


TILES = {
    "a tap": (tiles.Tile(64, 1, 4, 2), tiles.Tile(64, 1, 4, 2, 3)),
    "a row of taps": (tiles.Tile(64, 3, 4, 2), tiles.Tile(64, 3, 4, 2, 2)),
    "all taps, and strips": (tiles.Tile(16, 1, 4, rows=2), tiles.Tile(64, 9, 4, 2, 2)),
}
"""For the convolution and for the gradient of its weight."""
TILED = [*((HALF, name) for name in TILES), (torch.float32, "a tap")]
"""Every tile in half precision; fp32 has small ones whatever is asked for, see `tiles.fitted`."""


@pytest.fixture
def tiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution in the tiles of that name; of 64 channels the products of all taps are too large."""
    convolves, weighs = TILES[request.param]
    for channels in tiles.CONVOLVED:
        monkeypatch.setitem(tiles.CONVOLVED, channels, convolves)
    for channels in tiles.WEIGHED:
        monkeypatch.setitem(tiles.WEIGHED, channels, weighs if channels < 64 else weighs._replace(taps=1))


@pytest.mark.parametrize("tiled", TILES, indirect=True)
@pytest.mark.parametrize("case", ["odd", "one row", "one column", "several programs", "32", "to more", "48"])
def test_any_tile_does(case: str, tiled: None) -> None:
    """In half precision, whose tiles are as the tables say; with loops that load ahead."""
    count, channels, outputs, height, width = CONVOLUTIONS[case]
    x, weight = leaves(maps(count, channels, height, width, dtype=HALF), weights(outputs, channels).to(HALF).float())
    given = maps(count, outputs, height, width, dtype=HALF)
    found = convolved(Convolution.apply, x, weight, given)
    exact = convolved(lambda x, w: F.conv2d(x, w, padding=1), *leaves(x, weight, dtype=torch.float64), given.double())
    for mine, theirs in zip(found, exact, strict=True):
        assert error(mine, theirs) < (5e-6 if mine.dtype == torch.float32 else torch.finfo(HALF).eps)


@pytest.mark.parametrize("tiled", ["all taps, and strips"], indirect=True)
def test_gradients_at_a_fork_are_added_in_strips_too(tiled: None) -> None:
    """Where statistics are computed as well, which have no gradient."""
    x, weight = leaves(maps(3, 16, 5, 7, dtype=HALF), weights(16, 16).to(HALF).float())
    given, other = maps(3, 16, 5, 7, dtype=HALF), maps(3, 16, 5, 7, dtype=HALF)
    exact_x, exact_weight = leaves(x, weight, dtype=torch.float64)
    y, past, statistics = Fork.apply(x, weight, training_norm(layer(16)))
    assert not statistics.requires_grad
    torch.autograd.backward((y, past), (given, other))
    torch.autograd.backward((F.conv2d(exact_x, exact_weight, padding=1), exact_x), (given.double(), other.double()))
    assert error(x.grad, exact_x.grad) < torch.finfo(HALF).eps
    assert error(weight.grad, exact_weight.grad) < 5e-6


@pytest.mark.parametrize(
    ("memory", "dtype", "tiled"),
    crossed([LAST, torch.contiguous_format], [HALF, torch.float32], TILES),
    indirect=["tiled"],
    ids=str,
)
def test_images_have_three_channels(memory: torch.memory_format, dtype: torch.dtype, tiled: None) -> None:
    """Of which a convolution needs no gradient."""
    count, channels, outputs, height, width = IMAGES
    x, weight = maps(count, channels, height, width, dtype=dtype), weights(outputs, channels, memory).to(dtype).float()
    given = maps(count, outputs, height, width, dtype=dtype)
    y, (mean, _) = Convolution.apply(x, weight.requires_grad_(), training_norm(layer(outputs)))
    y.backward(given)
    (exact,) = leaves(weight, dtype=torch.float64)
    right = F.conv2d(x.double(), exact, padding=1)
    right.backward(given.double())
    assert error(y, right) < (torch.finfo(HALF).eps if dtype == HALF else 5e-6)
    assert error(mean, y.double().mean((0, 2, 3))) < 3e-6
    assert error(weight.grad, exact.grad) < 5e-6
    assert weight.grad.stride() == weight.stride()


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


def test_the_same_numbers_come_again(small_tiles: None) -> None:
    x, weight = leaves(maps(5, 16, 6, 6), weights(16, 16))
    given = maps(5, 16, 6, 6)
    runs = [convolved(Convolution.apply, *leaves(x, weight), given) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
