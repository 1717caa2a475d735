"""Convolutions that do a BatchNorm in eval mode on their way: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.narrow_maps import HALF, LAST, Counted, error, layer, maps, normalised, weights
from tests.narrow_maps import _everywhere as _everywhere  # fixtures
from tests.narrow_maps import _exact as _exact
from tests.narrow_maps import _few_programs as _few_programs
from tests.narrow_maps import small_tiles as small_tiles
from tests.test_narrow_convolution import CONVOLUTIONS, TILED
from tests.test_narrow_convolution import tiled as tiled  # a fixture
from torch import Tensor, nn
from torch.nn import functional as F

from rotationout.experiments.narrow import conditions, convolving, layers
from rotationout.experiments.narrow.convolving import EvalNorm, convolve
from rotationout.experiments.networks import ResNet

pytestmark = [pytest.mark.usefixtures("_poisoned"), *MARKS]


def settled(channels: int) -> nn.BatchNorm2d:
    """A layer that has seen something."""
    norm = layer(channels)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm.eval()


def eval_norm(norm: nn.BatchNorm2d, relu: bool) -> EvalNorm:
    return EvalNorm(norm.running_mean, norm.running_var, norm.weight.detach(), norm.bias.detach(), norm.eps, relu)


@pytest.mark.parametrize(
    ("dtype", "tiled", "case", "then"),
    [
        (*tile, case, then)
        for tile, case, then in crossed(
            TILED, ["odd", "several programs", "to more", "48"], ["", "residual", "relu", "residual, relu"]
        )
    ],
    indirect=["tiled"],
    ids=str,
)
def test_a_launch_does_all_of_it(case: str, dtype: torch.dtype, then: str, tiled: None) -> None:
    added, relu = "residual" in then, "relu" in then
    count, channels, outputs, height, width = CONVOLUTIONS[case]
    x, weight = maps(count, channels, height, width, dtype=dtype), weights(outputs, channels).to(dtype).float()
    residual, norm = maps(count, outputs, height, width, dtype=dtype) if added else None, settled(outputs)
    y, sums = convolve(x, weight, mirrored=False, added=residual, eval_norm=eval_norm(norm, relu))
    assert sums is None
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    wide = None if residual is None else residual.double()
    with torch.no_grad():
        expected = normalised(copy.deepcopy(norm).double(), exact, wide, relu)
    assert error(y, expected) < (1e-5 if dtype == torch.float32 else torch.finfo(HALF).eps)


def test_what_is_not_a_number_stays_so_in_eval_mode() -> None:
    x = maps(2, 16, 4, 4)
    x[0, 3, 1, 1] = float("nan")
    y, _ = convolve(x, weights(16, 16), mirrored=False, eval_norm=eval_norm(settled(16), True))
    assert y[0, :, 0, 0].isnan().all()
    assert not y[1].isnan().any()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """The kernels of convolutions."""
    kernels = {name: Counted(getattr(convolving, name)) for name in ("convolve_kernel", "strip_kernel")}
    for name, kernel in kernels.items():
        monkeypatch.setattr(convolving, name, kernel)
    return list(kernels.values())


@pytest.fixture
def normed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The channels of every BatchNorm that torch does."""
    seen: list[int] = []

    def counted(x: Tensor, *args: Any, batch_norm: Any = F.batch_norm, **kwargs: Any) -> Tensor:
        seen.append(x.size(1))
        found: Tensor = batch_norm(x, *args, **kwargs)
        return found

    monkeypatch.setattr(F, "batch_norm", counted)
    return seen


def networks(authors: bool, noise: Any = None, **options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    """Torch's, ours, and images."""
    torch.manual_seed(0)
    made = [ResNet(2, 3, noise, authors=authors, fused=fused, **options) for fused in (False, True)]
    plain, ours = (network.to(DEVICE).to(memory_format=LAST).eval() for network in made)
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    ours.load_state_dict(plain.state_dict())
    return plain, ours, torch.randn(2, 3, 8, 8).to(DEVICE).contiguous(memory_format=LAST)


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize("authors", [True, False], ids=["projections", "padding"])
def test_a_network_is_tested_as_torchs(authors: bool, launched: list[Counted], normed: list[int]) -> None:
    plain, ours, x = networks(authors)
    before = {name: buffer.clone() for name, buffer in ours.named_buffers()}
    with torch.no_grad():
        expected = plain(x)
        normed.clear()
        assert error(ours(x), expected.double()) < 1e-4
    assert sum(kernel.launches for kernel in launched) == 13  # the stem's, and twelve in blocks
    assert normed == ([32, 64] if authors else [])  # those of projections
    assert all(torch.equal(buffer, before[name]) for name, buffer in ours.named_buffers())


@pytest.mark.usefixtures("_everywhere", "_few_programs")
def test_under_autocast_maps_are_rounded_once() -> None:
    """At most twice the error of torch's layers, each of which rounds."""
    plain, ours, x = networks(True)
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(x.double())
        with torch.autocast(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float16):
            theirs, mine = plain(x), ours(x)
    assert mine.dtype == theirs.dtype
    assert error(mine, exact) <= 2 * error(theirs, exact)


@pytest.mark.usefixtures("_everywhere", "_few_programs")
@pytest.mark.parametrize("reason", ["gradients", "statistics of the batch", "a hook", "a noise at work", "a switch"])
def test_what_else_a_network_may_be_asked(
    reason: str, launched: list[Counted], normed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the layers are done one by one, to the same effect."""
    noise = (lambda _: nn.Hardtanh(-0.5, 0.5)) if reason == "a noise at work" else None
    plain, ours, x = networks(False, noise, stages=(1,), places=("bn1",))
    block, other = ours.stages[0], plain.stages[0]
    x, seen = maps(2, 16, 5, 7), []
    if reason == "statistics of the batch":
        block.bn1.train()
        other.bn1.train()
    if reason == "a hook":
        for module in (block.bn1, block.noise_a):
            module.register_forward_hook(lambda module, args, y: seen.append(type(module)))
    if reason == "a switch":
        monkeypatch.setattr(conditions, "SETTLED", False)
    with torch.set_grad_enabled(reason == "gradients"):
        expected = other(x)
        normed.clear()
        assert error(block(x), expected.detach().double()) < 1e-5
    assert sum(kernel.launches for kernel in launched) == 2
    by_torch = {"gradients": 2, "statistics of the batch": 0, "a hook": 2, "a noise at work": 2, "a switch": 2}
    assert len(normed) == by_torch[reason]
    assert seen == ([nn.Identity, nn.BatchNorm2d] if reason == "a hook" else [])


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(16, affine=False),
        nn.BatchNorm2d(16, track_running_stats=False),
        nn.GroupNorm(4, 16),
        nn.Identity(),
    ],
    ids=str,
)
def test_other_norms_are_torchs_in_eval_mode(norm: nn.Module) -> None:
    conv, x = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(DEVICE), maps(2, 16, 4, 4)
    norm = norm.to(DEVICE).eval()
    with torch.no_grad():
        found = layers.convolve_normalised(conv, norm, x, x)
        assert error(found, F.relu(x + norm(conv(x))).double()) < 1e-5


@pytest.mark.usefixtures("_everywhere")
def test_compiled_blocks_are_torchs_in_eval_mode() -> None:
    plain, ours, _ = networks(False)
    x = torch.randn(2, 16, 4, 4).to(DEVICE)
    with torch.no_grad():
        compiled = torch.compile(ours.stages[0], backend="eager", fullgraph=True)(x)
        assert torch.equal(compiled, plain.stages[0](x))
