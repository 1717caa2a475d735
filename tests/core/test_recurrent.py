"""NoisyLSTM and NoisyGRU: torch's own networks without noise, and every noise where it belongs."""

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from rotationout.nn import (
    LockedDropout,
    NoisyGRU,
    NoisyLSTM,
    RotationOut,
    RotationOutSequence,
    WeightDrop,
)

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

STACKS: dict[str, tuple[type, type]] = {"LSTM": (NoisyLSTM, nn.LSTM), "GRU": (NoisyGRU, nn.GRU)}
each_stack = pytest.mark.parametrize(("noisy", "plain"), STACKS.values(), ids=STACKS)
OPTIONS = [
    {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias, **size}
    for layers, both, first, bias, size in itertools.product(
        (1, 3), (False, True), (False, True), (True, False), ({}, {"proj_size": 3})
    )
]
N, T, C, H = 4, 6, 5, 7


def random_state(plain: nn.RNNBase, batch: tuple[int, ...]) -> Any:
    rows = plain.num_layers * (1 + plain.bidirectional)
    h = torch.randn(rows, *batch, plain.proj_size or H)
    return (h, torch.randn(rows, *batch, H)) if isinstance(plain, nn.LSTM) else h


def assert_same(ours: Any, theirs: Any) -> None:
    """Outputs and final states, tensors or packed, to the bit."""
    if isinstance(theirs, Tensor | PackedSequence):
        assert type(ours) is type(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
        return
    assert isinstance(ours, tuple)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)


def inputs(batch_first: bool) -> dict[str, Any]:
    x = torch.randn(N, T, C) if batch_first else torch.randn(T, N, C)
    packed = pack_padded_sequence(x, [3, 6, 1, 4], batch_first=batch_first, enforce_sorted=False)
    return {"batch": x, "single": torch.randn(T, C), "packed": packed}


@each_stack
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(f"{k}={v}" for k, v in options.items()))
def test_without_noise_it_is_torchs_own(noisy: type, plain: type, options: dict[str, Any]) -> None:
    if "proj_size" in options and plain is nn.GRU:
        with pytest.raises(ValueError, match="only supported for LSTM"):
            noisy(C, H, **options)
        return
    theirs, ours = plain(C, H, **options), noisy(C, H, **options)
    ours.load_state_dict(theirs.state_dict())
    for kind, x in inputs(options["batch_first"]).items():
        for state in (None, random_state(theirs, () if kind == "single" else (N,))):
            assert_same(ours(x, state), theirs(x, state))
    assert_same(ours(x), theirs(x))


@each_stack
def test_gradients_are_torchs_own(noisy: type, plain: type) -> None:
    theirs = plain(C, H, num_layers=2, bidirectional=True)
    ours = noisy.from_module(theirs)
    x = torch.randn(T, N, C, requires_grad=True)
    gradients = []
    for module in (ours, theirs):
        output, state = module(x)
        loss = output.square().sum() + sum(s.sum() for s in (state if isinstance(state, tuple) else (state,)))
        gradients.append(torch.autograd.grad(loss, [x, *module.parameters()]))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@each_stack
def test_the_same_seed_gives_the_same_weights(noisy: type, plain: type) -> None:
    modules = []
    for make in (noisy, plain):
        torch.manual_seed(2)
        modules.append(make(C, H, num_layers=2, bidirectional=True))
    assert all(torch.equal(*pair) for pair in zip(*(module.parameters() for module in modules), strict=True))


@each_stack
def test_to_torchs_own_and_back(noisy: type, plain: type) -> None:
    theirs = plain(C, H, num_layers=2, dropout=0.3, batch_first=True, dtype=torch.float64).eval()
    theirs.bias_hh_l1.requires_grad_(False)
    ours = noisy.from_module(theirs, weight_drop=0.2, input_noise=LockedDropout(0.1))
    assert not ours.training
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == ["layers.1.module.bias_hh_l0"]
    assert isinstance(ours.layer_noises[0], nn.Dropout)
    assert ours.layer_noises[0].p == 0.3
    assert isinstance(noisy.from_module(theirs, layer_noise=LockedDropout(0.5)).layer_noises[0], LockedDropout)
    x = torch.randn(N, T, C, dtype=torch.float64)
    assert_same(ours(x), theirs(x))
    before = torch.get_rng_state()
    back = ours.to_module()
    assert torch.equal(torch.get_rng_state(), before)
    assert type(back) is plain
    assert_same(back(x), theirs(x))
    assert not back.bias_hh_l1.requires_grad
    assert {key: value.tolist() for key, value in back.state_dict().items()} == {
        key: value.tolist() for key, value in theirs.state_dict().items()
    }
    ours.layers[0].module.weight_hh_l0.data.zero_()
    assert theirs.weight_hh_l0.abs().sum() > 0, "weights are copied"
    assert back.weight_hh_l0.abs().sum() > 0


