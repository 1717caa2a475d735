"""Statistics of BatchNorm finished by the last program of a convolution: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, Counted, error, layer, leaves, maps, training_norm, weights
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import _few_programs as _few_programs
from tests.test_narrow_convolution import CONVOLUTIONS, TILED
from tests.test_narrow_convolution import tiled as tiled  # a fixture
from torch import nn
from torch.nn import functional as F

from rotationout.experiments.narrow import batchnorm, conditions, layers
from rotationout.experiments.narrow.convolving import convolve
from rotationout.experiments.networks import ResNet

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]


@pytest.mark.parametrize(("dtype", "tiled"), TILED, indirect=["tiled"], ids=str)
@pytest.mark.parametrize(
    ("case", "stride"),
    [("odd", 1), ("one position", 1), ("several programs", 1), ("32", 1), ("to more", 1), ("48", 1), ("64", 2)],
)
def test_statistics_are_finished_by_whoever_is_last(case: str, stride: int, dtype: torch.dtype, tiled: None) -> None:
    """Batch by batch: the counter is zero again."""
    count, channels, outputs, height, width = CONVOLUTIONS[case]
    norm, weight = layer(outputs), weights(outputs, channels).to(dtype).float()
    theirs, following = copy.deepcopy(norm).double(), training_norm(norm)
    for batch in (1, 2):
        x = maps(count, channels, height, width, dtype=dtype) + batch
        y, saved = convolve(x, weight, mirrored=False, stride=stride, training_norm=following)
        theirs(y.double())
        assert following.counter == 0
        assert norm.num_batches_tracked == batch
        var, mean = torch.var_mean(y.double(), (0, 2, 3), correction=0)
        assert error(saved[0], mean) < 1e-6
        assert error(saved[1], (var + norm.eps).rsqrt()) < 1e-4  # about a running mean that is some deviations off
        assert error(norm.running_mean, theirs.running_mean) < 1e-6
        assert error(norm.running_var, theirs.running_var) < 1e-4
    plain, _ = convolve(x, weight, mirrored=False, stride=stride)
    assert torch.equal(y, plain)


@pytest.mark.parametrize("tiled", ["all taps, and strips"], indirect=True)
def test_the_same_statistics_come_again(tiled: None) -> None:
    x, weight, norm = maps(3, 16, 8, 9, dtype=HALF), weights(16, 16), layer(16)
    nn.init.normal_(norm.running_mean)
    found = []
    for again in (norm, copy.deepcopy(norm)):
        following = training_norm(again)
        found.append((*convolve(x, weight, mirrored=False, training_norm=following), *following[:3]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The kernel that a norm computes its statistics with, if no convolution has."""
    kernel = Counted(batchnorm.moments_kernel)
    monkeypatch.setattr(batchnorm, "moments_kernel", kernel)
    return kernel


def block_of(**options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain, ours = (ResNet(1, 3, fused=fused, **options).stages[0] for fused in (False, True))
    ours.load_state_dict(plain.state_dict())
    return plain.to(DEVICE).to(memory_format=LAST), ours.to(DEVICE).to(memory_format=LAST)


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize(
    ("case", "own"),
    [
        ("plain", 0),
        ("a noise before the norm", 1),
        ("a hook", 0),  # on a norm, which torch does then
        ("no affine map", 0),  # likewise
        ("a shortcut of another precision", 0),  # likewise; that norm may count its batch but once
    ],
)
def test_norms_keep_every_batch_once(case: str, own: int, launched: Counted) -> None:
    noise = (lambda _: nn.Hardtanh(-0.5, 0.5)) if case == "a noise before the norm" else None
    plain, ours = block_of(noise=noise, stages=(1,), places=("bn1",))
    for block in (plain, ours):
        if case == "a hook":
            block.bn2.register_forward_hook(lambda module, args, y: None)
        if case == "no affine map":
            block.bn2 = nn.BatchNorm2d(16, affine=False).to(DEVICE)
        if case == "a shortcut of another precision":
            block.shortcut = nn.Linear(7, 7, bias=False).to(DEVICE).double()
            block.shortcut.forward = lambda x: x.double()
    (x,), (exact,) = leaves(maps(2, 16, 5, 7)), leaves(maps(2, 16, 5, 7))
    exact.data.copy_(x.data)
    for _ in range(2):
        ours(x).sum().backward()
        plain(exact).sum().backward()
    assert launched.launches == 2 * own
    assert error(x.grad, exact.grad.double()) < 1e-4
    for name, value in plain.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_everywhere")
def test_every_norm_has_a_counter_of_its_own() -> None:
    """Runs side by side must not count each other's programs."""
    norms = [layer(16), layer(16)]
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4)
    for norm in norms:
        y, statistics = layers.convolve(conv, x, norm=norm)
        assert statistics.shape == (2, 16)
        expected = F.batch_norm(y, None, None, norm.weight, norm.bias, True, 0.0, norm.eps).relu()
        assert error(layers.normalise(norm, y, statistics=statistics), expected.double()) < 1e-5
    first, second = (conditions._counter(norm) for norm in norms)
    assert first.data_ptr() != second.data_ptr()
    assert first is conditions._counter(norms[0])
    assert first == second == 0


def test_a_counter_of_a_graph_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the graph is replayed it may be any number, and whoever counts with it would never be the last."""
    norm = layer(16)
    monkeypatch.setattr(conditions, "_captured", lambda x: True)
    of_graph = conditions._counter(norm)
    monkeypatch.undo()
    kept = conditions._counter(norm)
    assert kept is not of_graph
    monkeypatch.setattr(conditions, "_captured", lambda x: True)
    assert conditions._counter(norm) is kept  # it is zero by now
