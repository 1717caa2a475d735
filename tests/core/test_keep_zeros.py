"""Features that are zero stay zero with ``keep_zeros``, and the others turn as without it."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import rotationout as ro
from rotationout.analysis import (
    conditional_moments,
    correct_batchnorm_,
    estimate_moments,
    noise_law,
    total_moments,
)

LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "vectors": (ro.RotationOut, (64, 8)),
    "maps": (ro.RotationOut2d, (4, 8, 5, 5)),
    "sequences": (ro.RotationOutSequence, (6, 4, 8)),
}


def both(kind: str, x: Any, **choices: Any) -> tuple[Any, Any]:
    """What a layer returns with keep_zeros and without it, for the same random numbers."""
    layer, _ = LAYERS[kind]
    found = []
    for keep in (True, False):
        torch.manual_seed(0)
        found.append(layer(0.5, keep_zeros=keep, **choices)(x))
    return found[0], found[1]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("center", [None, "batch"])
def test_zeros_stay_zero_and_what_is_not_zero_turns(kind: str, center: str | None) -> None:
    x = torch.randn(LAYERS[kind][1]).relu().requires_grad_()
    kept, turned = both(kind, x, center=center)
    zero = x == 0
    assert zero.any()
    assert (turned[zero] != 0).any(), "without it they do not stay"
    assert torch.equal(kept, torch.where(zero, 0.0, turned))
    assert not torch.equal(kept, x)
    weight = torch.randn(kept.shape)
    (mine,) = torch.autograd.grad((kept * weight).sum(), x)
    (others,) = torch.autograd.grad((turned * weight * ~zero).sum() + (x * weight * zero).sum(), x)
    assert torch.allclose(mine, others, atol=1e-5)


def test_it_is_the_identity_in_eval_mode_and_without_noise() -> None:
    x = torch.randn(4, 8).relu()
    layer = ro.RotationOut(0.5, keep_zeros=True)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(ro.RotationOut(0.0, keep_zeros=True)(x), x)
    assert "keep_zeros=True" in repr(layer)
    assert "keep_zeros" not in repr(ro.RotationOut(0.5))


def test_packed_sequences_blocks_and_masks() -> None:
    packed = pack_sequence([torch.randn(3, 8).relu(), torch.randn(2, 8).relu()])
    kept, turned = both("sequences", packed)
    assert torch.equal(kept.data, torch.where(packed.data == 0, 0.0, turned.data))
    maps = torch.randn(4, 8, 5, 5).relu()
    kept, turned = both("maps", maps, block_size=3, coverage=0.5)
    assert torch.equal(kept, torch.where(maps == 0, 0.0, turned))
    rows = torch.randn(6, 8).relu()
    mask = torch.tensor([True, True, False, True, True, False])
    kept = ro.functional.rotation_out(rows, 0.5, mask=mask, keep_zeros=True)
    assert torch.equal(kept[~mask], rows[~mask])
    assert (kept[rows == 0] == 0).all()


def test_other_ways_to_make_it() -> None:
    layer = ro.noise("rotation", 0.2, dims=2, keep_zeros=True)
    assert isinstance(layer, ro.RotationOut2d)
    assert layer.keep_zeros
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 4))
    ro.swap(model, keep_zeros=True)
    assert isinstance(model[2], ro.RotationOut)
    assert model[2].keep_zeros


@pytest.mark.parametrize(
    "make",
    [ro.RotationOut, ro.RotationOut2d, lambda p, **choice: ro.functional.rotation_out(torch.ones(2, 4), p, **choice)],
)
@pytest.mark.parametrize("wrong", ["no", 1, None, torch.tensor(True)])
def test_it_must_be_true_or_false(make: Callable[..., object], wrong: object) -> None:
    with pytest.raises(TypeError, match=re.escape(f"keep_zeros must be True or False, got {wrong!r}")):
        make(0.2, keep_zeros=wrong)


def test_the_moments_given_x_are_those_that_are_measured() -> None:
    x = torch.tensor([[1.0, 0.0, 2.0, -1.0], [0.0, 0.5, 0.0, 1.5]])
    layer = ro.RotationOut(0.5, keep_zeros=True)
    alone, joint = (conditional_moments(layer, x, joint=joint) for joint in (False, True))
    assert torch.equal(alone.mean, x.double())
    measured = estimate_moments(layer, x, 40_000, covariance=True).covariance.reshape(8, 8)
    assert torch.allclose(measured.double(), joint.covariance, atol=0.15)
    assert torch.allclose(alone.covariance, torch.stack([joint.covariance[:4, :4], joint.covariance[4:, 4:]]))
    zero = x.flatten() == 0
    assert (joint.covariance[zero] == 0).all()
    assert (joint.covariance.diagonal()[~zero] > 0).all()


def test_there_is_no_law_of_second_moments() -> None:
    layer = ro.RotationOut(0.5, keep_zeros=True, center="batch")
    with pytest.raises(TypeError, match="depends on which features are zero"):
        noise_law(layer)
    with pytest.raises(TypeError, match="depends on which features are zero"):
        total_moments(layer, torch.zeros(4), torch.eye(4))
    model = nn.Sequential(nn.ReLU(), layer, nn.BatchNorm1d(4))
    model(torch.randn(16, 4))
    with pytest.raises(ValueError, match="keep_zeros=True: the variance that it adds depends on which features"):
        correct_batchnorm_(model, [torch.randn(16, 4)])
    model[1] = ro.RotationOut(0.5, keep_zeros=True, center=None)
    with pytest.raises(ValueError, match="keep_zeros=True: the variance"):  # another centre would not help
        correct_batchnorm_(model, [torch.randn(16, 4)])


def test_it_compiles_and_keeps_low_precision() -> None:
    x = torch.randn(16, 8, dtype=torch.bfloat16).relu()
    layer = ro.RotationOut(0.5, keep_zeros=True)
    kept = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert kept.dtype == torch.bfloat16
    assert (kept[x == 0] == 0).all()
    assert not torch.equal(kept, x)


def test_a_layer_saved_before_the_option_existed_turns_zeros_too() -> None:
    layer = ro.RotationOut(0.5)
    del layer.__dict__["keep_zeros"]
    old = copy.deepcopy(layer)
    x = torch.randn(16, 8).relu()
    assert (old(x)[x == 0] != 0).any()
    assert "keep_zeros" not in repr(old)
    assert noise_law(old).lam == pytest.approx(1.0)


def test_padding_derivatives_memory_formats_and_vmap() -> None:
    x = torch.randn(4, 6, 8).relu()
    mask = torch.arange(6).expand(4, 6) < torch.tensor([[6], [3], [4], [1]])
    x[~mask] = torch.nan
    turned = ro.RotationOut(0.5, center="batch", keep_zeros=True)(x.requires_grad_(), mask)
    assert turned[~mask].isnan().all()
    (slope,) = torch.autograd.grad(turned[mask].sum(), x)
    assert not slope.isnan().any()
    assert not turned[mask].isnan().any()
    active = (torch.rand(3, 4, dtype=torch.float64) + 0.1) * torch.tensor([1.0, 1.0, 0.0, 1.0])

    def cubed(values: torch.Tensor) -> torch.Tensor:
        """Of the features that are not zero: at zero the option has no derivative."""
        torch.manual_seed(0)
        full = active.clone().index_copy(1, torch.tensor([0, 1, 3]), values)
        return ro.functional.rotation_out(full, 0.5, center="batch", keep_zeros=True) ** 3

    values = active[:, [0, 1, 3]].requires_grad_()
    assert torch.autograd.gradcheck(cubed, values)
    assert torch.autograd.gradgradcheck(cubed, values)
    maps = torch.randn(4, 8, 5, 5).relu().to(memory_format=torch.channels_last)
    assert ro.RotationOut2d(0.5, keep_zeros=True)(maps).is_contiguous(memory_format=torch.channels_last)
    many = torch.randn(3, 5, 8).relu()
    layer = ro.RotationOut(0.5, keep_zeros=True)
    mapped = torch.func.vmap(layer, randomness="different")(many)
    assert (mapped[many == 0] == 0).all()
    assert not torch.equal(mapped, many)
