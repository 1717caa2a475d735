"""Rotations with ``gradient="plane"`` turn features as others do, and gradients in the plane of x and x̃ only."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import rotationout as ro
from rotationout.functional.rotation import turn_about

LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "vectors": (ro.RotationOut, (16, 8)),
    "maps": (ro.RotationOut2d, (4, 7, 5, 5)),
    "sequences": (ro.RotationOutSequence, (6, 4, 8)),
}
AXES = {"vectors": -1, "maps": 1, "sequences": -1}
each_kind = pytest.mark.parametrize("kind", LAYERS)
each_center = pytest.mark.parametrize("center", [None, "batch"])


def both(kind: str, *inputs: Any, **choices: Any) -> tuple[Any, Any]:
    """What a layer returns with the gradient in the plane and with the operator's, for the same random numbers."""
    layer, _ = LAYERS[kind]
    found = []
    for gradient in ("plane", "operator"):
        torch.manual_seed(0)
        found.append(layer(0.5, gradient=gradient, **choices)(*inputs))
    return found[0], found[1]


def turned_back(g: Tensor, z: Tensor, added: Tensor, axis: int) -> Tensor:
    """Mᵀg with M = I + (Δzᵀ − zΔᵀ) / |z|², by matrices."""
    rows, g, added = (t.movedim(axis, -1).unsqueeze(-1) for t in (z, g, added))
    square = rows.mT @ rows
    skew = (added @ rows.mT - rows @ added.mT) / square
    return (g + skew.mT @ g).squeeze(-1).movedim(-1, axis)


@each_kind
@each_center
@pytest.mark.parametrize("options", [{}, {"keep_zeros": True}, {"pairing_per": "batch", "law": "uniform_tan"}])
def test_features_turn_as_they_do_with_the_gradient_of_the_operator(
    kind: str, center: str | None, options: dict[str, Any]
) -> None:
    x = torch.randn(LAYERS[kind][1]).relu()
    plane, operator = both(kind, x, center=center, **options)
    assert torch.allclose(plane, operator, atol=1e-5)
    assert not torch.allclose(plane, x, atol=1e-2)


@each_kind
@each_center
def test_the_gradient_is_turned_back_in_the_plane(kind: str, center: str | None) -> None:
    x = torch.randn(LAYERS[kind][1], dtype=torch.float64, requires_grad=True)
    axis, g = AXES[kind] % x.ndim, torch.randn(x.shape, dtype=torch.float64)
    others = [a for a in range(x.ndim) if a != axis]
    plane, operator = both(kind, x, center=center)
    z = x.detach() if center is None else x.detach() - x.detach().mean(others, keepdim=True)
    expected = turned_back(g, z, plane.detach() - x.detach(), axis)
    if center == "batch":  # z = x − mean(x)
        added = expected - g
        expected = g + added - added.mean(others, keepdim=True)
    (mine,) = torch.autograd.grad(plane, x, g)
    (theirs,) = torch.autograd.grad(operator, x, g)
    assert torch.allclose(mine, expected, atol=1e-9)
    assert not torch.allclose(mine, theirs, atol=1e-2)


def drawn(x: Tensor, loss: Callable[[Tensor], Tensor], gradient: str) -> Tensor:
    """The gradients of a loss for all pairings of the features of a vector, with two angles."""
    found = []
    for order in itertools.permutations(range(len(x))):
        for angle in (0.4, -0.4):
            rotation = ro.Rotation.from_permutation(list(order), torch.tensor(angle, dtype=x.dtype))
            v = x.clone().requires_grad_()
            y = turn_about(v[None], rotation, 1, None, keep_zeros=False, gradient=gradient, sync=False, backend=None)
            found.append(torch.autograd.grad(loss(y[0]), v)[0])
    return torch.stack(found)


def test_the_mean_over_all_draws_is_that_of_the_operators_gradient_for_a_quadratic_loss() -> None:
    x, root = torch.randn(4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)

    def loss(y: Tensor) -> Tensor:
        return (root @ y).square().sum() + root[0] @ y

    plane, operator = drawn(x, loss, "plane"), drawn(x, loss, "operator")
    assert torch.allclose(plane.mean(0), operator.mean(0), atol=1e-12)
    without = torch.autograd.functional.jacobian(loss, x)
    assert not torch.allclose(plane.mean(0), without, atol=1e-3), "noise has an effect on the mean"


def test_the_noise_in_a_gradient_is_what_the_page_says() -> None:
    """Of a gradient that does not depend on the noise: λ|g|², or λ(|g|² − g∥²) / (D − 1) + λ g∥²."""
    x, g = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    lam = math.tan(0.4) ** 2
    along = (g @ x).square() / (x @ x)
    plane, operator = ((drawn(x, lambda y: y @ g, kind) - g).square().sum(-1).mean() for kind in ("plane", "operator"))
    assert torch.allclose(operator, lam * (g @ g))
    assert torch.allclose(plane, lam * ((g @ g - along) / 5 + along))


