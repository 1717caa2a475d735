"""Rotations in the place of Dropout: what is replaced, by what, and what is left alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.placed_networks import drop_block, swapped
from torch import Tensor, nn

import rotationout as ro
from rotationout.strength import to_lam


def test_spatial_dropout_becomes_the_map_rotation_of_equal_strength() -> None:
    model = nn.Sequential(nn.Dropout1d(0.1), nn.Dropout2d(0.2), nn.Dropout3d(0.3)).eval()
    noises, left = swapped(model)
    assert [type(noise) for noise in noises.values()] == [ro.RotationOut1d, ro.RotationOut2d, ro.RotationOut3d]
    assert [noise.p for noise in model] == [0.1, 0.2, 0.3]
    assert not any(module.training for module in model.modules())
    assert left == {}


@pytest.mark.parametrize(
    ("module", "share"),
    [
        (drop_block("torchvision", p=0.1, block_size=7), 0.1),
        (drop_block("timm", drop_prob=0.2, block_size=7, gamma_scale=0.25, with_noise=False), 0.05),
    ],
)
def test_drop_block_becomes_a_rotation_in_blocks_of_equal_strength_over_the_map(
    module: nn.Module, share: float
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), module)
    noises, _ = swapped(model, center=None)
    noise = noises["1"]
    assert isinstance(noise, ro.RotationOut2d)
    assert noise.block_size == 7
    assert noise.coverage == pytest.approx(share)
    assert noise.coverage * to_lam("dropout", noise.p) == pytest.approx(to_lam("dropout", share))
    x = torch.randn(4000, 8, 14, 14)
    energy = ((noise(x) - x).square().sum((1, 2, 3)) / x.square().sum((1, 2, 3))).mean()
    assert energy.item() == pytest.approx(to_lam("dropout", share), rel=0.1)  # about 4 standard errors


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"p": 0.0, "block_size": 7}, "it is off"),
        ({"drop_prob": 0.2, "block_size": 7, "gamma_scale": 0.0}, "it is off"),
        ({"p": 1.0, "block_size": 7}, "it drops everything"),
        ({"drop_prob": 0.2, "block_size": 7, "with_noise": True}, "it fills its blocks with noise"),
    ],
)
def test_drop_block_without_a_rotation_of_equal_strength(options: dict[str, object], why: str) -> None:
    noises, left = swapped(nn.Sequential(drop_block("timm", **options)))
    assert noises == {}
    assert left["0"].startswith(why)


def test_volumes_and_the_device_of_the_model() -> None:
    volumes = drop_block("torchvision", 3, p=0.1, block_size=3)
    noises, _ = swapped(nn.Sequential(nn.Conv3d(3, 3, 1, device="meta"), volumes), center="running", num_features=3)
    assert type(noises["1"]) is ro.RotationOut3d
    assert noises["1"].running_mean.is_meta


def test_a_model_on_several_devices() -> None:
    """Meta stands for another device; a running mean must be where the features are."""
    model = nn.Sequential(nn.Linear(8, 8, device="meta"), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    noises, _ = swapped(model, center="running", num_features=8)
    assert noises["3"].running_mean.device.type == "cpu"
    placed = ro.insert(model, ro.RotationOut(0.5, center="running", num_features=8), after="2", dim=-1)
    assert placed.noises[0].running_mean.device.type == "cpu"
    assert model[1:](torch.randn(3, 8)).shape == (3, 2)


def test_one_dropout_on_different_axes_stays() -> None:
    drop = nn.Dropout(0.1)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), drop), nn.Sequential(nn.Conv2d(4, 4, 1), drop), nn.Sequential(drop)
    )
    noises, left = swapped(model, "0.1")
    assert noises == {}
    assert "the code does not say" in left["0.1"]


def test_dropout_in_a_sequential_is_replaced_where_a_neighbour_tells() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Dropout(0.1),  # maps, by what comes before
        nn.Flatten(),
        nn.Dropout(0.2),  # vectors
        nn.Linear(8, 8),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Dropout(0.3),  # not known: BatchNorm1d takes vectors and maps
    )
    noises, left = swapped(model, "8")
    assert {name: type(noise) for name, noise in noises.items()} == {"2": ro.RotationOut2d, "4": ro.RotationOut}
    assert list(left) == ["8"]
    assert "example_inputs would tell" in left["8"]
    noises, left = swapped(model, example_inputs=torch.randn(2, 3, 3, 3))
    assert {name: type(noise) for name, noise in noises.items()} == {"8": ro.RotationOut}
    assert "a layer of rotationout" in left["2"]


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize(
    ("steps", "replaced", "unsure"),
    [
        ([nn.Flatten(), nn.Dropout(0.1), nn.ReLU()], {"1": ro.RotationOut}, []),
        ([nn.Flatten(2), nn.Dropout(0.1), nn.ReLU()], {}, ["1"]),  # a flattened map still is one
        ([nn.Flatten(1, 2), nn.Dropout(0.1)], {}, ["1"]),
        ([nn.Dropout(0.1), nn.Flatten()], {}, ["0"]),
        ([nn.Dropout(0.1), nn.Conv2d(3, 3, 1)], {"0": ro.RotationOut2d}, []),
        ([nn.Conv2d(3, 3, 1), nn.Dropout(0.1), nn.Linear(3, 3)], {}, ["1"]),  # the neighbours disagree
        ([nn.Dropout(0.1), nn.Dropout(0.1)], {}, ["0", "1"]),
        ([OwnForward(nn.Linear(3, 3), nn.Dropout(0.1))], {}, ["0.1"]),  # which may run its steps in any order
        ([nn.Linear(3, 3), nn.Softmax(-1), nn.Dropout(0.1)], {}, ["2"]),
    ],
)
def test_neighbours_in_a_sequential(
    steps: list[nn.Module], replaced: dict[str, type[nn.Module]], unsure: list[str]
) -> None:
    noises, _ = swapped(nn.Sequential(*copy.deepcopy(steps)), *unsure)
    assert {name: type(noise) for name, noise in noises.items()} == replaced


class Block(nn.Module):
    """A module of one's own, whose code `swap` does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(x).mT).mT