def test_the_state_dict_has_the_same_keys_whatever_the_noise() -> None:
    bare = NoisyLSTM(C, H, num_layers=2)
    noisy = NoisyLSTM(C, H, 2, layer_noise=RotationOutSequence(0.3), output_noise=nn.Dropout(0.1), weight_drop=0.5)
    assert list(bare.state_dict()) == list(noisy.state_dict()) == [name for name, _ in bare.named_parameters()]
    noisy.load_state_dict(bare.state_dict())
    x = torch.randn(T, N, C)
    assert_same(noisy.eval()(x), bare(x))


def test_plain_keys_load_inside_a_model_and_wrong_ones_are_reported() -> None:
    plain = nn.ModuleDict({"encoder": nn.LSTM(C, H, num_layers=2), "head": nn.Linear(H, 2)})
    ours = nn.ModuleDict({"encoder": NoisyLSTM(C, H, 2, weight_drop=0.3), "head": nn.Linear(H, 2)})
    state = plain.state_dict()
    keys = list(state)
    ours.load_state_dict(state)
    assert list(state) == keys, "what was given is left alone"
    x = torch.randn(T, N, C)
    assert_same(ours.eval()["encoder"](x), plain["encoder"](x))
    with pytest.raises(RuntimeError, match=r"Unexpected.*layers\.2\.module\.weight_ih_l0"):
        NoisyLSTM(C, H, 2).load_state_dict(nn.LSTM(C, H, 3).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing.*layers\.1\.module\.bias_hh_l0"):
        NoisyLSTM(C, H, 2).load_state_dict(nn.LSTM(C, H, 2, bias=False).state_dict())


class Spy(nn.Module):
    """Adds one, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x + 1


@each_stack
def test_every_noise_is_in_its_place(noisy: type, plain: type) -> None:
    spy = Spy()
    stack = noisy(C, H, 3, bidirectional=True, input_noise=spy, layer_noise=spy, output_noise=spy)
    x = torch.randn(T, N, C)
    output, _ = stack(x)
    assert spy.seen == [], "every place has a copy of its own"
    places = [stack.input_noise, *stack.layer_noises, stack.output_noise]
    assert len({id(place) for place in places}) == 4
    assert all(len(place.seen) == 1 for place in places)
    expected = x
    for place, layer in zip(places, stack.layers, strict=False):
        assert torch.equal(place.seen[0], expected)
        expected, _ = layer.module(expected + 1)
    assert torch.equal(places[-1].seen[0], expected)
    assert torch.equal(output, expected + 1)


@each_stack
def test_recurrent_weights_are_dropped_in_every_layer(noisy: type, plain: type) -> None:
    stack, x = noisy(C, H, 3, bidirectional=True, weight_drop=0.4, variational=True), torch.randn(T, N, C)
    assert all(isinstance(layer, WeightDrop) and layer.p == 0.4 and layer.variational for layer in stack.layers)
    assert not torch.equal(stack(x)[0], stack(x)[0])
    assert torch.equal(stack.eval()(x)[0], stack.to_module()(x)[0])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("noise", [LockedDropout, RotationOutSequence])
def test_noises_take_the_layout_of_the_stack(noise: Callable[..., nn.Module], batch_first: bool) -> None:
    """The same noise whatever the layout, and whether padded or packed."""
    stacks = [
        NoisyLSTM(C, H, 2, batch_first=first, input_noise=noise(0.4), layer_noise=noise(0.4), output_noise=noise(0.4))
        for first in (batch_first, False)
    ]
    stacks[1].load_state_dict(stacks[0].state_dict())
    places = [stacks[0].input_noise, *stacks[0].layer_noises, stacks[0].output_noise]
    assert [place.batch_first for place in places] == [batch_first] * 3
    stacks = [stack.double() for stack in stacks]
    x = torch.randn(T, N, C, dtype=torch.float64)
    laid = x.transpose(0, 1) if batch_first else x
    lengths = torch.tensor([3, 6, 1, 4])
    packed = pack_padded_sequence(laid, lengths, batch_first=batch_first, enforce_sorted=False)
    outputs = []
    for stack, sequences in ((stacks[0], laid), (stacks[0], packed), (stacks[1], x)):
        torch.manual_seed(4)
        output, _ = stack(sequences)
        if isinstance(output, PackedSequence):
            output, _ = pad_packed_sequence(output, batch_first=batch_first)
        outputs.append(output.transpose(0, 1) if batch_first and stack is stacks[0] else output)
    real = torch.arange(T).unsqueeze(1) < lengths
    torch.testing.assert_close(outputs[0][real], outputs[1][real])
    if noise is LockedDropout:  # a mask does not depend on the order of time and batch
        torch.testing.assert_close(outputs[0], outputs[2])


def test_noises_that_know_no_sequences_get_packed_rows() -> None:
    stack = NoisyGRU(C, H, 2, layer_noise=nn.Dropout(0.5), output_noise=RotationOut(0.3), input_noise=Spy())
    packed = inputs(False)["packed"]
    output, _ = stack(packed)
    assert isinstance(output, PackedSequence)
    assert torch.equal(stack.input_noise.seen[0], packed.data)


def test_what_a_stack_says_of_itself() -> None:
    assert NoisyLSTM(C, H, 2).extra_repr() == "5, 7, num_layers=2"


def test_several_noises_one_after_the_other() -> None:
    noises = nn.Sequential(nn.Dropout(0.2), nn.Sequential(LockedDropout(0.3), Spy()))
    stack = NoisyLSTM(C, H, 2, batch_first=True, layer_noise=noises)
    packed = inputs(True)["packed"]
    stack(packed)
    dropout, (locked, spy) = stack.layer_noises[0]
    assert locked.batch_first
    assert spy.seen[0].shape == (packed.data.size(0), H)
    dropout.p = 0.0
    stack(packed)
    kept, lengths = pad_packed_sequence(PackedSequence(spy.seen[1] != 0, *packed[1:]), batch_first=True)
    for row, length in zip(kept, lengths, strict=True):
        assert torch.equal(row[:length], row[:1].expand(int(length), H)), "a mask is held over time"
    assert len(kept[:, 0].unique(dim=0)) > 1
    locked.p = 0.0
    torch.manual_seed(1)
    output, _ = stack(packed)
    torch.manual_seed(1)
    again, _ = stack(packed)
    assert torch.equal(output.data, again.data)


def test_padding_reaches_no_mean() -> None:
    noise = RotationOutSequence(0.5, center="batch")
    stack = NoisyLSTM(C, H, 2, bidirectional=True, input_noise=noise, layer_noise=noise, output_noise=noise)
    x = torch.randn(T, N, C)
    lengths = torch.tensor([3, 6, 1, 4])
    poisoned = x.masked_fill((torch.arange(T).unsqueeze(1) >= lengths).unsqueeze(-1), torch.nan)
    outputs = []
    for sequences in (x, poisoned):
        torch.manual_seed(4)
        outputs.append(stack(pack_padded_sequence(sequences, lengths, enforce_sorted=False))[0].data)
    assert outputs[0].isfinite().all()
    assert torch.equal(*outputs)


NOISES: dict[str, dict[str, Any]] = {
    "none": {},
    "dropout": {"layer_noise": nn.Dropout(0.3)},
    "locked": {
        "input_noise": LockedDropout(0.3),
        "layer_noise": LockedDropout(0.3),
        "output_noise": LockedDropout(0.3),
    },
    "rotation": {"layer_noise": RotationOutSequence(0.3), "output_noise": RotationOutSequence(0.3)},
    "weight drop": {"weight_drop": 0.3},
    "rotation, variational weight drop": {
        "layer_noise": RotationOutSequence(0.3),
        "weight_drop": 0.3,
        "variational": True,
    },
}


@each_stack
@pytest.mark.parametrize("name", NOISES)
def test_gradients_reach_everything(noisy: type, plain: type, name: str) -> None:
    stack = noisy(C, H, 3, bidirectional=True, **NOISES[name])
    for x in inputs(False).values():
        stack.zero_grad()
        output, _ = stack(x)
        (output.data if isinstance(output, PackedSequence) else output).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in stack.parameters())


@pytest.mark.parametrize("name", NOISES)
def test_copies_and_pickles_after_training(name: str) -> None:
    stack, x = NoisyLSTM(C, H, 2, **NOISES[name]), torch.randn(T, N, C)
    stack(x)[0].sum().backward()
    for twin in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        outputs = []
        for each in (twin, stack):
            torch.manual_seed(6)
            outputs.append(each(x)[0])
        assert torch.equal(*outputs)
    stack.double()
    assert stack(x.double())[0].dtype == torch.float64
    stack.flatten_parameters()


def test_a_running_mean_is_saved_with_the_stack() -> None:
    noise = RotationOutSequence(0.3, center="running", num_features=H)
    stack = NoisyLSTM(C, H, 2, layer_noise=noise)
    stack(torch.randn(T, N, C))
    assert stack.state_dict()["layer_noises.0.running_mean"].abs().sum() > 0
    assert noise.running_mean.abs().sum() == 0


def test_built_on_another_device() -> None:
    stack = NoisyLSTM(C, H, 2, layer_noise=RotationOutSequence(0.3), device="meta", dtype=torch.float64)
    tensors = [*stack.parameters(), *stack.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {parameter.dtype for parameter in stack.parameters()} == {torch.float64}
    stack.to_empty(device="cpu")
    assert stack.layer_noises[0]._scale.item() == pytest.approx((0.3 / 0.7) ** 0.5)
