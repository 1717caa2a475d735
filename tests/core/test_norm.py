"""CrossNorm, PolyBatchNorm and GhostBatchNorm: against loops over examples and chunks, gradients, state, bad input."""

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.analysis.batchnorm import cross_norm_factor
from rotationout.nn import norm
from rotationout.nn.norm import expectation

Z_LIMIT = 4.9
SHAPES = {1: (12, 3), 2: (12, 3, 2, 4), 3: (12, 3, 2, 1, 3)}
PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CROSS = {1: norm.CrossNorm1d, 2: norm.CrossNorm2d, 3: norm.CrossNorm3d}
GHOST = {1: norm.GhostBatchNorm1d, 2: norm.GhostBatchNorm2d, 3: norm.GhostBatchNorm3d}
POLY = {1: norm.PolyBatchNorm1d, 2: norm.PolyBatchNorm2d, 3: norm.PolyBatchNorm3d}
each_dims = pytest.mark.parametrize("dims", [1, 2, 3])
EACH: list[tuple[Callable[..., nn.BatchNorm2d], dict[str, int]]] = [
    (norm.CrossNorm2d, {}),
    (norm.CrossNorm2d, {"ghost_batch": 5}),
    (norm.GhostBatchNorm2d, {"ghost_batch": 5}),
    (norm.PolyBatchNorm2d, {"batch_size": 8}),
    (norm.PolyBatchNorm2d, {"ghost_batch": 5}),
]
each_layer = pytest.mark.parametrize(("layer", "options"), EACH)


def sizes(count: int, ghost: int | None) -> list[int]:
    """The sizes of the chunks, as the docstring says: what is left over joins the last one."""
    if ghost is None or count < ghost:
        return [count]
    whole = count // ghost
    return [ghost] * (whole - 1) + [ghost + count - whole * ghost]