def test_the_code_of_a_module_of_ones_own_says_nothing() -> None:
    noises, left = swapped(Block(), "drop")
    assert noises == {}
    assert left["drop"] == "the code does not say on which axis its features are; example_inputs would tell"
    known = type("Block", (Block,), {"__module__": "timm.layers"})()
    assert list(swapped(known)[0]) == ["drop"]


class Recurrent(nn.Module):
    """Dropout after a tuple, beyond an activation, on masked attention, and before a module called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.after, self.act, self.beyond = nn.Dropout(0.1), nn.GELU(), nn.Dropout(0.1)
        self.weights = nn.Dropout(0.1)
        self.named, self.read = nn.Dropout(0.1), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.beyond(self.act(self.after(self.lstm(x)[0])))
        x = x + self.read(input=self.named(input=x.cos()))
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return self.weights((x @ x.mT).masked_fill(later, -torch.inf).softmax(-1)) @ x.sin()


def test_example_inputs_tell_through_tuples_and_activations() -> None:
    noises, left = swapped(Recurrent(), example_inputs=torch.randn(2, 3, 4))
    assert {name: type(noise) for name, noise in noises.items()} == dict.fromkeys(
        ("after", "beyond", "named"), ro.RotationOut
    )
    assert "attention weights" in left["weights"], "weights that are zero count too"


class Model(nn.Module):
    """Functional activations between modules, attention by hand, and a Dropout that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.maps = nn.Dropout(0.1)
        self.conv2 = nn.Conv1d(8, 8, 3, padding=1)
        self.weights = nn.Dropout(0.2)
        self.tokens = self.again = nn.Dropout(0.3)
        self.out = nn.Linear(8, 8)
        self.turned = nn.Dropout(0.35)
        self.read = nn.Linear(8, 8)
        self.unused = nn.Dropout(0.4)
        self.both = nn.Dropout(0.5)
        self.lost = nn.Dropout(0.6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.maps(torch.relu(self.conv(x))))
        x = self.turned(self.both(x).mT)
        x = x + self.read(x)
        attention = self.weights((x @ x.mT).softmax(-1))
        x = self.both(self.out(self.tokens(attention @ x)))
        return self.lost(x.sin()) + 1


def test_example_inputs_tell_by_what_comes_before_and_after() -> None:
    model = Model()
    assert swapped(model, "maps", "weights", "tokens", "turned", "unused", "both", "lost")[0] == {}
    noises, left = swapped(model, "both", "lost", example_inputs=(torch.randn(2, 4, 6),))
    assert {name: type(noise) for name, noise in noises.items()} == {
        "maps": ro.RotationOut1d,
        "tokens": ro.RotationOut,
        "turned": ro.RotationOut,
    }
    assert model.tokens is model.again is noises["tokens"]
    with pytest.warns(UserWarning, match="both, lost"):
        assert str(ro.swap(Model(), example_inputs=torch.randn(2, 4, 6))).count("tokens (also again)") == 1
    assert "attention weights" in left["weights"]
    assert "not called" in left["unused"]
    assert "different axes" in left["both"]
    assert "do not say" in left["lost"]
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert swapped(model, "both", "lost", example_inputs={"x": torch.randn(2, 4, 6)})[0] == {}


