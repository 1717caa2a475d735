"""Rotations with ``gradient="plane"`` turn features as others do, and gradients in the plane of x and x̃ only."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import rotationout as ro
from rotationout.functional.rotation import turn_about

LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "vectors": (ro.RotationOut, (16, 8), {}),
    "maps": (ro.RotationOut2d, (4, 7, 5, 5), {"side": "symmetric"}),
    "sequences": (ro.RotationOutSequence, (6, 4, 8), {"pairing_per": "row"}),
}
AXES = {"vectors": -1, "maps": 1, "sequences": -1}
each_kind = pytest.mark.parametrize("kind", LAYERS)
each_center = pytest.mark.parametrize("center", [None, "batch"])


def both(kind: str, *inputs: Any, **choices: Any) -> tuple[Any, Any]:
    """What a layer returns with the gradient in the plane and with the operator's, for the same random numbers."""
    layer, _, needed = LAYERS[kind]
    found = []
    for gradient in ("plane", "operator"):
        torch.manual_seed(0)
        found.append(layer(0.5, gradient=gradient, **{**needed, **choices})(*inputs))
    return found[0], found[1]


def turned_back(g: Tensor, z: Tensor, added: Tensor, axis: int) -> Tensor:
    """Mᵀg with M = I + (Δzᵀ − zΔᵀ) / |z|², by matrices."""
    rows, g, added = (t.movedim(axis, -1).unsqueeze(-1) for t in (z, g, added))
    square = (rows.mT @ rows).clamp_min(torch.finfo(z.dtype).tiny)  # a vector of zeros stays
    skew = (added @ rows.mT - rows @ added.mT) / square
    return (g + skew.mT @ g).squeeze(-1).movedim(-1, axis)


@each_kind
@each_center
@pytest.mark.parametrize(
    "options", [{}, {"keep_zeros": True}, {"pairing_per": "batch", "side": "symmetric", "law": "uniform_tan"}]
)
def test_features_turn_as_they_do_with_the_gradient_of_the_operator(
    kind: str, center: str | None, options: dict[str, Any]
) -> None:
    x = torch.randn(LAYERS[kind][1]).relu()
    plane, operator = both(kind, x, center=center, **options)
    assert torch.allclose(plane, operator, atol=1e-5)
    assert not torch.allclose(plane, x, atol=1e-2)


@each_kind
@each_center
@pytest.mark.parametrize("keep_zeros", [False, True])
@pytest.mark.parametrize("backend", [None, "cpu", "reference"])
def test_the_gradient_is_turned_back_in_the_plane(
    kind: str, center: str | None, keep_zeros: bool, backend: str | None
) -> None:
    """Of z = x − m, where features that are kept at zero pass theirs on: g + (I − M) Kᵀ g, M the average of rows."""
    x = torch.randn(LAYERS[kind][1], dtype=torch.float64)
    x = (x.relu() if keep_zeros else x).requires_grad_()
    axis, g = AXES[kind] % x.ndim, torch.randn(x.shape, dtype=torch.float64)
    others = [a for a in range(x.ndim) if a != axis]
    plane, operator = both(kind, x, center=center, keep_zeros=keep_zeros, backend=backend)
    _, everywhere = both(kind, x.detach(), center=center)
    z = x.detach() if center is None else x.detach() - x.detach().mean(others, keepdim=True)
    turned = g * (x.detach() != 0) if keep_zeros else g
    added = turned_back(turned, z, everywhere - x.detach(), axis) - turned
    expected = g + (added if center is None else added - added.mean(others, keepdim=True))
    (mine,) = torch.autograd.grad(plane, x, g)
    (theirs,) = torch.autograd.grad(operator, x, g)
    assert torch.allclose(mine, expected, atol=1e-9)
    assert not torch.allclose(mine, theirs, atol=1e-2)


@pytest.mark.parametrize("center", [None, "batch", "given"])
@pytest.mark.parametrize("dim", [1, 2])
def test_large_batches_and_means_that_learn(center: Any, dim: int) -> None:
    """Beyond what `kernels.small` takes, in fp32 and bf16, about a mean with a gradient of its own."""
    x = torch.randn(64, 40, 48, dtype=torch.float64, requires_grad=True)
    given = torch.randn(x.size(dim), dtype=torch.float64, requires_grad=True)
    draw, g = ro.Draw(pairing_per="example"), torch.randn_like(x)
    found = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        about = given.to(dtype) if center == "given" else center
        y = ro.functional.rotation_out(x.to(dtype), 0.3, draw=draw, dim=dim, center=about, gradient="plane")
        wanted = (x, given) if center == "given" else (x,)
        found.append([y.double(), *torch.autograd.grad(y, wanted, g.to(dtype))])
        for exact, ours in zip(found[0], found[-1], strict=True):
            assert (ours - exact).norm() <= {8: 0, 4: 1e-5, 2: 0.01}[dtype.itemsize] * exact.norm()
    if center == "given":  # y = x + tan θ · A(x − m): what a mean gets is what x does not
        rest = (g - found[0][1]).movedim(dim, -1).flatten(0, -2).sum(0)
        assert torch.allclose(found[0][2], rest)


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


