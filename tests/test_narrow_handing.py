"""Sums that a convolution hands to the BatchNorm before it, in the backward pass: on a GPU if there is one, else
interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, Counted, error, fused, layer, leaves, maps, normalised, weights
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import _few_programs as _few_programs
from tests.narrow_maps import small_tiles as small_tiles
from tests.test_narrow_convolution import CONVOLUTIONS, TILED
from tests.test_narrow_convolution import tiled as tiled  # a fixture
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.experiments.narrow import batchnorm, handing
from rotationout.experiments.narrow.adding import add_up
from rotationout.experiments.narrow.convolution import Convolution, Fork
from rotationout.experiments.networks import ResNet

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The kernel with which a norm takes the sums for its gradients itself."""
    kernel = Counted(batchnorm.sums_kernel)
    monkeypatch.setattr(batchnorm, "sums_kernel", kernel)
    return kernel


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def gradients(norm: nn.BatchNorm2d, run: Any, through: Any, x: Tensor, residual: Tensor | None, relu: bool) -> Any:
    """Of what a norm, and the convolution behind it, were given: ``through`` goes on from the norm's output."""
    end = through(run(norm, x, residual, relu))
    torch.manual_seed(1)
    end.backward(torch.randn(end.shape).to(end))
    found = {"x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return found if residual is None else found | {"residual": residual.grad}


@pytest.mark.parametrize(
    ("dtype", "tiled", "kind", "case"),
    [
        (*tile, kind, case)
        for tile, kind, case in crossed(
            TILED, ["no relu", "relu", "residual", "residual, no relu"], ["odd", "several programs", "to more"]
        )
    ],
    indirect=["tiled"],
    ids=str,
)
def test_a_norm_needs_no_sums_of_its_own(dtype: torch.dtype, case: str, kind: str, tiled: None, taken: Counted) -> None:
    """Gradients are as near to those in fp64 as those of a norm that takes them: by rounding of maps that were kept."""
    count, channels, outputs, height, width = CONVOLUTIONS[case]
    shape, relu = (count, channels, height, width), "no relu" not in kind
    norm, weight = layer(channels), weights(outputs, channels).to(dtype).float()
    x, residual = leaves(2 * maps(*shape, dtype=dtype) + 3, maps(*shape, dtype=dtype) if "residual" in kind else None)
    theirs, exact_x, exact_residual = (copy.deepcopy(norm).double(), *leaves(x, residual, dtype=torch.float64))
    exact = gradients(theirs, normalised, lambda y: convolved(y, weight.double()), exact_x, exact_residual, relu)
    alone, alone_x, alone_residual = (copy.deepcopy(norm), *leaves(x, residual))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handing, "HANDED", False)
        parts = gradients(alone, fused, lambda y: Convolution.apply(y, weight), alone_x, alone_residual, relu)
    assert taken.launches == 1
    found = gradients(norm, fused, lambda y: Convolution.apply(y, weight), x, residual, relu)
    assert taken.launches == 1
    for name, right in exact.items():
        assert found[name].dtype == parts[name].dtype
        assert error(found[name], right) <= max(1.5 * error(parts[name], right), 1e-5), name


@pytest.mark.parametrize("follows", ["both", "what goes past"])
def test_gradients_meet_at_a_fork_behind_a_norm(follows: str, small_tiles: None, taken: Counted) -> None:
    """What goes past adds to the gradient before it is stopped and summed; without the convolution nobody has sums."""
    x, residual, weight = leaves(maps(3, 32, 5, 7), maps(3, 32, 5, 7), weights(32, 32))
    exact_x, exact_residual, exact_weight = leaves(x, residual, weight, dtype=torch.float64)
    norm = layer(32)
    theirs = copy.deepcopy(norm).double()

    def both(y: Tensor, past: Tensor) -> Tensor:
        return past * past if follows == "what goes past" else torch.cat([y, past * past])

    found = gradients(norm, fused, lambda y: both(*Fork.apply(y, weight)), x, residual, True)
    exact = gradients(theirs, normalised, lambda y: both(convolved(y, exact_weight), y), exact_x, exact_residual, True)
    assert taken.launches == (follows != "both")
    for name, right in exact.items():
        assert error(found[name], right) < 1e-5, name
    if follows == "both":
        assert error(weight.grad, exact_weight.grad) < 5e-6


def beside_another(y: Tensor, weight: Tensor, convolve: Any) -> Tensor:
    return convolve(y, weight) + y.square()


def before_two(y: Tensor, weight: Tensor, convolve: Any) -> Tensor:
    return convolve(y, weight) + convolve(y, weight).square()


def changed(y: Tensor, weight: Tensor, convolve: Any) -> Tensor:
    return convolve(y * 2, weight)


