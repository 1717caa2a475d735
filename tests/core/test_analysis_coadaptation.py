"""Co-adaptation: streams against one pass, hooks that leave no trace, and what noises are predicted to leave of it."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.analysis import (
    Coadaptation,
    NoiseLaw,
    coadaptation,
    coadaptation_factor,
    coadaptation_of,
    relu_moments,
)


def by_definition(rows: Tensor) -> float:
    sigma = torch.cov(rows.double().T)
    return ((sigma - torch.diag(sigma.diag())).abs().sum() / sigma.diag().sum()).item()


def correlated(rows: int, features: int) -> Tensor:
    return torch.randn(rows, features) @ torch.randn(features, features) + 3


def test_streams_give_what_all_rows_give() -> None:
    x = correlated(1000, 6)
    expected = by_definition(x)
    assert coadaptation(x) == pytest.approx(expected, rel=1e-10)
    assert coadaptation(iter(x.split([1, 399, 600]))) == pytest.approx(expected, rel=1e-10)
    first, second = Coadaptation(), Coadaptation()
    first.update(x[:300])
    second.update(x[300:])
    first.merge(second)
    assert (first.value, first.rows, first.features) == (pytest.approx(expected, rel=1e-10), 1000, 6)


def test_one_row_has_no_co_adaptation_yet() -> None:
    seen = Coadaptation()
    seen.update(torch.ones(1, 3))
    assert repr(seen) == "Coadaptation(rows=1)"


def test_positions_of_maps_are_samples() -> None:
    maps = torch.randn(20, 5, 3, 4)
    rows = maps.movedim(1, -1).reshape(-1, 5)
    assert coadaptation(maps) == pytest.approx(by_definition(rows))
    assert coadaptation(maps.flatten(2), dim=1) == pytest.approx(by_definition(rows))
    assert coadaptation(maps, dim=-1) == pytest.approx(by_definition(maps.reshape(-1, 4)))
    volumes = torch.randn(20, 5, 2, 2, 3)
    assert coadaptation(volumes) == pytest.approx(by_definition(volumes.movedim(1, -1).reshape(-1, 5)))


def test_a_mean_far_away_does_not_hide_it() -> None:
    x = correlated(2000, 4).double()
    assert coadaptation(x + 1e7) == pytest.approx(coadaptation(x), rel=1e-6)


def test_few_rows_look_co_adapted_as_the_docstring_says() -> None:
    found = torch.tensor([coadaptation(torch.randn(200, 32)) for _ in range(20)])
    assert found.mean().item() == pytest.approx(31 * math.sqrt(2 / (math.pi * 200)), rel=0.05)


@pytest.mark.parametrize(("keep", "printed"), [(0.9, 0.860), (0.7, 0.614)])
def test_the_relu_example_of_the_paper(keep: float, printed: float) -> None:
    """Section 3.1: Dropout on ReLU(x), x ~ N(0, 1), by theory and on 200,000 samples of correlated neurons."""
    half = torch.randn(8, 8, dtype=torch.float64)
    latent = half @ half.T
    latent = latent / (latent.diag()[:, None] * latent.diag()).sqrt()
    moments = relu_moments(latent)
    layer = nn.Dropout(1 - keep)
    factor = coadaptation_factor(layer, covariance=moments.covariance, mean=moments.mean)
    assert factor == pytest.approx(printed, abs=5e-4)
    x = (torch.randn(200_000, 8) @ torch.linalg.cholesky(latent).T.float()).relu()
    assert coadaptation(layer(x)) / coadaptation(x) == pytest.approx(printed, abs=0.01)
    centred = ro.noise("centred-dropout", 1 - keep)
    assert coadaptation(centred(x)) / coadaptation(x) == pytest.approx(keep, abs=0.01)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("kind", ["dropout", "gaussian", "uout", "centred-dropout", "rotation", "none"])
def test_the_predicted_factor(kind: str, p: float) -> None:
    """Of centred features: 1 − p, and for rotations (1 − p) − p / (D − 1), whatever the covariance."""
    layer, features = ro.noise(kind, p), 5
    expected = {"rotation": (1 - p) - p / (features - 1), "none": 1.0}.get(kind, 1 - p)
    assert coadaptation_factor(layer, features) == pytest.approx(expected)
    half = torch.randn(features, features)
    assert coadaptation_factor(layer, covariance=half @ half.T) == pytest.approx(expected)
    x = torch.randn(200_000, features) @ half.T
    assert coadaptation(layer(x)) / coadaptation(x) == pytest.approx(expected, abs=0.02)


def test_the_gain_over_dropout_is_small() -> None:
    """0.003 at D = 64 and keep rate 0.8."""
    gain = coadaptation_factor(nn.Dropout(0.2), 64) - coadaptation_factor(ro.RotationOut(0.2), 64)
    assert gain == pytest.approx(0.2 / 63)
    assert round(gain, 3) == 0.003


def test_other_factors() -> None:
    assert coadaptation_factor(NoiseLaw("whole", 0.7), 8) == pytest.approx(1.0)
    assert coadaptation_factor(NoiseLaw("others", 4.0), 3) == pytest.approx(abs(1 - 4 / 2) / 5)
    block = ro.RotationOut2d(0.5, block_size=3, coverage=0.4)
    assert coadaptation_factor(block, 9) == pytest.approx((1 - 0.4 / 8) / 1.4)


class Net(nn.Module):
    """A convolution, BatchNorm, a shared activation, Dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.act(self.norm(self.conv(x))))
        return self.head(y.mean((2, 3)))