def cross_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Cross-Normalization by a loop over examples: the output, and 1 / √(σ² + ε) for each."""
    outputs, inverses = [], []
    for i in range(len(x)):
        others = torch.cat([x[:i], x[i + 1 :]]).movedim(1, 0).flatten(1)
        inverse = (others.var(1, correction=1) + eps).rsqrt()
        shape = (-1,) + (1,) * (x.ndim - 2)
        outputs.append((x[i] - others.mean(1).view(shape)) * inverse.view(shape))
        inverses.append(inverse)
    return torch.stack(outputs), torch.stack(inverses)


@each_dims
@pytest.mark.parametrize("ghost", [None, 5, 6, 7, 40])
def test_cross_norm_is_the_loop_over_examples(dims: int, ghost: int | None) -> None:
    shape = (3,) + (1,) * (len(SHAPES[dims]) - 2)
    x = 3 * torch.randn(SHAPES[dims], dtype=torch.float64) + torch.tensor([0.0, 1.0, -20.0]).view(shape)
    layer = CROSS[dims](3, dtype=torch.float64, momentum=0.3, ghost_batch=ghost)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    parts = [cross_norm(part, layer.eps) for part in x.split(sizes(12, ghost))]
    expected = torch.cat([y for y, _ in parts]) * layer.weight.view(shape) + layer.bias.view(shape)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.running_mean, 0.3 * x.movedim(1, 0).flatten(1).mean(1))
    inverse = 0.7 / math.sqrt(1 + layer.eps) + 0.3 * torch.cat([r for _, r in parts]).mean(0)
    torch.testing.assert_close((layer.running_var + layer.eps).rsqrt(), inverse)
    assert layer.num_batches_tracked == 1


@each_dims
@pytest.mark.parametrize("ghost", [2, 3, 4, 5])
def test_ghost_batches_are_batches(dims: int, ghost: int) -> None:
    x = torch.randn(SHAPES[dims], dtype=torch.float64, requires_grad=True)
    layer = GHOST[dims](3, dtype=torch.float64, ghost_batch=ghost, momentum=1.0)
    plain = PLAIN[dims](3, dtype=torch.float64, momentum=1.0)
    for module in (layer, plain):
        torch.manual_seed(0)
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    outputs, variances = [], []
    for part in x.split(sizes(12, ghost)):
        outputs.append(plain(part))
        variances.append(plain.running_var.clone() * len(part) / 12)
    ours, expected, direction = layer(x), torch.cat(outputs), torch.randn_like(x)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(layer.running_var, sum(variances))
    torch.testing.assert_close(layer.running_mean, x.detach().movedim(1, 0).flatten(1).mean(1))
    gradients = [
        torch.autograd.grad((y * direction).sum(), [x, module.weight, module.bias])
        for y, module in ((ours, layer), (expected, plain))
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


@each_dims
def test_poly_trains_as_batchnorm_and_evaluates_the_polynomial(dims: int) -> None:
    layer, plain = POLY[dims](3, batch_size=8), PLAIN[dims](3)
    with torch.no_grad():
        for module in (layer, plain):
            module.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
            module.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    x = 2 * torch.randn(SHAPES[dims]) + 1
    for _ in range(3):
        assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.running_var, plain.running_var)
    shape = (3,) + (1,) * (x.ndim - 2)
    standard = (x - plain.running_mean.view(shape)) / (plain.running_var + 1e-5).sqrt().view(shape)
    expected = norm.f_poly(standard, 8) * plain.weight.view(shape) + plain.bias.view(shape)
    torch.testing.assert_close(layer.eval()(x), expected)
    layer.batch_size = 1e6
    torch.testing.assert_close(layer(x), plain.eval()(x), rtol=1e-4, atol=1e-4)


def test_a_large_map_is_almost_left_alone_and_a_small_batch_is_not() -> None:
    x = torch.randn(64, 3, 4, 4)
    plain = nn.BatchNorm2d(3).eval()
    for size, low, high in ((8, 1.0, 2.0), (8 * 16, 1e-3, 0.2)):
        difference = (norm.PolyBatchNorm2d(3, batch_size=size).eval()(x) - plain(x)).abs().max()
        assert low < difference < high


@each_layer
def test_gradients(layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]) -> None:
    module = layer(1, dtype=torch.float64, **options)
    x = torch.randn(11, 1, 1, 2, dtype=torch.float64, requires_grad=True)

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, (x,))

    inputs = (x, *(torch.randn(1, dtype=torch.float64, requires_grad=True) for _ in range(2)))
    for mode in (True, False):
        module.train(mode)
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_gradients_of_vectors() -> None:
    module = norm.CrossNorm1d(3, dtype=torch.float64, affine=False, ghost_batch=5)
    x = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x, fast_mode=True)


def test_own_value_enters_linearly() -> None:
    """What the paper's Cross-Normalization is for; BatchNorm's output has a bound, √(B − 1)."""
    x = torch.randn(8, 1, dtype=torch.float64)
    steps = torch.linspace(-50, 50, 5, dtype=torch.float64)
    ours, theirs = [], []
    for step in steps:
        x[0] = step
        ours.append(norm.CrossNorm1d(1, dtype=torch.float64)(x)[0].item())
        theirs.append(nn.BatchNorm1d(1, dtype=torch.float64)(x)[0].item())
    slopes = torch.tensor(ours).diff()
    torch.testing.assert_close(slopes, slopes[:1].expand(4))
    assert max(map(abs, theirs)) < math.sqrt(7)


def test_shifts_do_not_matter_and_scales_cancel() -> None:
    """As printed, with 1 / B over B − 1 terms, they would."""
    x = torch.randn(6, 4, dtype=torch.float64)
    layer = norm.CrossNorm1d(4, dtype=torch.float64, eps=1e-12)
    expected = layer(x)
    torch.testing.assert_close(layer(x + 1000), expected)
    torch.testing.assert_close(layer(7 * x), expected)
    shifted = norm.CrossNorm1d(4)((x + 1000).float())
    torch.testing.assert_close(shifted.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(8, 2), (8, 2, 3, 3)])
def test_an_outlier_leaves_the_digits_of_the_others(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    x[0] = 1e5 + x[0]
    reference, _ = cross_norm(x.double(), 1e-5)
    ours = norm.CrossNorm2d(2)(x) if x.ndim == 4 else norm.CrossNorm1d(2)(x)
    torch.testing.assert_close(ours.double()[0], reference[0], rtol=1e-5, atol=0)


def test_evaluation_has_the_factor_of_the_inverse_deviation() -> None:
    """For Gaussian batches of 8 the slope is 1.151 times 1 / √Var[x], not 1."""
    layer = norm.CrossNorm1d(2000, momentum=None, eps=1e-8)
    for _ in range(100):
        layer(5 + 2 * torch.randn(8, 2000))
    slope = 2 * (layer.running_var + layer.eps).rsqrt()
    error = slope.std().item() / math.sqrt(2000)
    assert abs(slope.mean().item() - cross_norm_factor(8)) < Z_LIMIT * error
    assert error < 0.002
    x = torch.randn(1, 2000)
    torch.testing.assert_close(
        layer.eval()(x), (x - layer.running_mean) * (layer.running_var + layer.eps).rsqrt(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("layer", "bias"), [("cross", 0.0), ("poly", 0.012), ("batch", 0.97)])
def test_what_test_mode_expects_of_training(layer: str, bias: float) -> None:
    """A value three deviations out: its mean output over many batches of 8, beside that of test mode."""
    repeats, size, x = 40_000, 8, 3.0
    batch = torch.randn(size, repeats)
    batch[0] = x
    module = {
        "cross": norm.CrossNorm1d(repeats, affine=False),
        "poly": norm.PolyBatchNorm1d(repeats, affine=False, batch_size=size),
        "batch": nn.BatchNorm1d(repeats, affine=False),
    }[layer]
    output = module(batch)[0].double()
    # Running statistics as they are after many batches of Gaussian values.
    assert module.running_var is not None
    module.running_mean = torch.zeros(repeats)
    module.running_var = torch.ones(repeats) / (cross_norm_factor(size) ** 2 if layer == "cross" else 1)
    expected = module.eval()(torch.full((1, repeats), x))[0, 0].item()
    error = output.std().item() / math.sqrt(repeats)
    difference = abs(output.mean().item() - expected)
    assert difference < bias + Z_LIMIT * error
    assert difference > bias - 0.005 - Z_LIMIT * error


@each_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_single(
    layer: Callable[..., nn.BatchNorm2d], options: dict[str, int], dtype: torch.dtype
) -> None:
    x = (torch.randn(12, 3, 16, 16) + 30).to(dtype)
    for mode in (True, False):
        module = layer(3, **options).train(mode)
        y = module(x)
        assert y.dtype == dtype
        torch.testing.assert_close(y, layer(3, **options).train(mode)(x.float()).to(dtype), rtol=1e-2, atol=1e-2)
        assert module.running_var.dtype == torch.float32
    converted = layer(3, **options).to(dtype)
    torch.testing.assert_close(converted(x), layer(3, **options)(x.float()).to(dtype), rtol=5e-2, atol=5e-2)


@each_layer
def test_autocast_and_training(layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), layer(3, **options), nn.ReLU(inplace=True), nn.Conv2d(3, 1, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.randn(12, 2, 3, 3))
    y.square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@each_layer
def test_memory_format_is_kept(layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]) -> None:
    x = torch.randn(12, 3, 4, 5)
    for mode in (True, False):
        module = layer(3, **options).train(mode)
        expected = module(x)
        y = module(x.contiguous(memory_format=torch.channels_last))
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous()
        torch.testing.assert_close(y, expected)


@each_layer
def test_state_is_that_of_batchnorm(layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]) -> None:
    module, plain = layer(3, **options), nn.BatchNorm2d(3)
    assert isinstance(module, nn.BatchNorm2d)
    plain(torch.randn(8, 3, 4, 4) + 2)
    assert list(module.state_dict()) == list(plain.state_dict())
    module.load_state_dict(plain.state_dict())
    plain.load_state_dict(module.state_dict())
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        x = torch.randn(12, 3, 4, 4)
        assert torch.equal(twin(x), copy.deepcopy(module)(x))
        assert repr(twin) == repr(module)


@each_layer
def test_without_running_statistics_or_parameters(
    layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]
) -> None:
    module = layer(3, affine=False, track_running_stats=False, **options)
    x = torch.randn(12, 3, 4, 4)
    torch.testing.assert_close(module(x), layer(3, **options)(x))
    torch.testing.assert_close(module.eval()(x), module.train()(x))
    assert module.state_dict() == {}


@each_layer
def test_cumulative_statistics(layer: Callable[..., nn.BatchNorm2d], options: dict[str, int]) -> None:
    module = layer(3, momentum=None, dtype=torch.float64, **options)
    batches = [torch.randn(12, 3, 2, 2, dtype=torch.float64) for _ in range(3)]
    spreads = []
    for x in batches:
        module(x)
        once = layer(3, momentum=1.0, dtype=torch.float64, **options)
        once(x)
        spreads.append(once.running_var)
    torch.testing.assert_close(module.running_mean, torch.cat(batches).mean((0, 2, 3)))
    if isinstance(module, norm.CrossNorm2d):
        spreads = [(v + module.eps).rsqrt() for v in spreads]
        torch.testing.assert_close((module.running_var + module.eps).rsqrt(), sum(spreads) / 3)
    else:
        torch.testing.assert_close(module.running_var, sum(spreads) / 3)


def test_a_polynomial_is_fitted_on_the_host_whatever_the_defaults() -> None:
    norm.poly_coefficients.cache_clear()
    with torch.device("meta"), torch.inference_mode():
        module = norm.PolyBatchNorm1d(3, batch_size=11)
    assert module.weight.is_meta
    module = module.to_empty(device="cpu")
    assert module.coefficients == norm.PolyBatchNorm1d(3, batch_size=11).coefficients
    assert norm.poly_coefficients.cache_info().misses == 1, "fitted once"
    expectation.gauss_legendre.cache_clear()
    with torch.inference_mode():
        nodes, weights = expectation.gauss_legendre()
    assert not nodes.is_inference()
    assert not weights.is_inference()


def test_eps_is_added_to_the_variance_before_the_polynomial() -> None:
    layer = norm.PolyBatchNorm1d(2, eps=0.5, batch_size=8).eval()
    x = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(layer(x), norm.f_poly(x / math.sqrt(1.5), 8))


def test_what_it_says_of_itself() -> None:
    start = nn.BatchNorm1d(3).extra_repr()
    assert repr(norm.CrossNorm1d(3)) == f"CrossNorm1d({start})"
    assert repr(norm.GhostBatchNorm3d(3, ghost_batch=8)) == f"GhostBatchNorm3d({start}, ghost_batch=8)"
    assert repr(norm.PolyBatchNorm1d(3, ghost_batch=8)) == f"PolyBatchNorm1d({start}, ghost_batch=8, batch_size=8)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: norm.CrossNorm1d(3)(torch.randn(4, 3)), ValueError, "the batch needs at least 5 examples"),
        (lambda: norm.CrossNorm1d(3)(torch.randn(1, 3)), ValueError, "leaves one of 1 examples"),
        (lambda: norm.CrossNorm1d(3)(torch.randn(0, 3)), ValueError, "leaves one of 0 examples"),
        (lambda: norm.CrossNorm1d(3)(torch.randn(2, 3, 3)), ValueError, "the batch needs at least 3 examples"),
        (lambda: norm.CrossNorm2d(3)(torch.randn(1, 3, 9, 9)), ValueError, "the batch needs at least 2 examples"),
        (
            lambda: norm.CrossNorm2d(3)(torch.randn(1, 3, 2, 2)),
            ValueError,
            r"1 examples of 4 value\(s\).*at least 2 ex",
        ),
        (lambda: norm.CrossNorm2d(3)(torch.randn(5, 3, 0, 9)), ValueError, "of 0 value.*: maps need at least one pos"),
        (lambda: norm.CrossNorm1d(3, ghost_batch=4)(torch.randn(16, 3)), ValueError, "a ghost batch needs at least 5"),
        (
            lambda: norm.CrossNorm1d(3)(torch.randn(8, 4)),
            ValueError,
            r"CrossNorm1d has num_features = 3: .*\(N, 3, …\), got \(8, 4\)",
        ),
        (lambda: norm.CrossNorm1d(3)(torch.ones(8, 3).long()), ValueError, "torch.int64"),
        (lambda: norm.CrossNorm2d(3)(torch.randn(8, 3)), ValueError, "expected 4D input"),
        (lambda: norm.GhostBatchNorm1d(3, ghost_batch=1), ValueError, "ghost_batch must be an integer, at least 2"),
        (lambda: norm.GhostBatchNorm1d(3, ghost_batch=8.0), TypeError, "ghost_batch must be an integer"),
        (lambda: norm.GhostBatchNorm1d(3)(torch.randn(1, 3)), ValueError, "more than 1 value per channel"),
        (lambda: norm.PolyBatchNorm1d(3), ValueError, "^PolyBatchNorm1d needs batch_size"),
        (lambda: norm.CrossNorm2d(3, batch_size=8), TypeError, "^CrossNorm2d: got an unexpected .*'batch_size'"),
        (lambda: norm.PolyBatchNorm3d(3, batch=8), TypeError, "^PolyBatchNorm3d: got an unexpected .*'batch'"),
        (lambda: norm.PolyBatchNorm1d(3, batch_size=1), ValueError, "at least 2"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (8, 3, 0, 4)])
def test_statistics_of_nothing_are_those_of_before(shape: tuple[int, ...]) -> None:
    for module in (norm.GhostBatchNorm2d(3, ghost_batch=2), norm.PolyBatchNorm2d(3, ghost_batch=2)):
        assert module(torch.randn(shape)).shape == shape
        assert module.running_mean.tolist() == [0.0] * 3
        assert module.running_var.tolist() == [1.0] * 3


def test_the_fewest_examples_that_are_allowed() -> None:
    assert torch.isfinite(norm.CrossNorm1d(3)(torch.randn(5, 3))).all()
    assert torch.isfinite(norm.CrossNorm2d(3)(torch.randn(2, 3, 2, 2))).all()
    assert torch.isfinite(norm.CrossNorm1d(3, ghost_batch=5)(torch.randn(19, 3))).all()


def test_the_variance_of_constants_is_not_negative_by_rounding() -> None:
    for step in range(50):
        layer = norm.CrossNorm1d(1, eps=1e-5 * 1.3**step, momentum=1.0)
        layer(torch.ones(8, 1))
        assert 0 <= layer.running_var.item() < 1e-5 * layer.eps


def test_names_are_those_of_nn() -> None:
    for name in ("CrossNorm2d", "PolyBatchNorm1d", "GhostBatchNorm3d", "convert_batchnorm", "to_batchnorm"):
        assert getattr(ro.nn, name) is getattr(norm, name)
