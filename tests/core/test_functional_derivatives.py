"""Derivatives of `rotate` and `rotation_out`: first and second, in x, the mean and the angle, and under torch.func."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import rotationout as ro
from rotationout.functional import rotate, rotation_out

MAPS = ro.Draw(pairing_per="example", side="one")
STRUCTURED = ro.Draw(pairing="structured")
PADDED = torch.tensor([[True, True, False], [True, True, True]])


def seeded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same draw at every call."""

    def wrapped(*args: Tensor) -> Tensor:
        torch.manual_seed(5)
        return function(*args)

    return wrapped


DERIVATIVES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "vectors": ((3, 16), {"draw": STRUCTURED}),
    "odd": ((3, 5), {}),
    "maps, batch mean": ((2, 4, 3), {"dim": 1, "draw": MAPS, "center": "batch"}),
    "blocks": ((2, 4, 3), {"dim": 1, "draw": MAPS, "center": "batch", "block_size": 2, "coverage": 0.5}),
    "mask": ((2, 4, 3), {"dim": 1, "draw": MAPS, "center": "batch", "mask": PADDED}),
    "mask, un-centred": ((2, 4, 3), {"dim": 1, "draw": MAPS, "mask": PADDED}),
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("backend", ["cpu", "small", "reference"])
def test_first_and_second_derivatives_backward_and_forward(name: str, backend: str) -> None:
    shape, choices = DERIVATIVES[name]
    function = seeded(lambda x: rotation_out(x, 0.3, backend=backend, **choices))
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, x, check_forward_ad=True)
    assert gradgradcheck(function, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("mean_shape", [(6,), (3, 1, 6)])
def test_derivatives_in_the_mean(mean_shape: tuple[int, ...]) -> None:
    x = torch.randn(3, 6, 2, dtype=torch.float64, requires_grad=True)
    mean = torch.randn(mean_shape, dtype=torch.float64, requires_grad=True)
    rotation = ro.sample_rotation(x.shape, 0.3, dim=1)
    assert gradcheck(lambda x, m: rotate(x, rotation, m, dim=1), (x, mean), check_forward_ad=True)
    assert gradgradcheck(lambda x, m: rotate(x, rotation, m, dim=1), (x, mean), check_fwd_over_rev=True)
    _, tangent = torch.func.jvp(lambda m: rotate(x.detach(), rotation, m, dim=1), (mean.detach(),), (mean.detach(),))
    difference = rotate(x, rotation, 2 * mean, dim=1) - rotate(x, rotation, mean, dim=1)
    torch.testing.assert_close(tangent, difference.detach())


def test_forward_mode_in_the_angle_is_right_or_refused() -> None:
    x, tan = torch.randn(4, 6), torch.rand(4)
    index = ro.sample_rotation((4, 6), 0.3).index

    def turn(tan: Tensor, backend: str | None) -> Tensor:
        return rotate(x, ro.Rotation(tan, index, 6), backend=backend)

    _, tangent = torch.func.jvp(lambda t: turn(t, "reference"), (tan,), (torch.ones(4),))
    torch.testing.assert_close(tangent, turn(tan + 1, None) - turn(tan, None))
    with pytest.raises(NotImplementedError, match="backend='reference'"):
        torch.func.jvp(lambda t: turn(t, None), (tan,), (torch.ones(4),))


@pytest.mark.parametrize("backend", [None, "cpu"])
def test_an_angle_can_be_learned(backend: str | None) -> None:
    theta = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, dtype=torch.float64)
    order = [2, 1, 0, 3]
    assert gradcheck(lambda angle: rotate(x, ro.Rotation.from_permutation(order, angle), backend=backend), theta)