def snapshot(model: nn.Module) -> tuple[object, ...]:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return state, modes, hooks


def same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    states = zip(left[0].items(), right[0].items(), strict=True)
    return left[1:] == right[1:] and all(a == b and torch.equal(x, y) for (a, x), (b, y) in states)


def test_layers_of_a_model() -> None:
    model = Net().train()
    model.norm.running_mean.normal_()
    model.drop.eval()
    before = snapshot(model)
    data = torch.randn(4, 8, 3, 6, 6)
    table = coadaptation_of(model, [*data])
    assert same(snapshot(model), before)
    assert list(table) == ["conv", "head", "unused"]
    with torch.no_grad():
        outputs = model.conv(data.flatten(0, 1))
    expected = by_definition(outputs.movedim(1, -1).reshape(-1, 6))
    assert table["conv"].value == pytest.approx(expected, rel=1e-5)
    assert (table["conv"].rows, table["head"].rows, table["unused"].rows) == (4 * 8 * 16, 32, 0)
    assert repr(table["unused"]) == "Coadaptation(rows=0)"
    assert coadaptation_of(model, [*data], limit=3)["head"].rows == 24

    by_name = coadaptation_of(model, [*data], ["conv", nn.BatchNorm2d])
    assert list(by_name) == ["conv", "norm"]
    model.eval()
    with torch.no_grad():
        normed = model.norm(outputs)  # seen before the activation changes it in place, and in eval mode
    assert by_name["norm"].value == pytest.approx(by_definition(normed.movedim(1, -1).reshape(-1, 6)), rel=1e-5)


def test_train_mode_shows_the_noise_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()
    before = snapshot(model)
    data = torch.randn(50, 100, 4)
    quiet, noisy = (coadaptation_of(model, [*data], "*", train=train) for train in (False, True))
    assert same(snapshot(model), before)
    assert quiet["2"].value == pytest.approx(quiet["1"].value)
    assert noisy["2"].value / noisy["1"].value == pytest.approx(0.5, abs=0.05)
    assert coadaptation_of(model, [*data], "2", train=None)["2"].value == pytest.approx(quiet["2"].value)


def test_batches_as_data_loaders_give_them() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(50, 4)
    expected = coadaptation_of(model, [x])["0"].value
    pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(50)), batch_size=20)
    assert coadaptation_of(model, pairs)["0"].value == pytest.approx(expected)
    assert coadaptation_of(model, [{"input": x}])["0"].value == pytest.approx(expected)
    images = [{"image": x, "label": 3}]
    assert coadaptation_of(model, images, forward=lambda m, b: m(b["image"]))["0"].value == pytest.approx(expected)


def test_where_the_features_are() -> None:
    tokens = torch.randn(8, 5, 6)
    model = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.LSTM(4, 3, batch_first=True))
    table = coadaptation_of(model, [tokens], ["*"])
    assert {name: seen.features for name, seen in table.items()} == {"0": 4, "1": 4, "2": 3}
    convs = nn.Sequential(nn.Conv1d(5, 7, 2), nn.ReLU())
    by_type = coadaptation_of(convs, [tokens], "*")
    assert {name: seen.features for name, seen in by_type.items()} == {"0": 7, "1": 5}  # an activation does not tell
    told = coadaptation_of(convs, [tokens], "*", dim={"1": 1})
    assert {name: seen.features for name, seen in told.items()} == {"0": 7, "1": 7}
    assert coadaptation_of(convs, [tokens], "1", dim=1)["1"].value == pytest.approx(told["1"].value)