def test_torchs_own_transformer_and_dropout_that_is_an_argument() -> None:
    model = nn.ModuleList(
        [
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1),
            nn.TransformerDecoderLayer(8, 2, 16, dropout=0.1),
            nn.LSTM(4, 4, 2, dropout=0.3),
            nn.LSTM(4, 4),
        ]
    )
    noises, left = swapped(model)
    assert sorted(noises) == sorted([*(f"0.dropout{k}" for k in ("", 1, 2)), *(f"1.dropout{k}" for k in ("", 1, 2, 3))])
    assert all(type(noise) is ro.RotationOut for noise in noises.values())
    assert left["0.self_attn"] == left["1.multihead_attn"] == "it is on attention weights"
    assert "NoisyLSTM" in left["2"]
    words = str(ro.swap(copy.deepcopy(model)))
    assert "(MultiheadAttention, dropout=0.1)" in words
    assert "2 (LSTM, dropout=0.3): it is between" in words
    assert model[0].self_attn.dropout == 0.1
    assert "3" not in left


def test_what_is_left_alone() -> None:
    class MyDropout(nn.Dropout):
        pass

    drop_path = type("DropPath", (nn.Module,), {"__module__": "timm.layers.drop"})()
    attn = nn.ModuleDict({"attn_drop": nn.Dropout(0.1), "attention_dropout": nn.Dropout(0.1)})
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Dropout(0.0), nn.Dropout(1.0), nn.AlphaDropout(0.1), MyDropout(0.1), drop_path, attn
    )
    noises, left = swapped(model)
    assert noises == {}
    assert [why.partition(":")[0] for why in left.values()] == [
        "it is off",
        "it drops everything",
        "it is another kind of noise, without a matching strength",
        "it is another kind of noise, without a matching strength",
        "it drops whole branches, not features",
        *["it is on attention weights, by its name"] * 2,
    ]


def test_a_report_says_what_to_do_where_nothing_was_replaced() -> None:
    report = ro.swap(nn.Sequential(nn.Linear(2, 2)))
    assert str(report).startswith(
        "0 placed\n1 left alone\n  the model (Sequential): it has no Dropout module; insert add"
    )
    off = ro.swap(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.Linear(2, 2), nn.Dropout(0.0)))
    assert str(off).splitlines() == [
        "0 placed",
        "2 left alone",
        "  1, 3 (Dropout(p=0.0, inplace=False)): it is off: build the model with Dropout, or use insert",
    ]


class SelfAttention(nn.Module):
    """Its Dropout is on hidden states, though the name of the class makes one think otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.out(x))


def test_attention_by_the_name_of_the_class_unless_seen_to_be_none() -> None:
    model = SelfAttention()
    assert swapped(model)[1] == {"dropout": "it may be on attention weights; example_inputs would tell"}
    assert list(swapped(model, example_inputs=torch.randn(2, 3, 4))[0]) == ["dropout"]
    broken = SelfAttention()
    broken.out.weight.data.fill_(torch.nan)
    assert swapped(broken, example_inputs=torch.randn(2, 3, 4))[0] == {}, "values that are not finite may be anything"


class LayerAttention(nn.Module):
    """Attention and what follows it, as in T5: its own Dropout is on hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.dropout = SelfAttention(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.inner(x))


def test_a_module_around_attention_asks_for_an_input() -> None:
    with pytest.warns(UserWarning, match=r"as it was in 1 place: dropout\. The code alone .* example_inputs=batch"):
        report = ro.swap(LayerAttention())
    assert {left.name for left in report.left} == {"dropout", "inner.dropout"}
    noises, _ = swapped(LayerAttention(), example_inputs=torch.randn(2, 3, 4))
    assert set(noises) == {"dropout", "inner.dropout"}


def test_an_input_may_be_given_without_its_name() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3))
    assert len(ro.swap(model, torch.randn(2, 3, 8, 8))) == 1
    assert isinstance(model[2], ro.RotationOut2d)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.swap(nn.Dropout(0.5)), ValueError, "the model itself is a Dropout"),
        (lambda: ro.swap(torch.compile(nn.Sequential(nn.Dropout2d(0.5)))), ValueError, "compiled already"),
        (lambda: ro.swap(nn.Sequential(nn.Dropout2d(0.5)), preset="papre"), ValueError, "did you mean 'paper'"),
        (
            lambda: ro.swap(nn.Sequential(nn.Dropout2d(0.5)), p=0.1),
            TypeError,
            "takes the p of the Dropout that it repl",
        ),
        (
            lambda: ro.swap(nn.Sequential(nn.Dropout2d(0.5)), block_size=3),
            TypeError,
            "swap has no choice block_size; it takes example_inputs, and of RotationOut angle_per",
        ),
        (lambda: ro.swap(3), TypeError, "must be a torch.nn.Module"),
    ],
)
def test_bad_input(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_model_is_untouched_if_its_run_or_a_choice_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 4), nn.Dropout2d(0.5)).train()
    parts = list(model)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"example_inputs": torch.ones(2, 3)}, "the model failed on example_inputs with RuntimeError: mat1 and mat2"),
        ({"block_size": 3}, "swap has no choice block_size"),
    ]
    for choices, message in cases:
        with pytest.raises((RuntimeError, TypeError), match=message):
            ro.swap(model, **choices)
        assert list(model) == parts
        assert all(module.training and not module._forward_hooks for module in model.modules())
