"""Corrections of BatchNorm that are refused: noise with no closed form, code that cannot be read, a second repair."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.repair_models import (
    Functional,
    Tokens,
    before_norm,
    images,
    snapshot,
    trained,
    unchanged,
)
from torch import Tensor, nn
from torch.nn import functional as F

import rotationout as ro
from rotationout.analysis import correct_batchnorm_, recalibrate_batchnorm_


def test_a_second_correction_is_refused_also_after_saving_and_loading() -> None:
    batches = images(5)
    model = trained(before_norm(ro.RotationOut2d(0.5)), batches)
    correct_batchnorm_(model, batches)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    loaded = before_norm(ro.RotationOut2d(0.5))
    loaded.load_state_dict(torch.load(stream))  # strictly: there are no keys of our own
    for one in (model, copy.deepcopy(model), loaded):
        before = snapshot(one)
        for given in (batches, None):
            with pytest.raises(ValueError, match="corrected or recalibrated already"):
                correct_batchnorm_(one, given)
        assert unchanged(one, before)


def test_a_correction_after_recalibration_is_refused() -> None:
    batches = images(5)
    model = trained(before_norm(ro.RotationOut2d(0.5)), batches)
    recalibrate_batchnorm_(model, batches)
    with pytest.raises(ValueError, match="corrected or recalibrated already"):
        correct_batchnorm_(model, batches)


def test_statistics_that_still_hold_what_they_started_from_are_refused() -> None:
    batches = images(1)
    model = trained(before_norm(ro.nn.CentredDropout(0.5, dim=1)), batches, 43)
    with pytest.raises(ValueError, match=r"seen 43 batches since it started or was repaired.*needs 44"):
        correct_batchnorm_(model, example_inputs=batches[0])
    trained(model, batches, 1)
    assert len(correct_batchnorm_(model, example_inputs=batches[0])) == 1
    model = trained(before_norm(ro.RotationOut2d(0.5)), batches, 100)
    with pytest.raises(ValueError, match=r"give batches, to average over; with momentum = 0\.1"):
        correct_batchnorm_(model, example_inputs=batches[0])


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.noise = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), ro.RotationOut2d(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.norm(self.noise(x))))


class Residual(nn.Module):
    """Noise directly before one layer, and past it to another by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = ro.RotationOut2d(0.5)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.noise(x)
        return self.second(y + self.first(y).relu())


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: before_norm(nn.Dropout(0.5)), "1 .Dropout. is not about the mean"),
    "spatial": (lambda: before_norm(nn.Dropout2d(0.5)), "not about the mean"),
    "about the origin": (lambda: before_norm(ro.RotationOut2d(0.5, center=None)), "not about the mean"),
    "another axis": (lambda: before_norm(ro.nn.CentredDropout(0.5)), "another axis than the channels"),
    "Dropout-b": (
        lambda: nn.Sequential(ro.RotationOut2d(0.5), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        "reaches it through (convolution|Conv2d): noise before a weight layer .Dropout-b",
    ),
    "nonlinear": (
        lambda: nn.Sequential(ro.RotationOut2d(0.5), nn.ReLU(inplace=True), nn.BatchNorm2d(3)),
        "reaches it through (relu|ReLU), after which",
    ),
    "pool": (lambda: nn.Sequential(ro.RotationOut2d(0.5), nn.MaxPool2d(2), nn.BatchNorm2d(3)), "(?i)through max_?pool"),
    "two": (lambda: before_norm(nn.Sequential(ro.RotationOut2d(0.5), ro.RotationOut2d(0.5))), "through RotationOut2d"),
    "a function": (Functional, "bernoulli|dropout"),
    "shared": (Shared, "called 2 times in a pass"),
    "a sum": (Residual, r"second \(BatchNorm2d\): noise reaches it through add"),
    "no statistics": (
        lambda: before_norm(ro.RotationOut2d(0.5), track_running_stats=False),
        "keeps no running statistics",
    ),
    "too strong": (
        lambda: nn.Sequential(ro.RotationOut2d(0.7), nn.BatchNorm2d(3)),
        r"λ = 2\.333, with D = 3 features: at λ = D − 1",
    ),
    "untrained": (lambda: before_norm(ro.RotationOut2d(0.5)), "no batch of training"),
}


@pytest.mark.parametrize("how", ["batches", "example_inputs", "code"])
@pytest.mark.parametrize("case", REFUSED)
def test_placements_that_are_refused(case: str, how: str) -> None:
    make, message = REFUSED[case]
    batches = images(2)
    model = make()
    if case != "untrained":
        trained(model, batches, 50)
    before = snapshot(model)
    given: dict[str, Any] = {"batches": batches} if how == "batches" else {}
    given |= {"example_inputs": batches[0]} if how == "example_inputs" else {}
    with pytest.raises(ValueError, match=message) as caught:
        correct_batchnorm_(model, **given)
    assert "recalibrate_batchnorm_(model, batches)" in str(caught.value)
    assert unchanged(model, before)
    assert model.training