def test_the_plane_is_the_linear_regression_of_the_operator_on_what_it_adds() -> None:
    """So of all matrices with its mean, to second order, it has the least variance. Dropout is its own regression."""
    z = torch.randn(4, dtype=torch.float64)
    turns = []
    for order, angle in itertools.product(itertools.permutations(range(4)), (0.4, -0.4)):
        rotation = ro.Rotation.from_permutation(list(order), torch.tensor(angle, dtype=z.dtype))
        turns.append(rotation.matrix() - torch.eye(4, dtype=z.dtype))
    operators = torch.stack(turns)
    drops = torch.stack([torch.tensor(signs).double().diag() for signs in itertools.product((1.0, -1.0), repeat=4)])
    for matrices, own in ((operators, False), (drops, True)):
        added = matrices @ z
        fitted = (added @ torch.linalg.pinv(added) @ matrices.flatten(1)).view_as(matrices)
        planes = (added[:, :, None] * z - z[:, None] * added[:, None, :]) / (z @ z)
        assert torch.allclose(fitted, matrices if own else planes, atol=1e-12)
        assert torch.allclose(fitted, matrices, atol=1e-3) == own


def coupled(gradient: str, angles: list[tuple[float, float]]) -> Tensor:
    """The mean gradient of a loss that couples two rows, over all pairings, which they share, and over angles."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    root = torch.randn(8, 8, dtype=torch.float64, generator=generator)
    found = []
    for order, each in itertools.product(itertools.permutations(range(4)), angles):
        rotation = ro.Rotation.from_permutation([list(order)], torch.tensor(each, dtype=x.dtype))
        v = x.clone().requires_grad_()
        y = turn_about(v, rotation, 1, None, keep_zeros=False, gradient=gradient, sync=False, backend=None)
        found.append(torch.autograd.grad((root @ y.flatten()).square().sum(), v)[0])
    return torch.stack(found).mean(0)


def test_rows_that_turn_together_would_have_another_mean_and_are_refused() -> None:
    opposite = list(itertools.product((0.4, -0.4), (0.3, -0.3)))
    assert torch.allclose(coupled("plane", opposite), coupled("operator", opposite), atol=1e-12)
    together = [(0.4, 0.3)]
    assert not torch.allclose(coupled("plane", together), coupled("operator", together), rtol=0.02)
    told = "Set side='symmetric', for an angle of either sign at every position, or pairing_per='row', .* "
    for make in (ro.RotationOut2d, ro.RotationOutSequence):
        with pytest.raises(ValueError, match=told + "pairing_per='example', angle_per='row' and side='one'"):
            make(gradient="plane")
    x, shared = torch.randn(4, 8), ro.Draw(pairing_per="batch", angle_per="example")
    with pytest.raises(ValueError, match=r"Set angle_per='row' and side='symmetric', .*'batch', angle_per='example'"):
        ro.functional.rotation_out(x, 0.2, draw=shared, gradient="plane")
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout2d(0.2))
    with pytest.raises(ValueError, match="gradient='plane' would have a wrong mean where vectors turn the same way"):
        ro.swap(network, gradient="plane")
    ro.swap(network, gradient="plane", pairing_per="row")
    assert isinstance(network[2], ro.RotationOut2d)


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


@each_center
def test_packed_sequences_have_the_gradient_of_padded_ones(center: str | None) -> None:
    padded, g = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    padded[2, 1], g[2, 1] = 0, 0
    real = padded.clone().requires_grad_()
    layer = ro.RotationOutSequence(0.5, gradient="plane", side="symmetric", center=center)
    torch.manual_seed(0)
    y, _ = pad_packed_sequence(layer(pack_padded_sequence(real, [3, 2])))
    (slope,) = torch.autograd.grad(y, real, g)
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    torch.manual_seed(0)
    again = layer(real, mask)
    assert torch.allclose(y, again, atol=1e-5)
    assert torch.allclose(slope, torch.autograd.grad(again, real, g)[0], atol=1e-5)
    if center is None:
        assert torch.allclose(slope, turned_back(g, real.detach(), (y - real).detach(), -1), atol=1e-5)


def test_blocks_and_running_means() -> None:
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


@pytest.mark.parametrize("rows", [4, 4096])
def test_half_precision_rounds_only_the_result(rows: int) -> None:
    x = torch.randn(rows, 64).to(torch.bfloat16).requires_grad_()
    g = torch.randn(rows, 64).to(torch.bfloat16)
    torch.manual_seed(0)
    (slope,) = torch.autograd.grad(ro.RotationOut(0.5, gradient="plane")(x), x, g)
    torch.manual_seed(0)
    exact = x.detach().double().requires_grad_()
    wide = ro.RotationOut(0.5, gradient="plane", backend="reference")(exact)
    (expected,) = torch.autograd.grad(wide, exact, g.double())
    assert ((slope.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all()


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


def test_vmap_of_gradients() -> None:
    layer = ro.RotationOut(0.5, gradient="plane", center="batch")
    many, weights = torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    slope = torch.func.grad(lambda x, g: (layer(x) * g).sum())
    torch.manual_seed(0)
    together = torch.func.vmap(slope, randomness="same")(many, weights)
    for x, g, found in zip(many, weights, together, strict=True):
        torch.manual_seed(0)
        assert torch.allclose(found, slope(x, g), atol=1e-5)
        assert not torch.allclose(found, g, atol=0.1)


def assert_in_plane(call: Callable[[Tensor], Tensor], x: Tensor, tolerance: float = 1e-4) -> None:
    x, g = x.clone().requires_grad_(), torch.randn(x.shape)
    y = call(x)
    (slope,) = torch.autograd.grad(y, x, g)
    with torch.autocast("cpu", enabled=False):
        expected = turned_back(g, x.detach(), (y - x).detach().float(), -1)
    assert (slope - expected).abs().max() < tolerance
    assert (expected - g).abs().max() > 0.1


def test_compiled_exported_and_checkpointed_layers() -> None:
    layer, x = ro.RotationOut(0.5, gradient="plane"), torch.randn(64, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_in_plane(compiled, x)
    assert_in_plane(lambda x: checkpoint(compiled, x, use_reentrant=False), x)
    assert_in_plane(lambda x: checkpoint(layer, x, use_reentrant=False), torch.randn(8192, 16))
    for strict in (True, False):
        assert_in_plane(torch.export.export(layer.train(), (x,), strict=strict).module(), x)


@each_center
def test_transforms_of_torch_func_within_the_compiler(center: str | None) -> None:
    layer = ro.RotationOut(0.5, gradient="plane", center=center)
    x, g = torch.randn(5, 8), torch.randn(5, 8)
    calls = {
        "grad": torch.func.grad(lambda x: (layer(x) * g).sum()),
        "jvp": lambda x: torch.func.jvp(layer, (x,), (g,))[1],
        "vmap": torch.func.vmap(torch.func.grad(lambda x: (layer(x[None]) * g[0]).sum()), randomness="same"),
    }
    if center is not None:
        del calls["vmap"]  # the batch mean of one vector
    for name, call in calls.items():
        torch.manual_seed(0)
        eager = call(x)
        torch.manual_seed(0)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
        assert torch.allclose(compiled, eager, atol=1e-5), name
        assert not torch.allclose(eager, g, atol=0.1), name


@pytest.mark.parametrize("rows", [8, 8192])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_does_not_round_what_is_in_fp32(rows: int, compiled: bool) -> None:
    """In fp16 the squares of such features would overflow, and nothing be left of the plane."""
    layer: nn.Module = ro.RotationOut(0.5, gradient="plane")
    layer = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    with torch.autocast("cpu", dtype=torch.float16):
        assert_in_plane(layer, 100 * torch.randn(rows, 16), 1e-3)


@pytest.mark.parametrize("rows", [8, 8192])
def test_layers_that_change_the_output_in_place_and_penalties_of_gradients(rows: int) -> None:
    x, g = torch.randn(rows, 16, requires_grad=True), torch.randn(rows, 16)
    y = ro.RotationOut(0.5, gradient="plane")(x)
    moved = (y - x).detach()
    (slope,) = torch.autograd.grad(torch.relu_(y), x, g, create_graph=True)
    expected = turned_back(g * (x + moved > 0), x.detach(), moved, -1)
    assert torch.allclose(slope, expected, atol=1e-4)
    if slope.requires_grad:  # K is held constant
        (second,) = torch.autograd.grad(slope.square().sum(), x, allow_unused=True)
        assert second is None or not second.any()


@pytest.mark.parametrize("rows", [8, 8192])
def test_batches_of_gradients_and_second_derivatives_of_any_size(rows: int) -> None:
    x = torch.randn(rows, 16, dtype=torch.float64, requires_grad=True)
    y = ro.RotationOut(0.5, gradient="plane")(x)
    gs = torch.randn(3, rows, 16, dtype=torch.float64)
    (slopes,) = torch.autograd.grad(y, x, gs, is_grads_batched=True, retain_graph=True)
    for g, slope in zip(gs, slopes, strict=True):
        assert torch.allclose(slope, torch.autograd.grad(y, x, g, retain_graph=True)[0])
    g = gs[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(y, x, g, create_graph=True)
    (curve,) = torch.autograd.grad(slope.square().sum() / 2, g)  # M Mᵀ g
    assert torch.allclose(curve, turned_back(slope, x, x - y, -1))


@pytest.mark.parametrize("rows", [8, 8192])
def test_an_input_that_changes_before_backward_is_told(rows: int) -> None:
    x = torch.randn(rows, 16, requires_grad=True)
    hidden = x * 2
    y = ro.RotationOut(0.5, gradient="plane")(hidden)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_ways_to_make_it() -> None:
    layer = ro.noise("rotation", 0.2, dims=2, gradient="plane", side="symmetric")
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