def test_packed_sequences_have_the_rows_of_their_steps() -> None:
    sequences = [torch.randn(steps, 4) for steps in (5, 3, 2)]
    model = nn.LSTM(4, 3)
    (packed,) = coadaptation_of(model, [nn.utils.rnn.pack_sequence(sequences)], nn.LSTM).values()
    apart = [model(sequence)[0].detach() for sequence in sequences]
    assert packed.rows == 10
    assert packed.value == pytest.approx(coadaptation(apart))


def failing() -> Iterator[Tensor]:
    yield torch.randn(4, 4)
    raise RuntimeError("the disk is full")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: coadaptation_of(m, failing()), RuntimeError, "the disk is full"),
        (lambda m: coadaptation_of(m, [torch.randn(4, 5)]), RuntimeError, "running_mean should contain 5"),
        (lambda m: coadaptation_of(m, []), ValueError, "batches is empty"),
        (lambda m: coadaptation_of(m, torch.randn(4, 4)), TypeError, r"got Tensor; for a single batch pass \[batch\]"),
        (
            lambda m: coadaptation_of(m, [torch.randn(4, 4)], "2"),
            ValueError,
            "layers='2' matches no module name",
        ),
        (lambda m: coadaptation_of(m, [torch.randn(4, 4)], dim={"x": 1}), ValueError, "dim is for 'x', but the layers"),
        (lambda m: coadaptation_of(m, [torch.randn(4, 4)], dim=7), IndexError, "dim = 7 does not exist"),
    ],
)
def test_an_error_leaves_no_trace(call: object, error: type[Exception], message: str) -> None:
    assert callable(call)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    before = snapshot(model)
    with pytest.raises(error, match=message):
        call(model)
    assert same(snapshot(model), before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: coadaptation(torch.ones(5, 3)), ValueError, "must vary and be finite, but their variances sum to 0"),
        (lambda: coadaptation(torch.full((5, 3), math.nan)), ValueError, "sum to nan"),
        (lambda: coadaptation(torch.ones(1, 3)), ValueError, "at least 2 rows, got 1"),
        (lambda: coadaptation(torch.ones(5, 3).int()), TypeError, "floating-point"),
        (lambda: coadaptation_of(torch.relu, []), TypeError, "model must be a torch.nn.Module"),
        (lambda: coadaptation_factor(nn.Dropout()), ValueError, "give either features"),
        (lambda: coadaptation_factor(nn.Dropout(), 4, covariance=torch.eye(4)), ValueError, "give either features"),
        (lambda: coadaptation_factor(nn.Dropout(), 4, mean=torch.ones(4)), ValueError, "depends on the covariance"),
        (lambda: coadaptation_factor(nn.Dropout(), 1), ValueError, "features must be an integer, at least 2, got 1"),
        (
            lambda: coadaptation_factor(nn.Dropout(), covariance=[[1.0]]),
            TypeError,
            "covariance must be a Tensor, got list",
        ),
        (
            lambda: coadaptation_factor(nn.Dropout(), covariance=torch.ones(2, 2, 2)),
            ValueError,
            r"must have shape \(D,\) and covariance \(D, D\) here",
        ),
    ],
)
def test_bad_input_says_what_would_be_right(call: object, error: type[Exception], message: str) -> None:
    assert callable(call)
    with pytest.raises(error, match=message):
        call()


def test_a_compiled_model_is_watched_too() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(50, 4)
    (expected,) = coadaptation_of(model, [x]).values()
    wrapped = torch.compile(model, backend="eager")
    wrapped(x)
    (inside,) = coadaptation_of(wrapped, [x]).values()
    model.compile(backend="eager")
    model(x)
    (found,) = coadaptation_of(model, [x]).values()
    assert found.value == inside.value == pytest.approx(expected.value)


def test_odd_outputs_are_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"x": x}

    with pytest.raises(TypeError, match="layer '0' must return a floating-point tensor, got dict"):
        coadaptation_of(nn.Sequential(Odd()), [torch.ones(2, 2)], "0")

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(x)[:, :2])

    with pytest.raises(ValueError, match="layer 'act': rows have 2 features, but there were 4"):
        coadaptation_of(Twice(), [torch.randn(3, 4)], nn.ReLU)