def test_the_rotation_is_held_constant_in_all_derivatives() -> None:
    """As the operator is: forward mode, and second derivatives, are those of the matrix M."""
    x = torch.randn(3, 6, dtype=torch.float64)

    def turned(values: Tensor) -> Tensor:
        torch.manual_seed(0)
        return ro.functional.rotation_out(values, 0.5, center="batch", gradient="plane")

    matrix = torch.autograd.functional.jacobian(turned, x).view(18, 18)
    assert torch.allclose(torch.func.jacfwd(turned, randomness="same")(x).view(18, 18), matrix, atol=1e-12)
    hessian = torch.autograd.functional.hessian(lambda values: (turned(values) ** 3).sum(), x).view(18, 18)
    assert torch.allclose(hessian, matrix.T @ (6 * turned(x).flatten()).diag() @ matrix, atol=1e-9)


def test_packed_sequences_blocks_and_running_means() -> None:
    packed = pack_sequence([torch.randn(3, 8), torch.randn(2, 8)])
    plane, operator = both("sequences", packed)
    assert torch.allclose(plane.data, operator.data, atol=1e-5)
    assert not torch.equal(plane.data, packed.data)
    maps = torch.randn(4, 8, 5, 5)
    plane, operator = both("maps", maps, block_size=3, coverage=0.5, center="running", num_features=8)
    assert torch.allclose(plane, operator, atol=1e-5)
    assert (plane == maps).all(1).any(), "positions outside of the blocks stay"


def test_padding_is_left_alone() -> None:
    x = torch.randn(4, 6, 8)
    mask = torch.arange(6).expand(4, 6) < torch.tensor([[6], [3], [4], [1]])
    x[~mask] = torch.nan
    plane, operator = both("vectors", x.requires_grad_(), mask, center="batch")
    assert plane[~mask].isnan().all()
    assert torch.allclose(plane[mask], operator[mask], atol=1e-5)
    (slope,) = torch.autograd.grad(plane[mask].sum(), x)
    assert not slope.isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_precision_memory_formats_and_vectors_of_zeros(dtype: torch.dtype) -> None:
    maps = torch.randn(4, 8, 5, 5).to(dtype).to(memory_format=torch.channels_last)
    maps[0, :, 0, 0] = 0
    plane, operator = both("maps", maps.requires_grad_(), center=None)
    assert plane.dtype == dtype
    assert plane.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(plane.float(), operator.float(), atol=0.05 if dtype != torch.float32 else 1e-5)
    g = torch.randn(maps.shape).to(dtype)
    (slope,) = torch.autograd.grad(plane, maps, g)
    assert slope.dtype == dtype
    assert torch.isfinite(slope).all()
    assert torch.equal(slope[0, :, 0, 0], g[0, :, 0, 0])


def test_vmap_and_compiled_layers() -> None:
    many = torch.randn(3, 5, 8)
    layer = ro.RotationOut(0.5, gradient="plane")
    assert not torch.equal(torch.func.vmap(layer, randomness="different")(many), many)
    x = torch.randn(16, 8, requires_grad=True)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    g = torch.randn(16, 8)
    (slope,) = torch.autograd.grad(y, x, g)
    assert torch.allclose(slope, turned_back(g, x.detach(), (y - x).detach(), -1), atol=1e-4)


def test_ways_to_make_it() -> None:
    layer = ro.noise("rotation", 0.2, dims=2, gradient="plane")
    assert isinstance(layer, ro.RotationOut2d)
    assert "gradient=plane" in repr(layer)
    assert "gradient" not in repr(ro.RotationOut(0.5))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 4))
    ro.swap(model, gradient="plane")
    assert isinstance(model[2], ro.RotationOut)
    assert model[2].gradient == "plane"
    x = torch.randn(4, 8)
    assert layer.eval()(x[:, :, None, None]).equal(x[:, :, None, None])
    with pytest.raises(ValueError, match="gradient must be one of 'operator', 'plane', got 'plan'; did you mean 'pla"):
        ro.RotationOut(0.2, gradient="plan")
    with pytest.raises(ValueError, match="gradient must be one of 'operator', 'plane', got True"):
        ro.functional.rotation_out(x, 0.2, gradient=True)  # type: ignore[arg-type]


def test_a_layer_saved_before_the_option_existed_has_the_gradient_of_the_operator() -> None:
    layer = ro.RotationOut(0.5)
    del layer.__dict__["gradient"]
    old = copy.deepcopy(layer)
    x = torch.randn(16, 8, requires_grad=True)
    g = torch.randn(16, 8)
    y = old(x)
    (slope,) = torch.autograd.grad(y, x, g)
    assert not torch.allclose(slope, turned_back(g, x.detach(), (y - x).detach(), -1), atol=1e-2)
