"""Convolutions of few channels that halve maps, in kernels: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.devices import MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, Counted, error, fused, layer, leaves, maps, normalised, training_norm, weights
from tests.narrow_maps import _exact as _exact  # fixtures
from tests.narrow_maps import small_tiles as small_tiles
from torch import Tensor
from torch.nn import functional as F

from rotationout.experiments.narrow import batchnorm, tiles
from rotationout.experiments.narrow.convolution import Convolution, Fork
from rotationout.experiments.narrow.convolving import EvalNorm, convolve

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]
# N, C, outputs, H, W of what is convolved: several programs, every table of tiles, channels that are no power of two.
HALVED = {
    "16": (3, 16, 32, 6, 10),
    "32": (2, 32, 64, 8, 6),
    "to fewer": (2, 64, 16, 4, 6),
    "48": (3, 48, 48, 4, 6),
    "to one": (3, 16, 16, 2, 2),
    "several programs": (3, 16, 16, 10, 12),
}


def halved(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, stride=2, padding=1)


@pytest.fixture
def _small_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs of several steps, also for small maps; a tap at a time in any precision."""
    for channels in tiles.STRIDED:
        monkeypatch.setitem(tiles.STRIDED, channels, tiles.STRIDED[channels]._replace(positions=32))
        replaced = tiles.WEIGHED_STRIDED[channels]._replace(positions=32, programs=6)
        monkeypatch.setitem(tiles.WEIGHED_STRIDED, channels, replaced)


@pytest.mark.usefixtures("_small_strides")
@pytest.mark.parametrize("dtype", [HALF, torch.float32], ids=str)
@pytest.mark.parametrize(("case", "memory"), [*((case, LAST) for case in HALVED), ("16", torch.contiguous_format)])
def test_strides_are_torchs(case: str, memory: torch.memory_format, dtype: torch.dtype) -> None:
    """Maps, gradients of both, and statistics of what is stored."""
    count, channels, outputs, height, width = HALVED[case]
    kept = weights(outputs, channels, memory).to(dtype).float()
    x, weight = leaves(maps(count, channels, height, width, dtype=dtype), kept)
    exact_x, exact_weight = leaves(x, weight, dtype=torch.float64)
    given, norm = maps(count, outputs, height // 2, width // 2, dtype=dtype), layer(outputs)
    y, (mean, scale) = Convolution.apply(x, weight, training_norm(norm), 2)
    y.backward(given)
    right = halved(exact_x, exact_weight)
    right.backward(given.double())
    close = 5e-6 if dtype == torch.float32 else torch.finfo(HALF).eps
    assert error(y, right) < close
    assert error(x.grad, exact_x.grad) < close
    assert error(weight.grad, exact_weight.grad) < 5e-6
    assert y.is_contiguous(memory_format=LAST)
    assert weight.grad.stride() == weight.stride()
    assert error(mean, y.double().mean((0, 2, 3))) < 3e-6
    assert error(scale, (y.double().var((0, 2, 3), correction=0) + norm.eps).rsqrt()) < 1e-5


@pytest.mark.usefixtures("_small_strides")
@pytest.mark.parametrize("added", [True, False], ids=["residual", "alone"])
@pytest.mark.parametrize("dtype", [HALF, torch.float32], ids=str)
def test_norms_in_eval_mode_are_done_on_the_way(dtype: torch.dtype, added: bool) -> None:
    x, weight = maps(3, 16, 6, 10, dtype=dtype), weights(32, 16).to(dtype).float()
    residual, norm = maps(3, 32, 3, 5, dtype=dtype) if added else None, layer(32).eval()
    eval_norm = EvalNorm(norm.running_mean, norm.running_var, norm.weight.detach(), norm.bias.detach(), norm.eps, True)
    y, _ = convolve(x, weight, mirrored=False, stride=2, added=residual, eval_norm=eval_norm)
    with torch.no_grad():
        wide = None if residual is None else residual.double()
        expected = normalised(copy.deepcopy(norm).double(), halved(x.double(), weight.double()), wide, True)
    assert error(y, expected) < (1e-5 if dtype == torch.float32 else torch.finfo(HALF).eps)


@pytest.mark.usefixtures("_small_strides")
def test_gradients_meet_at_a_fork_and_sums_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a norm with a residual, as where one stage ends and the next begins."""
    kernel = Counted(batchnorm.sums_kernel)
    monkeypatch.setattr(batchnorm, "sums_kernel", kernel)
    norm, (x, residual, weight) = layer(16), leaves(maps(3, 16, 6, 10), maps(3, 16, 6, 10), weights(32, 16))
    theirs, exact = copy.deepcopy(norm).double(), leaves(x, residual, weight, dtype=torch.float64)
    given, other = maps(3, 32, 3, 5), maps(3, 16, 6, 10)
    y, past = Fork.apply(fused(norm, x, residual, True), weight, None, 2)
    torch.autograd.backward((y, past), (given, other))
    assert not kernel.launches
    before = normalised(theirs, exact[0], exact[1], True)
    torch.autograd.backward((halved(before, exact[2]), before), (given.double(), other.double()))
    for mine, right in zip((x, residual, weight), exact, strict=True):
        assert error(mine.grad, right.grad) < 1e-5
    assert error(norm.weight.grad, theirs.weight.grad) < 1e-5
    assert error(norm.bias.grad, theirs.bias.grad) < 1e-5