def test_the_gradient_of_the_centred_form_is_that_of_plain_autograd() -> None:
    x = torch.randn(6, 8, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    (fast,) = torch.autograd.grad(rotation_out(x, 0.3, dim=1, draw=MAPS, center="batch").pow(3).sum(), x)
    torch.manual_seed(3)
    rotation = ro.sample_rotation(x.shape, 0.3, dim=1, draw=MAPS)
    about = x - x.mean((0, 2), keepdim=True)
    other = about.movedim(1, -1).gather(-1, rotation.partner.expand(6, 5, 8)) * rotation.sign
    plain = x + (rotation.tan.double().unsqueeze(-1) * other).movedim(-1, 1)
    (slow,) = torch.autograd.grad(plain.pow(3).sum(), x)
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("center", [None, "batch"])
def test_vmap_in_both_randomness_modes(center: str | None) -> None:
    x = torch.randn(1, 5, 6).expand(4, 5, 6)

    def noisy(rows: Tensor) -> Tensor:
        return rotation_out(rows, 0.3, draw=STRUCTURED, center=center)

    same = torch.vmap(noisy, randomness="same")(x)
    different = torch.vmap(noisy, randomness="different")(x)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    expected = torch.linalg.vector_norm(x, dim=-1)
    assert (torch.linalg.vector_norm(different, dim=-1) >= expected * 0.5).all()
    for randomness in ("same", "different"):
        inner = torch.vmap(torch.func.grad(lambda rows: noisy(rows).pow(2).sum()), randomness=randomness)(x)
        assert inner.shape == x.shape
        torch.manual_seed(1)
        outer = torch.func.grad(lambda rows: torch.vmap(noisy, randomness=randomness)(rows).pow(2).sum())(x)  # noqa: B023
        torch.manual_seed(1)
        value = torch.vmap(noisy, randomness=randomness)(x).pow(2).sum()
        # The noise is linear in x, so x · grad of a square is twice the square.
        torch.testing.assert_close((outer * x).sum(), 2 * value)


def test_vmap_over_rotations_agrees_with_a_loop() -> None:
    x, tan = torch.randn(3, 5, 6), torch.rand(3, 5)
    index = ro.sample_rotation((5, 6), 0.3).index
    mean = torch.randn(3, 6)
    batched = torch.vmap(lambda x, t, m: rotate(x, ro.Rotation(t, index, 6), m))(x, tan, mean)
    for i in range(3):
        torch.testing.assert_close(batched[i], rotate(x[i], ro.Rotation(tan[i], index, 6), mean[i]))


@pytest.mark.parametrize("backend", [None, "cpu"])
@pytest.mark.parametrize("center", [None, "batch"])
def test_many_gradients_at_once(center: str | None, backend: str | None) -> None:
    """``is_grads_batched``, which `torch.autograd.functional.jacobian` uses too."""
    x = torch.randn(3, 4, requires_grad=True)

    def turn(x: Tensor) -> Tensor:
        return rotation_out(x, 0.3, center=center, generator=torch.Generator().manual_seed(0), backend=backend)

    y = turn(x)
    (rows,) = torch.autograd.grad(y, x, torch.eye(12).view(12, 3, 4), is_grads_batched=True)
    torch.testing.assert_close(rows.view(3, 4, 3, 4), torch.autograd.functional.jacobian(turn, x))


@pytest.mark.parametrize("backend", [None, "cpu"])
@pytest.mark.parametrize("p", [1e-4, 0.2])
def test_the_gradient_of_a_mean_is_not_lost_in_rounding(p: float, backend: str | None) -> None:
    x, mean = torch.randn(64, 16, dtype=torch.bfloat16), torch.randn(16, requires_grad=True)
    rotation, weight = ro.sample_rotation((64, 16), p), torch.randn(64, 16, dtype=torch.bfloat16)
    found = [
        torch.autograd.grad(rotate(x.to(kind), rotation, mean, backend=backend), mean, weight.to(kind))[0]
        for kind in (torch.bfloat16, torch.float64)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5 * p**0.5)


def test_forward_mode_jacobian_in_the_mean_of_a_large_tensor() -> None:
    """Large enough for the kernels on a CPU, which do not know batches of tangents."""
    rotation, x = ro.sample_rotation((1200, 64), 0.3), torch.randn(1200, 64)

    def turned(mean: Tensor) -> Tensor:
        return ro.functional.rotate(x, rotation, mean).sum(0)

    forward, backward = (
        torch.autograd.functional.jacobian(turned, torch.zeros(64), vectorize=True, strategy=f"{way}-mode")
        for way in ("forward", "reverse")
    )
    torch.testing.assert_close(forward, backward)
