"""Cutout and Shake-Shake, beyond the battery of test_noise.py: where squares lie, and what flows back."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.core.test_statistics import Z_LIMIT
from torch import Tensor

import rotationout as ro
from rotationout.functional import cutout, shake_shake


def hidden(examples: int, height: int, width: int, p: float) -> Tensor:
    return cutout(torch.ones(examples, 2, height, width), p) == 0


@pytest.mark.parametrize(("size", "p", "sides"), [((6, 6), 0.2, (3, 3)), ((8, 6), 0.25, (4, 3)), ((5, 9), 0.1, (2, 3))])
def test_one_rectangle_per_image_clipped_at_the_border(size: tuple[int, int], p: float, sides: tuple[int, int]) -> None:
    cut = hidden(400, *size, p)
    assert torch.equal(cut[:, 0], cut[:, 1]), "the same in all channels"
    rows, columns = cut[:, 0].any(2), cut[:, 0].any(1)
    assert torch.equal(cut[:, 0], rows.unsqueeze(2) & columns.unsqueeze(1)), "a rectangle"
    for taken, side in ((rows, sides[0]), (columns, sides[1])):
        start, count = taken.int().argmax(1), taken.sum(1)
        assert all(taken[i, start[i] : start[i] + count[i]].all() for i in range(len(taken))), "without gaps"
        assert count.max() == side
        inside = taken[:, 1:-1].any(1) & ~taken[:, 0] & ~taken[:, -1]
        assert (count[inside] == side).all(), "whole unless it touches the border"
    assert len(torch.unique(cut.flatten(1), dim=0)) > 10, "examples have squares of their own"


def test_cutout_hides_every_pixel_as_often_as_its_centres_do() -> None:
    """Along an axis of n pixels, a side of l hides pixel i for the centres c with i − c + ⌊l/2⌋ in 0 … l − 1."""
    examples, n, side = 40_000, 5, 3
    share = hidden(examples, n, n, (side / n) ** 2)[:, 0].double().mean(0)
    along = torch.tensor([sum(0 <= i - c + side // 2 < side for c in range(n)) / n for i in range(n)]).double()
    expected = torch.outer(along, along)
    assert expected.mean() < (side / n) ** 2, "clipping hides less than p"
    z = (share - expected) / (expected * (1 - expected) / examples).sqrt()
    assert z.abs().max() < 5.5  # the largest of 25


def test_cutout_keeps_dtype_and_memory_format_and_takes_single_images() -> None:
    x = torch.randint(1, 255, (3, 2, 6, 6), dtype=torch.uint8).to(memory_format=torch.channels_last)
    y = ro.nn.Cutout(0.25)(x)
    assert y.dtype == torch.uint8
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (ro.nn.Cutout(0.25)(x[0]) == 0).any()
    for shape in ((0, 2, 6, 6), (3, 2, 0, 6), (3, 2, 6, 0)):
        assert cutout(torch.ones(shape), 0.25).shape == shape


def test_functions_that_are_off() -> None:
    x, y = torch.randn(3, 2, 6, 6), torch.randn(3, 2, 6, 6)
    assert cutout(x, 0.25, training=False) is x
    assert cutout(x, 0.0) is x
    even = x * 0.5 + y * 0.5
    assert torch.equal(shake_shake(x, y, training=False), even)
    assert torch.equal(shake_shake(x, y, 0.0), even)
    assert not torch.allclose(shake_shake(x, y, 0.01), even)


def test_cutout_keeps_a_mask_and_no_more_for_backward() -> None:
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ro.nn.Cutout(0.25)(torch.randn(3, 2, 6, 6, requires_grad=True))
    assert [(tensor.dtype, tensor.numel()) for tensor in kept] == [(torch.bool, 3 * 6 * 6)]


def weights_of(first: Tensor, second: Tensor, mixed: Tensor) -> Tensor:
    return (mixed - second) / (first - second)


@pytest.mark.parametrize("p", [0.1, 0.25])
def test_shake_shake_weights_are_uniform_with_the_variance_of_p(p: float) -> None:
    examples = 100_000
    first, second = torch.ones(examples, 1, dtype=torch.float64), torch.zeros(examples, 1, dtype=torch.float64)
    alpha = weights_of(first, second, shake_shake(first, second, p))
    reach = math.sqrt(3 * p / (1 - p))
    assert 0.5 - reach / 2 <= alpha.min() < alpha.max() <= 0.5 + reach / 2
    for power, expected in ((1, 0.0), (2, p / (1 - p)), (4, reach**4 / 5)):
        values = (2 * alpha - 1) ** power
        z = (values.mean() - expected) / (values.std() / math.sqrt(examples))
        assert abs(z.item()) < Z_LIMIT


@pytest.mark.parametrize("per", ["example", "batch"])
@pytest.mark.parametrize("backward", ["shake", "keep", "even"])
def test_shake_shake_backward_weights(per: str, backward: str) -> None:
    first = torch.randn(50, 3, 2, dtype=torch.float64, requires_grad=True)
    second = torch.randn(50, 3, 2, dtype=torch.float64, requires_grad=True)
    mixed = ro.nn.ShakeShake(0.25, per=per, backward=backward)(first, second)
    alpha = weights_of(first, second, mixed).detach()
    grad = torch.randn_like(mixed)
    returned = [g / grad for g in torch.autograd.grad(mixed, (first, second), grad)]
    torch.testing.assert_close(returned[0] + returned[1], torch.ones_like(grad))
    for weight in (alpha, returned[0]):
        torch.testing.assert_close(weight, weight[:, :1, :1].expand_as(weight))
        assert per == "example" or torch.allclose(weight, weight[:1])
    if backward == "keep":
        torch.testing.assert_close(returned[0], alpha)
    elif backward == "even":
        torch.testing.assert_close(returned[0], torch.full_like(grad, 0.5))
    else:
        assert not torch.allclose(returned[0], alpha)
        if per == "example":
            correlation = torch.corrcoef(torch.stack([returned[0][:, 0, 0], alpha[:, 0, 0]]))[0, 1]
            assert correlation.abs() < 0.6  # of 50 independent pairs; beyond it once in 1e5


def test_shake_shake_keeps_weights_and_no_more_for_backward() -> None:
    for backward in ("shake", "keep", "even"):
        kept: list[Tensor] = []
        first, second = torch.randn(2, 8, 5, 5, 5, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            shake_shake(first, second, backward=backward)
        assert sum(tensor.numel() for tensor in kept) <= 2 * 8


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.nn.ShakeShake(0.3), ValueError, "p must be at most 0.25 for Shake-Shake, got 0.3"),
        (lambda: setattr(ro.nn.ShakeShake(0.1), "p", 0.3), ValueError, "p must be at most 0.25"),
        (lambda: ro.nn.ShakeShake(per="row"), ValueError, "per must be one of 'example', 'batch'"),
        (lambda: ro.nn.ShakeShake(backward="shaky"), ValueError, "did you mean 'shake'"),
        (lambda: shake_shake(torch.ones(2), torch.ones(2), per="row"), ValueError, "per must be one of 'example', 'ba"),
        (lambda: shake_shake(torch.ones(2), torch.ones(2), backward="shaky"), ValueError, "did you mean 'shake'"),
        (lambda: shake_shake(torch.tensor(1.0), torch.tensor(1.0)), TypeError, r"\(N, …\), got torch.float32 \(\)"),
        (lambda: shake_shake(torch.ones(2, 3), torch.ones(2, 4)), ValueError, "the same shape and dtype"),
        (lambda: shake_shake(torch.ones(2), torch.ones(2).double()), ValueError, "the same shape and dtype"),
        (lambda: shake_shake(torch.ones(2), 1.0), TypeError, "second must be the output of a branch"),
        (
            lambda: shake_shake(torch.ones(2).long(), torch.ones(2).long()),
            TypeError,
            "first must be .* got torch.int64",
        ),
        (lambda: cutout(torch.ones(4, 4), 0.2), ValueError, r"Cutout takes images, .* got shape \(4, 4\)"),
        (lambda: cutout([1.0], 0.2), ValueError, "Cutout takes images, .* got list"),
        (lambda: cutout(torch.ones(1, 4, 4).to_sparse(), 0.2), TypeError, "a dense tensor, got torch.sparse_coo"),
        (lambda: cutout(torch.ones(1, 4, 4), 1.0), ValueError, "p is a drop probability"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