@pytest.mark.parametrize("use", [beside_another, before_two, changed])
@pytest.mark.parametrize("added", [True, False], ids=["residual", "alone"])
def test_sums_of_another_gradient_are_not_taken_for_it(use: Any, added: bool, taken: Counted) -> None:
    """Where the output has other uses too, or a convolution sees something else."""
    x, residual = leaves(maps(2, 16, 5, 7), maps(2, 16, 5, 7) if added else None)
    norm, weight = layer(16), weights(16, 16)
    theirs = copy.deepcopy(norm).double()
    exact_x, exact_residual = leaves(x, residual, dtype=torch.float64)
    found = gradients(norm, fused, lambda y: use(y, weight, Convolution.apply), x, residual, True)
    exact = gradients(theirs, normalised, lambda y: use(y, weight.double(), convolved), exact_x, exact_residual, True)
    assert taken.launches == 1
    for name, right in exact.items():
        assert error(found[name], right) < 1e-5, name


@pytest.mark.parametrize("frozen", ["the convolution", "the norm"])
def test_what_is_frozen_has_no_gradient(frozen: str, taken: Counted) -> None:
    norm, (x, weight) = layer(16), leaves(maps(2, 16, 5, 7), weights(16, 16))
    (weight if frozen == "the convolution" else norm.weight).requires_grad_(False)
    theirs, (exact_x, exact_weight) = copy.deepcopy(norm).double(), leaves(x, weight, dtype=torch.float64)
    found = gradients(norm, fused, lambda y: Convolution.apply(y, weight), x, None, True)
    exact = gradients(theirs, normalised, lambda y: convolved(y, exact_weight), exact_x, None, True)
    assert not taken.launches
    assert (weight.grad is None) == (frozen == "the convolution")
    assert (norm.weight.grad is None) == (frozen == "the norm")
    for name, gradient in found.items():
        assert gradient is None or error(gradient, exact[name]) < 1e-5, name


def test_a_graph_that_is_kept_gives_the_same_again(taken: Counted) -> None:
    norm, (x,), weight = layer(16), leaves(maps(2, 16, 5, 7)), weights(16, 16)
    end = Convolution.apply(fused(norm, x, None, True), weight)
    given = maps(2, 16, 5, 7)
    (once,) = torch.autograd.grad(end, x, given, retain_graph=True)
    (again,) = torch.autograd.grad(end, x, given)
    assert torch.equal(once, again)
    assert not taken.launches


def test_nothing_is_kept_after_it_was_used() -> None:
    """Maps must be free for others as soon as a layer is done with them."""
    (x,) = leaves(maps(2, 16, 5, 7))
    y = fused(layer(16), x, None, True)
    history = y.grad_fn
    assert history.offer.x is x
    end = Convolution.apply(y, weights(16, 16))
    end.backward(torch.ones_like(end))
    assert history.offer is None
    assert history.answer._gradient is history.answer._totals is None
    unused = fused(layer(16), x, None, True)
    unused.backward(torch.ones_like(unused))
    assert unused.grad_fn.offer is None


@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, which interprets
def test_gradients_that_overflowed_are_seen_where_they_are_handed_over(value: float) -> None:
    norm, (x,), weight = nn.BatchNorm2d(16).to(DEVICE), leaves(maps(2, 16, 4, 4, dtype=HALF)), torch.zeros(16, 16, 3, 3)
    weight[:, :, 1, 1] = torch.eye(16)
    y = fused(norm, x, None, True)
    given = maps(2, 16, 4, 4, dtype=HALF)
    alive = (y[0, 5] > 0).nonzero()[0]
    given[0, 5, alive[0], alive[1]] = value
    Convolution.apply(y, weight.to(DEVICE)).backward(given)
    for gradient in (norm.weight.grad, norm.bias.grad, x.grad.float().sum((0, 2, 3))):
        assert not gradient[5].isfinite()


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize(
    ("authors", "noisy", "expected"),
    [
        (False, False, 2),  # the stem's, behind which is torch's ReLU, and the last
        (True, False, 3),  # not the stem's, which has none; but those of two projections
        (False, True, 3),  # one more, with a noise between it and its convolution
    ],
)
def test_few_norms_of_a_network_take_sums(authors: bool, noisy: bool, expected: int, taken: Counted) -> None:
    noise = (lambda _: nn.Dropout(0.5)) if noisy else None
    network = ResNet(1, 3, noise, stages=(1,), places=("conv2",), authors=authors, fused=True).to(DEVICE)
    x = torch.randn(2, 3, 8, 8).to(DEVICE).contiguous(memory_format=LAST)
    network.to(memory_format=LAST)(x).sum().backward()
    assert taken.launches == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("parts", "others"), [(1, 1), (5, 37), (37, 5)])
def test_two_kinds_of_sums_are_added_up_at_once(parts: int, others: int, dtype: torch.dtype, small_tiles: None) -> None:
    sums, more = torch.randn(parts, 6, 50).to(DEVICE), torch.randn(others, 2, 140).to(DEVICE)
    total, other = torch.empty(6, 50, dtype=dtype, device=DEVICE), torch.empty(2, 140, device=DEVICE)
    add_up(sums, total, (more, other))
    assert error(total, sums.double().sum(0)) < (1e-6 if dtype == torch.float32 else 1e-3)
    assert error(other, more.double().sum(0)) < 1e-6
