"""BatchNorm of few channels in kernels against plain torch: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, all_of, error, fused, layer, leaves, maps, normalised, training_norm
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import small_tiles as small_tiles
from torch import Tensor, nn

from rotationout.experiments.narrow import batchnorm
from rotationout.experiments.narrow.convolving import convolve

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]


@pytest.mark.parametrize(
    ("shape", "added", "relu", "computed"),
    crossed(
        [(3, 16, 5, 7), (7, 32, 3, 11), (4, 64, 4, 4), (3, 48, 5, 5), (2, 16, 1, 1)],
        [True, False],
        [True, False],
        [False, True],
    ),
    ids=str,
)
def test_normalisation_is_torchs(
    shape: tuple[int, ...], added: bool, relu: bool, computed: bool, small_tiles: None
) -> None:
    """With statistics that are given it leaves the running ones alone."""
    norm, given = layer(shape[1]), maps(*shape)
    theirs, untouched = copy.deepcopy(norm).double(), copy.deepcopy(norm)
    x, residual = leaves(2 * maps(*shape) + 3, maps(*shape) if added else None)
    found = all_of(partial(fused, computed=computed), norm, x, residual, relu, given)
    expected = all_of(normalised, theirs, *leaves(x, residual, dtype=torch.float64), relu, given.double())
    expected |= dict(untouched.named_buffers()) if computed else {}
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        if right.is_floating_point():
            tolerance = 1e-3 if x.numel() == 2 * shape[1] and name == "x" else 1e-5  # the former is all cancelled
            assert error(found[name], right) < tolerance, name
        else:
            assert found[name] == right == (0 if computed else 2)


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


@pytest.mark.parametrize("again", [True, False], ids=["found again", "read"])
def test_what_the_relu_let_through_is_found_again_or_read(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same effect: not one element may be taken for another."""
    monkeypatch.setattr(batchnorm, "AGAIN", again)
    norm, shape = layer(16), (6, 16, 8, 8)
    (x,) = leaves(maps(*shape, dtype=HALF))
    y = fused(norm, x, None, True)
    y.backward(torch.ones_like(y))
    assert norm.bias.grad.tolist() == (y > 0).sum((0, 2, 3)).tolist()
    theirs = copy.deepcopy(norm).double()
    (exact,) = leaves(x, dtype=torch.float64)
    normalised(theirs, exact, None, True).backward(torch.ones(shape, dtype=torch.float64, device=DEVICE))
    assert error(x.grad, exact.grad) < 2 * torch.finfo(HALF).eps


def test_what_was_rounded_to_zero_was_not_let_through() -> None:
    """In fp16, of which many numbers here are too small: torch asks y, as it was stored."""
    norm = layer(16)
    nn.init.constant_(norm.weight, 2.0**-25)
    nn.init.zeros_(norm.bias)
    (x,) = leaves(maps(6, 16, 8, 8, dtype=torch.float16))
    y = fused(norm, x, None, True)
    y.backward(torch.ones_like(y))
    through = (y > 0).sum((0, 2, 3)).tolist()
    assert norm.bias.grad.tolist() == through
    assert 0 < sum(through) < 0.3 * y.numel()


@pytest.mark.parametrize("added", [True, False], ids=["residual", "alone"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, which interprets
def test_gradients_that_overflowed_are_seen(value: float, added: bool) -> None:
    """By whoever scales losses, in every parameter's gradient; but not where the ReLU let nothing through."""
    norm = nn.BatchNorm2d(16).to(DEVICE)
    x, residual = leaves(maps(2, 16, 4, 4, dtype=HALF), maps(2, 16, 4, 4, dtype=HALF) if added else None)
    y = fused(norm, x, residual, True)
    dead, alive = (y[0, 3] <= 0).nonzero()[0], (y[0, 5] > 0).nonzero()[0]
    given = maps(2, 16, 4, 4, dtype=HALF)
    given[0, 3, dead[0], dead[1]] = given[0, 5, alive[0], alive[1]] = value
    y.backward(given)
    for gradient in (norm.weight.grad, norm.bias.grad, x.grad.float().sum((0, 2, 3))):
        assert gradient.isfinite().tolist() == [channel != 5 for channel in range(16)]


def identity() -> Tensor:
    """The weight of a convolution that gives what it is given."""
    weight = torch.zeros(16, 16, 3, 3).to(DEVICE)
    weight[:, :, 1, 1] = torch.eye(16)
    return weight


def test_sums_far_from_a_constant_leave_a_variance_of_zero() -> None:
    """What rounding leaves of it may not be below zero: its root would be no number."""
    norm = layer(16)
    x = maps(4, 16, 5, 5) * 0 + torch.linspace(-1000, 1000, 16).to(DEVICE)[:, None, None]
    x = x.contiguous(memory_format=torch.channels_last)
    _, statistics = convolve(x, identity(), mirrored=False, training_norm=training_norm(norm))
    assert statistics.isfinite().all()
    assert (norm.running_var >= 0.7 - 1e-6).all()  # 1 − momentum of what it was


@pytest.mark.parametrize(("apart", "tolerance"), [(0, 1e-6), (1, 2e-6), (10, 1e-4), (100, 1e-2)])
def test_statistics_after_a_convolution(apart: float, tolerance: float) -> None:
    """Of maps that lie so many deviations from the running mean, as a new network's may.

    Variances lose as many digits as there are in the square of that; the next batches are nearer.
    """
    norm, x = layer(16), (maps(8, 16, 12, 12) + apart).to(HALF)
    following = training_norm(norm)._replace(momentum=1.0)
    y, _ = convolve(x, identity(), mirrored=False, training_norm=following)
    assert torch.equal(y, x)
    exact = x.double()
    assert error(norm.running_mean, exact.mean((0, 2, 3))) < 1e-6
    assert error(norm.running_var, exact.var((0, 2, 3))) < tolerance
    assert norm.num_batches_tracked == 1
    convolve(x, identity(), mirrored=False, training_norm=following)
    assert error(norm.running_var, exact.var((0, 2, 3))) < 2e-6


def test_what_is_not_a_number_stays_so() -> None:
    """It must reach the loss, which ends the run."""
    x = maps(2, 16, 4, 4)
    x[0, 3, 1, 1] = float("nan")
    y = fused(layer(16), x, None, True)
    assert y[:, 3].isnan().all()
    assert not y[:, 4].isnan().any()
    x = maps(2, 16, 4, 4)
    x[0, 3, 1, 1] = float("nan")  # the other channels are then none either: it is multiplied by their zeros
    _, statistics = convolve(x, identity(), mirrored=False, training_norm=training_norm(layer(16)))
    assert statistics.isnan().all()
