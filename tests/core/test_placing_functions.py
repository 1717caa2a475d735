"""Rotations in the place of Dropout in models that call functions, and reports that are taken for the model."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from tests.core.test_placing_swap import swapped
from torch import Tensor, nn
from torch.nn import functional as F

import rotationout as ro

Function = Callable[[Tensor], Tensor]


class Digits(nn.Module):
    """A small convolutional network as in many tutorials: activations and pooling are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(200, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2).sin()
        x = self.dropout1(F.relu(F.avg_pool2d(x, 2, 1).contiguous()))
        return self.fc2(self.dropout2(F.relu(self.fc1(x.flatten(1)))))


class Writer(nn.Module):
    """Embeddings that are added, functions with weights of their own, and residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 8), nn.Parameter(torch.randn(1, 5, 8))
        self.first, self.second, self.third = nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.1)
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.first(2 * (1 - (self.tokens(tokens) + self.places)) / 3)
        x = x + self.second(F.linear(x, self.weight).tanh_())
        return self.third(torch.cat([x.cos(), F.silu(F.embedding(tokens, self.weight))], 1))


class Turned(nn.Module):
    """What an activation before a transposition says is of other axes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv1d(4, 4, 1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.gelu(self.conv(x)).mT).cos()


@pytest.mark.parametrize(
    ("kind", "inputs", "expected"),
    [
        (Digits, torch.randn(2, 1, 16, 16), {"dropout1": ro.RotationOut2d, "dropout2": ro.RotationOut}),
        (Writer, torch.randint(8, (2, 5)), dict.fromkeys(("first", "second", "third"), ro.RotationOut)),
        (Turned, torch.randn(2, 4, 4), {}),
    ],
)
def test_functions_tell_where_features_are(kind: type[nn.Module], inputs: Tensor, expected: dict[str, type]) -> None:
    model = kind()
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout)]
    assert swapped(copy.deepcopy(model), *names)[0] == {}, "the code alone says nothing"
    noises, _ = swapped(model, *(name for name in names if name not in expected), example_inputs=inputs)
    assert {name: type(noise) for name, noise in noises.items()} == expected
    model(inputs)


def test_features_that_happen_to_sum_to_about_one_are_no_attention_weights() -> None:
    model = Digits()
    with torch.no_grad():
        model.fc1.weight.zero_()
        model.fc1.bias.fill_(1.005 / 16)
    swapped(model, example_inputs=torch.randn(2, 1, 16, 16))
    assert isinstance(model.dropout2, ro.RotationOut)


class Between(nn.Module):
    """Dropout between two functions."""

    def __init__(self, before: Function, after: Function) -> None:
        super().__init__()
        self.before, self.drop, self.after = before, nn.Dropout(0.1), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.drop(self.before(x)))


@pytest.mark.parametrize("function", [F.max_pool1d, F.avg_pool1d, F.lp_pool1d, F.adaptive_max_pool1d])
def test_every_pooling_tells(function: Callable[..., Tensor]) -> None:
    sizes = [2, 2] if function is F.lp_pool1d else [2]
    model = Between(torch.cos, lambda x: function(x, *sizes))
    assert type(swapped(model, example_inputs=torch.randn(2, 4, 6))[0]["drop"]) is ro.RotationOut1d


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,  # what is known is known from a linear function alone
        lambda x: 1 - x,
        lambda x: 2 / x,
        lambda x: x.relu_(),
        lambda x: x.add_(1),
        lambda x: torch.cat((x, x), -1),
        lambda x: F.group_norm(x, 2),
        lambda x: x.to(torch.float64),
    ],
)
def test_functions_that_keep_the_axes(function: Function) -> None:
    model = Between(lambda x: function(F.linear(x.cos(), torch.ones(4, 4))), torch.cos)
    assert type(swapped(model, example_inputs=torch.randn(2, 4, 4))[0]["drop"]) is ro.RotationOut


def linear(x: Tensor) -> Tensor:
    return F.linear(x, torch.ones(x.size(-1), x.size(-1)))


@pytest.mark.parametrize(
    ("before", "after", "weights"),
    [
        (lambda x: x.bfloat16().softmax(-1).float(), linear, True),  # rounded to values that do not sum to one
        (lambda x: nn.Softmax(-1)(x).masked_fill(x > 1, 0.0), linear, True),
        (lambda x: 0.5 * F.softmax(x, 1).mT, linear, True),
        (lambda x: torch.softmax(x, 1), lambda x: F.max_pool1d(x, 2), True),  # over the channels of maps
        (lambda x: linear(x) * F.softmax(x, -1), linear, False),  # a gate
        (lambda x: F.log_softmax(linear(x), -1), linear, False),
        (lambda x: F.softmax(x, -1) @ x.mT, linear, False),  # what attention returns
    ],
)
def test_results_of_a_softmax_are_left_alone(before: Function, after: Function, weights: bool) -> None:
    x = 3 * torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(0))
    noises, left = swapped(Between(before, after), example_inputs=x)
    assert list(noises) == ([] if weights else ["drop"])
    assert ("sum to one" in left.get("drop", "")) == weights


def test_the_warning_says_what_to_do() -> None:
    layers = nn.ModuleList(nn.ModuleDict({"drop": nn.Dropout(0.1)}) for _ in range(5))
    with pytest.warns(UserWarning, match="swap left") as caught:
        ro.swap(nn.ModuleDict({"layers": layers, "last": nn.Dropout(0.1)}))
    (warning,) = caught
    assert str(warning.message) == (
        "swap left Dropout as it was in 6 places: layers.*.drop (5 times), last. The code alone does not say on which "
        "axis the features are there; show it an input, swap(model, example_inputs=batch)"
    )
    assert warning.filename == __file__


def test_a_report_of_a_deep_model_is_short() -> None:
    model = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Dropout(k / 4)) for k in range(5))
    lines = str(ro.swap(model)).splitlines()
    assert lines[0] == "8 placed"
    assert lines[1].endswith("instead of Dropout(p=0.1, inplace=False): *.1 (5 times)")
    assert [line.rpartition(": ")[2] for line in lines[2:5]] == ["1.2", "2.2", "3.2"]
    assert lines[5:] == [
        "2 left alone",
        "  0.2 (Dropout(p=0.0, inplace=False)): it is off: build the model with Dropout, or use insert",
        "  4.2 (Dropout(p=1.0, inplace=False)): it drops everything: its strength is infinite",
    ]
    branches = [type("DropPath", (nn.Identity,), {"extra_repr": lambda self, k=k: f"p={k}"})() for k in range(5)]
    for branch in branches:
        type(branch).__module__ = "timm.layers.drop"
    (_, _, line) = str(ro.swap(nn.ModuleList(nn.ModuleDict({"drop": branch}) for branch in branches))).splitlines()
    assert line == "  *.drop (5 times) (DropPath): it drops whole branches, not features"


def test_a_report_that_is_taken_for_the_model_says_so() -> None:
    report = ro.swap(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 4)))
    with pytest.raises(TypeError, match="a Report is not the model; swap, insert and remove change the model in place"):
        report(torch.randn(2, 4))
    for name in ("to", "train", "parameters", "state_dict"):
        with pytest.raises(AttributeError, match=f"a Report has no '{name}'; swap, insert .* keep using the model"):
            getattr(report, name)
    with pytest.raises(AttributeError, match=r"a Report has no 'colour'$"):
        _ = report.colour
    assert len(copy.deepcopy(report)) == len(pickle.loads(pickle.dumps(report))) == 1
