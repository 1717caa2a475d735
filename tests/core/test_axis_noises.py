"""Noises along any axis, beyond the battery of test_noise.py: laws, means, padding, memory, bad input."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.functional import centred_dropout, gaussian_dropout, isotropic_noise, rotation_out, uout

Function = Callable[..., Tensor]
Layer = Callable[..., nn.Module]
NOISES = [gaussian_dropout, uout, centred_dropout, isotropic_noise]
LAYERS = [ro.nn.GaussianDropout, ro.nn.Uout, ro.nn.CentredDropout, ro.nn.IsotropicNoise]
each_pair = pytest.mark.parametrize(("function", "layer"), list(zip(NOISES, LAYERS, strict=True)))


@each_pair
def test_layers_are_their_functions(function: Function, layer: Layer) -> None:
    x = torch.randn(6, 4, 5)
    torch.manual_seed(0)
    expected = function(x, 0.3, dim=1, center="batch")
    torch.manual_seed(0)
    assert torch.equal(layer(0.3, dim=1, center="batch")(x), expected)
    assert function(x, 0.3, training=False) is x
    assert function(x, 0.0) is x
    generator = torch.Generator().manual_seed(4)
    first = function(x, 0.3, center="batch", generator=generator)
    assert torch.equal(function(x, 0.3, center="batch", generator=generator.manual_seed(4)), first)


def test_laws_of_the_multiplier() -> None:
    x = torch.ones(200_000, dtype=torch.float64)
    bound = 0.6
    multiplier = uout(x, ro.strength.convert(bound, "uout", "dropout"))
    assert 1 - bound <= multiplier.min() < 1 - bound + 1e-3
    assert 1 + bound - 1e-3 < multiplier.max() <= 1 + bound
    normal = (gaussian_dropout(x, 0.2) - 1) / 0.5
    for power, moment, spread in ((3, 0.0, 15.0), (4, 3.0, 96.0)):  # those of N(0, 1)
        assert abs((normal**power).mean().item() - moment) < 4.9 * (spread / len(x)) ** 0.5


def test_isotropic_noise_turns_by_a_gaussian_tangent_in_any_direction() -> None:
    """Moments within 4.9 standard errors: the mean and the square of what is random, each to its fourth power."""
    count, size = 100_000, 5
    x = torch.randn(1, size, dtype=torch.float64)
    added = isotropic_noise(x.expand(count, size), 0.2) - x
    assert ((added * x).sum(-1).abs() < 1e-12).all(), "perpendicular"
    length = added.norm(dim=-1)
    tan = length / x.norm() / 0.5  # |N(0, 1)|
    for power, moment in ((1, (2 / torch.pi) ** 0.5), (2, 1.0), (4, 3.0)):
        values = tan**power
        assert abs(values.mean().item() - moment) < 4.9 * values.std().item() / count**0.5
    basis = torch.linalg.svd(x).Vh[1:]  # perpendicular to x
    square = (added / length.unsqueeze(-1) @ basis.T) ** 2  # of a coordinate of u, uniform on a sphere in D − 1
    for power, moment in ((1, 1 / (size - 1)), (2, 3 / (size - 1) / (size + 1))):
        values = square**power
        assert ((values.mean(0) - moment).abs() < 4.9 * values.std(0) / count**0.5).all()
    assert len(added.div(length.unsqueeze(-1)).mul(1e4).round()[:1000].unique(dim=0)) > 900


def test_rotations_of_pairs_have_few_directions() -> None:
    """Where isotropic noise has them all: three pairings of four features, with two signs each."""
    x = torch.randn(1, 4, dtype=torch.float64)
    added = rotation_out(x.expand(1000, 4), 0.2) - x
    assert len((added / added.norm(dim=-1, keepdim=True)).mul(1e4).round().unique(dim=0)) == 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_isotropic_noise_leaves_vectors_of_zeros_alone(dtype: torch.dtype) -> None:
    """As a ReLU gives them; what is left of a vector whose squares are too small for a number has noise."""
    x = torch.zeros(3, 4, dtype=dtype)
    x[1], x[2, 0] = 1.0, 1e-30
    x.requires_grad_()
    y = isotropic_noise(x, 0.3)
    assert torch.equal(y[0], x[0])
    assert (y[1:] != x[1:]).any(1).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(y).all()
    assert torch.isfinite(gradient).all()
    assert torch.equal(gradient[0], torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("size", [2.0**-110, 2.0**-60, 2.0**-50, 2.0**60, 2.0**110])
def test_isotropic_noise_and_its_gradient_do_not_depend_on_the_unit(size: float) -> None:
    """The squares of such features are no numbers of fp32, or their cubes are not."""
    x = torch.randn(16, 8)
    found = []
    for unit in (1.0, size):
        torch.manual_seed(0)
        scaled = (x * unit).requires_grad_()
        y = isotropic_noise(scaled, 0.5)
        found.append((y / unit, *torch.autograd.grad(y.sum(), scaled)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_dropped_elements_are_the_mean_and_others_are_stretched_from_it() -> None:
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64) + 2
    mean = x.mean((0, 2, 3), keepdim=True)
    y = centred_dropout(x, 0.75, dim=1)
    dropped = (y - mean).abs() < 1e-12
    assert 0.6 < dropped.double().mean() < 0.9
    torch.testing.assert_close(y, torch.where(dropped, mean, mean + 4 * (x - mean)), rtol=1e-6, atol=0)


@each_pair
def test_the_mean_may_be_given(function: Function, layer: Layer) -> None:
    x = torch.randn(6, 4, 5)
    for mean in (x.mean((0, 2)), x.mean((0, 2)).bfloat16(), x.mean((0, 2), keepdim=True).mT):
        torch.manual_seed(0)
        ours = function(x, 0.3, dim=1, center=mean)
        torch.manual_seed(0)
        torch.testing.assert_close(ours, function(x, 0.3, dim=1, center="batch"), atol=0.05, rtol=0.05)


@each_pair
@pytest.mark.parametrize("center", ["batch", "running"])
def test_padding_is_left_alone_and_out_of_the_mean(function: Function, layer: Layer, center: str) -> None:
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([[7], [5], [2], [4]])
    features = {"num_features": 3, "momentum": 1.0} if center == "running" else {}
    outputs = []
    for padding in (0.0, float("nan")):
        module = layer(0.3, center=center, **features).double()
        padded = torch.where(mask.unsqueeze(-1), x, padding).requires_grad_()
        for _ in range(2):  # a running mean has seen it once
            torch.manual_seed(0)
            y = module(padded, mask=mask)
        assert torch.equal(y[~mask].nan_to_num(), padded[~mask].nan_to_num())
        (gradient,) = torch.autograd.grad(y[mask].square().sum(), padded)
        assert (gradient[~mask] == 0).all()
        outputs.append((y[mask], gradient[mask]))
    for ours, theirs in zip(*outputs, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layer", LAYERS[:3])
def test_little_is_kept_for_backward_by_elementwise_noises(layer: Layer) -> None:
    """One number for every element in the precision of x; of Dropout a byte."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(64, 32, dtype=dtype, requires_grad=True)
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            layer(0.3, center="batch")(x)
        each = 1 if layer is ro.nn.CentredDropout else dtype.itemsize
        assert sum(tensor.nbytes for tensor in kept) <= each * x.numel() + 64