class Branches(nn.Module):
    """The noise is registered and called beside the layer, not before it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.noise, self.norm = nn.Conv2d(3, 4, 1), ro.RotationOut2d(0.5), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + self.noise(y)


def test_noise_beside_a_layer_is_not_before_it() -> None:
    model = trained(Branches(), images(2))
    for given in ({"batches": images(2)}, {}):
        with pytest.raises(ValueError, match="no noise reaches a BatchNorm layer"):
            correct_batchnorm_(model, **given)
    silent = trained(before_norm(ro.RotationOut2d(0.0)), images(2))
    with pytest.raises(ValueError, match="no noise reaches"):
        correct_batchnorm_(silent, images(2))


def test_code_that_cannot_be_read_needs_an_example() -> None:
    model = trained(Tokens(ro.nn.CentredDropout(0.5)), [torch.randn(9, 4, 8)], 50)
    with pytest.raises(ValueError, match=r"torch\.fx cannot follow.*give example_inputs"):
        correct_batchnorm_(model)
    assert len(correct_batchnorm_(model, example_inputs=torch.randn(9, 4, 8))) == 1


def test_code_that_does_not_tell_the_axis_needs_an_example() -> None:
    model = trained(nn.Sequential(ro.nn.CentredDropout(0.5), nn.BatchNorm1d(4)), [torch.randn(9, 4)], 50)
    with pytest.raises(ValueError, match="cannot be read off the code: give example_inputs"):
        correct_batchnorm_(model)
    assert len(correct_batchnorm_(model, example_inputs=torch.randn(9, 4))) == 1


def test_in_place_dropout_counts_where_it_stands() -> None:
    model = trained(nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5, inplace=True), nn.Conv2d(3, 3, 1)), images(2))
    with pytest.raises(ValueError, match="no noise reaches"):
        correct_batchnorm_(model, images(2))


class Overwrites(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.noise, self.norm = ro.nn.CentredDropout(0.5, dim=1), nn.BatchNorm1d(4)
        self.act, self.how = nn.ReLU(inplace=True), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.noise(x)
        if self.how == "method":
            y.relu_()
        elif self.how == "function":
            F.relu(y, inplace=True)
        elif self.how == "module":
            self.act(y)
        elif self.how == "out":
            torch.clamp(x, min=0, out=y)
        else:
            F.relu(y)  # changes nothing
        return self.norm(y)


@pytest.mark.parametrize("how", ["method", "function", "module", "out"])
def test_code_that_overwrites_a_tensor_is_not_read_but_run(how: str) -> None:
    model = Overwrites(how)
    for _ in range(60):
        model(torch.randn(64, 4))
    with pytest.raises(ValueError, match="changes a tensor in place that is used again later"):
        correct_batchnorm_(model)
    with pytest.raises(ValueError, match=r"through (relu|clamp)"):
        correct_batchnorm_(model, example_inputs=torch.randn(8, 4))
    same = Overwrites("not at all")
    for _ in range(60):
        same(torch.randn(64, 4))
    assert len(correct_batchnorm_(same).layers) == 1


class Inside(nn.Module):
    """Something that may drop features, then a noise directly before BatchNorm."""

    def __init__(self, make: Callable[[float], Any], p: float) -> None:
        super().__init__()
        self.code, self.noise, self.norm = make(p), ro.nn.CentredDropout(0.5, dim=1), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        attends = isinstance(self.code, nn.MultiheadAttention)
        y = self.code(x, x, x) if attends else self.code(x)
        return self.norm(self.noise(y[0] if attends or isinstance(self.code, nn.LSTM) else y))


def feed_forward(p: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=p)
    layer.self_attn.dropout = 0.0
    return layer


INSIDE: dict[str, Callable[[float], Any]] = {
    "function": lambda p: lambda x: F.dropout(x, p),
    "rrelu": lambda p: lambda x: F.rrelu(x, training=p > 0),
    "attention": lambda p: lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=p),
    "attention by place": lambda p: lambda x: F.scaled_dot_product_attention(x, x, x, None, p),
    "MultiheadAttention": lambda p: nn.MultiheadAttention(4, 2, dropout=p),
    "LSTM": lambda p: nn.LSTM(4, 4, num_layers=2, dropout=p),
    "transformer": lambda p: nn.TransformerEncoderLayer(4, 2, 8, dropout=p),
    "transformer, not in its attention": feed_forward,
}


@pytest.mark.parametrize("how", ["example_inputs", "code"])
@pytest.mark.parametrize("case", INSIDE)
def test_what_drops_nothing_is_no_noise_wherever_it_is(case: str, how: str) -> None:
    x = torch.randn(9, 4)
    given = {"example_inputs": x} if how == "example_inputs" else {}
    noisy = trained(Inside(INSIDE[case], 0.5), [x], 50)
    with pytest.raises(ValueError, match=r"norm \(BatchNorm1d\): .* reaches it through .*CentredDropout, after which"):
        correct_batchnorm_(noisy, **given)
    assert len(correct_batchnorm_(trained(Inside(INSIDE[case], 0.0), [x], 50), **given)) == 1


def lstm(layers: int, *, frozen: bool) -> nn.LSTM:
    made = nn.LSTM(4, 4, num_layers=layers)
    made.dropout = 0.5
    if frozen:
        made.train = lambda mode=True: nn.Module.train(made, False)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    "code",
    [
        F.normalize,
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: F.scaled_dot_product_attention(x, x, x, None),
        lstm(1, frozen=False),
        lstm(2, frozen=True),
    ],
    ids=["normalize", "off", "attention", "attention with a mask", "no layers to drop between", "frozen"],
)
def test_what_is_certain_is_no_noise(code: Any) -> None:
    model = trained(Inside(lambda p: code, 0.5), [torch.randn(9, 4)], 50)
    assert len(correct_batchnorm_(model)) == 1


def test_random_numbers_of_the_code_are_noise() -> None:
    model = trained(Inside(lambda p: lambda x: x * torch.rand_like(x), 0.5), [torch.randn(9, 4)], 50)
    with pytest.raises(ValueError, match="rand_like in the model reaches it through mul and CentredDropout"):
        correct_batchnorm_(model)
