"""The layers: drop-in behaviour, strength as a buffer, presets, running mean, bad input."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.rnn import pack_sequence

import rotationout as ro

LAYERS: list[tuple[Callable[..., nn.Module], tuple[int, ...]]] = [
    (ro.RotationOut, (5, 8)),
    (ro.RotationOut1d, (5, 8, 7)),
    (ro.RotationOut2d, (5, 8, 4, 3)),
    (ro.RotationOut3d, (5, 8, 2, 3, 2)),
]
each_layer = pytest.mark.parametrize(("layer", "shape"), LAYERS)


@each_layer
def test_training_turns_and_eval_does_not(layer: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    module, x = layer(p=0.3), torch.randn(shape)
    assert not torch.equal(module(x), x)
    assert not torch.equal(module(x), module(x))
    assert nn.Sequential(module).eval()(x) is x
    module.train().p = 0.0
    assert module(x) is x


@each_layer
@pytest.mark.parametrize("preset", ["default", "paper", "authors"])
def test_presets_train(layer: Callable[..., nn.Module], shape: tuple[int, ...], preset: str) -> None:
    x = torch.randn(shape, requires_grad=True)
    y = layer(0.3, preset=preset)(x)
    y.square().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_presets_are_those_of_the_paper_and_its_authors() -> None:
    paper, authors = ro.RotationOut2d(preset="paper"), ro.RotationOut2d(preset="authors")
    assert (paper.draw.law, paper.draw.side, paper.draw.pairing_per, paper.draw.angle_per, paper.center) == (
        ("uniform_angle", "one", "example", "row", "batch")
    )
    assert (authors.draw.law, authors.draw.side, authors.draw.pairing_per, authors.draw.angle_per, authors.center) == (
        ("gaussian_tan", "symmetric", "batch", "example", "batch")
    )
    default = ro.RotationOut()
    assert (default.draw.pairing, default.draw.pairing_per, default.draw.side, default.center) == (
        ("structured", "row", "symmetric", None)
    )
    assert ro.RotationOut2d(preset="authors", law="uniform_tan").draw.law == "uniform_tan"
    assert ro.RotationOut2d(center=None).center is None


@each_layer
def test_unbatched_input_is_one_example(layer: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape[1:])
    y = layer(0.3)(x)
    assert y.shape == x.shape
    assert not torch.equal(y, x)
    alone = layer(0.3, center=None)
    torch.manual_seed(1)
    y = alone(x)
    torch.manual_seed(1)
    torch.testing.assert_close(y, alone(x.unsqueeze(0))[0])


def test_examples_of_vectors_are_along_the_first_axis() -> None:
    x = torch.randn(3, 4, 6)
    stretch = ro.RotationOut(0.5, pairing_per="example", angle_per="example")(x).norm(dim=-1) / x.norm(dim=-1)
    torch.testing.assert_close(stretch, stretch[:, :1].expand(3, 4))
    assert len(stretch[:, 0].unique()) == 3


@each_layer
def test_no_state_is_added(layer: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    assert layer(0.3).state_dict() == {}
    assert list(layer(0.3).parameters()) == []


def test_activation_checkpointing_repeats_the_draw() -> None:
    from torch.utils.checkpoint import checkpoint

    module, x = nn.Sequential(nn.Linear(6, 6), ro.RotationOut(0.5), nn.Tanh()), torch.randn(4, 6, requires_grad=True)
    gradients = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_p_is_a_number_that_can_be_changed() -> None:
    module = ro.RotationOut2d(0.2)
    assert module.p == 0.2
    address = module._scale.data_ptr()
    module.p = 0.5
    assert module.p == 0.5
    assert module._scale.data_ptr() == address, "a captured graph reads this address"
    assert module._scale.item() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="p is a drop probability"):
        module.p = 1.0
    assert module.p == 0.5


@pytest.mark.parametrize(
    "layer",
    [
        ro.nn.CentredDropout(1 - 1e-9),
        ro.nn.LockedDropout(1 - 1e-9),
        ro.nn.GaussianDropout(1 - 1e-9),
        ro.RotationOut(1 - 1e-9),
    ],
)
def test_a_rate_that_fp32_rounds_to_one_drops_almost_everything_and_nothing_else(layer: nn.Module) -> None:
    assert torch.isfinite(layer(torch.randn(3, 4, 8))).all()


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double])
def test_strength_survives_casts(cast: Callable[[nn.Module], nn.Module]) -> None:
    module = ro.RotationOut(0.3)
    cast(nn.Sequential(module))
    assert module._scale.dtype == torch.float32
    assert module._scale.item() == pytest.approx((0.3 / 0.7) ** 0.5)


def test_a_layer_made_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        module = ro.RotationOut(0.3)
        module.to(torch.float64)
        running = ro.RotationOut(0.3, center="running", num_features=2, momentum=1.0)
    module.p = 0.5
    assert module._scale.item() == pytest.approx(1.0)
    running(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert running.running_mean.tolist() == [2.0, 3.0]


def test_autocast_takes_what_it_is_given() -> None:
    model = nn.Sequential(nn.Linear(6, 8), ro.RotationOut(0.3), ro.RotationOut(0.3, center="batch"), nn.Linear(8, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 6)).square().mean()
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_running_mean_starts_at_zero_after_the_meta_device() -> None:
    """As BatchNorm's does: models that are built without memory are reset module by module."""
    with torch.device("meta"):
        layer = ro.RotationOut(0.5, center="running", num_features=8)
    layer.to_empty(device="cpu")
    layer.running_mean.fill_(torch.nan)  # whatever was in memory
    layer.reset_parameters()
    assert layer.running_mean.tolist() == [0.0] * 8
    assert layer(torch.ones(2, 8)).isfinite().all()
    layer.reset_running_stats()
    assert not layer.running_mean.any(), "after a batch, too"
    ro.RotationOut(0.5).reset_parameters()  # there is nothing to reset