@each_pair
def test_memory_format_is_kept(function: Function, layer: Layer) -> None:
    x = torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last)
    for center in ("batch", torch.zeros(4)):
        assert function(x, 0.3, dim=1, center=center).stride() == x.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_about_a_mean_is_rounded_once(dtype: torch.dtype) -> None:
    x, mean = torch.randn(64, 8).to(dtype), torch.full((8,), 7.3).to(dtype)
    wide, narrow = (
        centred_dropout(x.to(kind), 0.3, center=mean, generator=torch.Generator().manual_seed(0))
        for kind in (torch.float32, dtype)
    )
    assert narrow.dtype == dtype
    assert torch.equal(narrow, wide.to(dtype))


def test_empty_batches_pass() -> None:
    for layer in LAYERS:
        assert layer(0.3, center="batch")(torch.ones(0, 4)).shape == (0, 4)


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gaussian_dropout(X.long()), TypeError, "got torch.int64"),
        (lambda: gaussian_dropout([1.0]), TypeError, "x must be a Tensor, got list"),
        (lambda: gaussian_dropout(torch.tensor(1.0)), ValueError, "must have a feature axis"),
        (lambda: gaussian_dropout(X, 1.5), ValueError, "p is a drop probability"),
        (lambda: uout(X, dim=2), IndexError, "dim = 2 does not exist"),
        (lambda: uout(X, center="mean"), ValueError, "center must be one of 'batch'"),
        (lambda: uout(X, center=torch.zeros(3)), ValueError, r"center must have shape \(4,\)"),
        (lambda: uout(X, mask=torch.ones(3)), TypeError, "mask must be a boolean tensor"),
        (lambda: centred_dropout(X, center=None), ValueError, "this is torch.nn.functional.dropout"),
        (lambda: centred_dropout(X[:1]), ValueError, "more than one value per feature"),
        (lambda: ro.nn.CentredDropout(center=None), ValueError, "this is torch.nn.Dropout"),
        (lambda: ro.nn.CentredDropout(center="running"), ValueError, "needs num_features, .*, got None"),
        (lambda: ro.nn.Uout(dim=1.0), TypeError, "dim must be an integer"),
        (
            lambda: isotropic_noise(X[:, :1]),
            ValueError,
            "dim = -1 has size 1, but a rotation needs at least 2 features",
        ),
        (lambda: ro.nn.IsotropicNoise(center="running", num_features=1), ValueError, "num_features must be .* 2"),
        (lambda: ro.nn.Uout(sync=True), ValueError, "center=None takes no mean"),
        (lambda: ro.nn.GaussianDropout()(1.0), TypeError, "GaussianDropout takes a tensor with a feature axis"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