def test_strength_survives_the_meta_device() -> None:
    with torch.device("meta"):
        module = nn.Sequential(ro.RotationOut(0.3))
    module.to_empty(device="cpu")
    assert module[0]._scale.item() == pytest.approx((0.3 / 0.7) ** 0.5)


def test_torch_takes_it_for_a_dropout_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ro.RotationOut(0.3), ro.RotationOut2d(0.1))
    assert [module.p for module in model.modules() if isinstance(module, _DropoutNd)] == [0.3, 0.1]
    assert not any(module.inplace for module in model if isinstance(module, _DropoutNd))


def test_what_it_says_of_itself() -> None:
    text = repr(ro.RotationOut2d(0.2, block_size=7))
    assert text == (
        "RotationOut2d(p=0.2, permutation per example, gaussian_tan per row, one-sided, center=batch, "
        "block_size=7, coverage=0.1)"
    )
    assert "symmetric, center=None" in repr(ro.RotationOut(0.2))


MAP = torch.randn(2, 8, 4, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.RotationOut(1.0), ValueError, r"p is a drop probability and must be in \[0, 1\)"),
        (lambda: ro.RotationOut("0.5"), TypeError, "p must be a number"),
        (lambda: ro.RotationOut(torch.tensor(0.5)), TypeError, r"p must be a number, got Tensor .*tensor\.item\(\)"),
        (lambda: ro.RotationOut(nn.Parameter(torch.tensor(0.5))), TypeError, "p must be a number, got Parameter"),
        (lambda: ro.RotationOut(preset="auhtors"), ValueError, "did you mean 'authors'"),
        (lambda: ro.RotationOut(law="gaussian"), ValueError, "law must be one of 'gaussian_tan'"),
        (
            lambda: ro.RotationOut(center="mean"),
            ValueError,
            "center must be one of 'default', 'batch', 'running' or None",
        ),
        (lambda: ro.RotationOut(center="running"), ValueError, "needs num_features"),
        (lambda: ro.RotationOut(center="running", num_features=1), ValueError, "num_features must be .* at least 2"),
        (lambda: ro.RotationOut(momentum=0.0), ValueError, r"momentum must be in \(0, 1\], got 0\.0"),
        (lambda: ro.RotationOut(0.9, law="gaussian_angle"), ValueError, "reaches λ = 1.85"),
        (lambda: ro.RotationOut2d(block_size=0), ValueError, "block_size must be an integer, at least 1"),
        (lambda: ro.RotationOut2d(block_size=3, coverage=2.0), ValueError, r"coverage must be in \(0, 1\]"),
        (lambda: ro.RotationOut2d(coverage=0.3), ValueError, "give block_size too"),
        (lambda: ro.RotationOut(num_features=6), ValueError, "is for center='running', got it with center=None"),
        (lambda: ro.RotationOut(sync=True), ValueError, "center=None takes no mean"),
        (lambda: ro.RotationOut()([1.0, 2.0]), TypeError, "takes a tensor with a feature axis, got list; pass one"),
        (lambda: ro.RotationOut()(pack_sequence([torch.ones(3, 4)])), TypeError, "RotationOutSequence takes packed"),
        (lambda: ro.RotationOut()(torch.tensor(1.0)), TypeError, "a feature axis, got one without dimensions"),
        (
            lambda: ro.RotationOut()(nn.LSTM(2, 3)(torch.ones(4, 2))),
            TypeError,
            r"got tuple; .*\(output, state\) of nn.LS",
        ),
        (lambda: ro.RotationOut()(type("ndarray", (), {})()), TypeError, "got ndarray; .* torch.from_numpy"),
        (lambda: ro.RotationOut()(MAP.cfloat()), TypeError, "got torch.complex64; .*, e.g. torch.view_as_real"),
        (
            lambda: ro.RotationOut()(torch.ones(2, 3).long()),
            TypeError,
            r"^RotationOut takes a floating-point tensor \(16 to 64 bits\), got torch.int64; convert it first",
        ),
        (
            lambda: ro.RotationOut2d(dim=3),
            TypeError,
            "^RotationOut2d: got an unexpected keyword argument 'dim'; the features are .* on axis 1 of .* It takes p, "
            "block_size, coverage, preset, pairing, pairing_per, angle_per, law, side, center, num_features, momentum, "
            "keep_zeros, gradient, sync, backend$",
        ),
        (
            lambda: ro.RotationOut(keep_prob=0.8),
            TypeError,
            "argument 'keep_prob'; .* p = 1 − keep_prob. It takes p, pr",
        ),
        (lambda: ro.RotationOut(sigma=0.5), TypeError, "'sigma'; .*p=strength.convert.* It takes p, preset"),
        (lambda: ro.RotationOut(centre="batch"), TypeError, "'centre'; did you mean 'center'\\? It takes p, preset"),
        (
            lambda: ro.RotationOut(0.5, inplace=True),
            TypeError,
            "^RotationOut: .*'inplace'; leave out inplace",
        ),
        (
            lambda: ro.RotationOut(0.5, True),
            TypeError,
            "^RotationOut: too many positional .*; leave out inplace",
        ),
        (lambda: ro.RotationOut2d(0.5, False), TypeError, "^RotationOut2d: too many positional .* applied in place"),
        (lambda: ro.RotationOutSequence(0.5, inplace=True), TypeError, "^RotationOutSequence: .*leave out inplace"),
        (lambda: ro.nn.Uout(0.5, True), TypeError, "^Uout: too many positional arguments; leave out inplace"),
        (
            lambda: ro.nn.GaussianDropout(rate=0.5),
            TypeError,
            "^GaussianDropout: got .* 'rate'; the strength is called p. It takes p, ",
        ),
        (
            lambda: ro.RotationOut2d()(MAP[0, 0]),
            ValueError,
            r"RotationOut2d takes \(N, C, H, W\) or \(C, H, W\), got 2 .*; use RotationOut for features on the last",
        ),
        (
            lambda: ro.RotationOut1d()(MAP),
            ValueError,
            r"takes \(N, C, L\) or \(C, L\), got 4 .*; use RotationOut2d for",
        ),
        (
            lambda: ro.RotationOut3d()(MAP[0]),
            ValueError,
            r"takes \(N, C, D, H, W\) .* got 3 dimensions, \(.*\); use RotationOut1d for \(N, C, L\), or Rota",
        ),
        (lambda: ro.RotationOut2d()(MAP.unsqueeze(0)), ValueError, r"use RotationOut3d for \(N, C, D, H, W\), or Rota"),
        (lambda: ro.RotationOut2d()(MAP[:1, :, :1, :1]), ValueError, "more than one value per feature"),
        (
            lambda: ro.RotationOut(center="running", num_features=3)(MAP),
            ValueError,
            r"num_features is 3, but the input has 4 features on axis \d: \(",
        ),
        (lambda: ro.RotationOut()(MAP.long()), TypeError, "got torch.int64"),
        (lambda: ro.RotationOut(backend="nope"), ValueError, "backend must be one of .*'triton' or None, got"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_signatures_are_those_that_are_written() -> None:
    """What checks the arguments does not hide them from tools."""
    assert list(inspect.signature(ro.RotationOut).parameters)[:3] == ["p", "preset", "pairing"]
    assert list(inspect.signature(ro.nn.NoisyLSTM).parameters)[:3] == ["input_size", "hidden_size", "num_layers"]


@pytest.mark.parametrize("center", [None, "batch"])
def test_what_follows_a_layer_may_change_its_output_in_place(center: str | None) -> None:
    for layer, shape in (
        (ro.RotationOut(0.5, center=center), (4, 6)),
        (ro.RotationOut2d(0.5, center=center), (2, 6, 3, 3)),
    ):
        x = torch.randn(shape, requires_grad=True)
        (expected,) = torch.autograd.grad(torch.relu(seeded(layer, x)).square().sum(), x)
        (ours,) = torch.autograd.grad(torch.relu_(seeded(layer, x)).square().sum(), x)
        torch.testing.assert_close(ours, expected)
        _, derivative = torch.func.jvp(lambda x: torch.relu_(seeded(layer, x)), (x.detach(),), (torch.ones_like(x),))  # noqa: B023
        assert derivative.shape == x.shape


def seeded(layer: nn.Module, *inputs: Tensor) -> Tensor:
    torch.manual_seed(5)
    return layer(*inputs)


@pytest.mark.parametrize("rows", [4, 8192])  # few elements have an implementation of their own
@pytest.mark.parametrize("layer", [ro.RotationOut(0.5), ro.RotationOut1d(0.5, center=None)])
def test_what_a_layer_was_given_may_be_changed_in_place_afterwards(layer: nn.Module, rows: int) -> None:
    """As with torch's Dropout: nothing of the input is kept for backward."""
    x = torch.randn(rows, 4, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(seeded(layer, x).square().sum(), x)
    features = x * 1
    loss = seeded(layer, features).square().sum()
    features.relu_()
    (ours,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(ours, expected)
