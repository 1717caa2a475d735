"""WeightDrop: the module really runs on dropped weights, its own get the gradients, and nothing of it stays behind."""

import copy
import io
import math
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.test_statistics import Z_LIMIT
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence

from rotationout.nn import NoisyLSTM, WeightDrop
from rotationout.nn.weight_drop import _is_flat, _laid_out_like

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

MODULES: dict[str, Callable[[], nn.RNNBase]] = {
    "LSTM": lambda: nn.LSTM(4, 5),
    "LSTM, layers, directions": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "LSTM, projected": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, proj_size=3),
    "GRU": lambda: nn.GRU(4, 5, num_layers=2, bias=False),
    "RNN": lambda: nn.RNN(4, 5, bidirectional=True, nonlinearity="relu"),
}
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
each_form = pytest.mark.parametrize("variational", [False, True], ids=["single weights", "rows"])
P = 0.4


def multipliers(module: nn.RNNBase, variational: bool) -> dict[str, Tensor]:
    """The definition: every hidden-to-hidden weight times 0 with probability p, else 1 / (1 − p), in their order."""
    found = {}
    for name, weight in module.named_parameters():
        if name.startswith("weight_hh"):
            shape = (weight.size(0), 1) if variational else weight.shape
            found[name] = (torch.rand(shape) >= P) / (1 - P)
    return found


def output_and_gradients(module: nn.Module, *args: Any) -> tuple[Tensor, dict[str, Tensor]]:
    output, _ = module(*args)
    gradients = torch.autograd.grad(output.square().sum(), list(module.parameters()))
    names = [name.removeprefix("module.") for name, _ in module.named_parameters()]
    return output, dict(zip(names, gradients, strict=True))


@each_module
@each_form
def test_it_is_the_module_with_dropped_weights(make: Callable[[], nn.RNNBase], variational: bool) -> None:
    """One draw for all seven steps and both sequences; the raw weights get the gradient through it."""
    module, x = make(), torch.randn(7, 2, 4)
    dropped = copy.deepcopy(module)
    torch.manual_seed(3)
    drawn = multipliers(module, variational)
    with torch.no_grad():
        for name, multiplier in drawn.items():
            dropped.get_parameter(name).mul_(multiplier)
    torch.manual_seed(3)
    output, gradients = output_and_gradients(WeightDrop(module, P, variational=variational), x)
    expected, theirs = output_and_gradients(dropped, x)
    assert (output - module(x)[0]).abs().max() > 1e-3, "the weights must reach the kernels"
    torch.testing.assert_close(output, expected)
    assert len(drawn) == module.num_layers * (1 + module.bidirectional)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, theirs[name] * drawn.get(name, 1.0))
        assert gradient.abs().sum() > 0


@each_module
@each_form
def test_eval_and_p_zero_call_the_module_as_it_is(make: Callable[[], nn.RNNBase], variational: bool) -> None:
    module, x = make(), torch.randn(7, 2, 4)
    wrapped = WeightDrop(module, P, variational=variational)
    assert not torch.equal(wrapped(x)[0], wrapped(x)[0]), "a draw for every call"
    assert torch.equal(wrapped.eval()(x)[0], module(x)[0])
    wrapped.train().p = 0.0
    assert torch.equal(wrapped(x)[0], module(x)[0])


def test_states_and_packed_sequences_pass_through() -> None:
    module = nn.LSTM(4, 5, num_layers=2)
    wrapped = WeightDrop(module, 1e-9)  # in effect no noise, yet the way of one
    state = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    packed = pack_sequence([torch.randn(n, 4) for n in (2, 4, 3)], enforce_sorted=False)
    output, (h_n, c_n) = wrapped(packed, state)
    expected, (h_expected, c_expected) = module(packed, state)
    torch.testing.assert_close(output.data, expected.data)
    torch.testing.assert_close((h_n, c_n), (h_expected, c_expected))


def test_rates_and_scales() -> None:
    wrapped = WeightDrop(nn.LSTM(50, 100), P)
    weight = torch.ones(400, 100)
    single = wrapped._drop(weight).double()
    assert set((single * (1 - P)).round(decimals=5).unique().tolist()) == {0.0, 1.0}
    z = (single.mean() - 1) / math.sqrt(P / (1 - P) / weight.numel())
    assert abs(z.item()) < Z_LIMIT
    wrapped.variational = True
    rows = wrapped._drop(weight)
    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    share = (rows[:, 0] == 0).double().mean().item()
    assert abs(share - P) < Z_LIMIT * math.sqrt(P * (1 - P) / 400)


def test_two_calls_before_backward() -> None:
    wrapped, x = WeightDrop(nn.LSTM(4, 5, num_layers=2), P), torch.randn(3, 2, 4)
    (wrapped(x)[0] + wrapped(x)[0]).sum().backward()
    assert all(parameter.grad is not None for parameter in wrapped.parameters())


def test_a_training_step_changes_the_weights_that_eval_uses() -> None:
    wrapped, x = WeightDrop(nn.LSTM(4, 5), P), torch.randn(3, 2, 4)
    before = wrapped.eval()(x)[0]
    optimizer = torch.optim.SGD([wrapped.module.weight_hh_l0], lr=1.0)
    wrapped.train()(x)[0].square().sum().backward()
    optimizer.step()
    assert not torch.equal(wrapped.eval()(x)[0], before)


def test_the_module_does_not_flatten_its_weights_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA that would copy all of them, and move the raw ones into the copy."""
    wrapped, x = WeightDrop(nn.LSTM(4, 5), P), torch.randn(3, 2, 4)
    calls: list[nn.Module] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", calls.append)
    for mode in (True, False, True, True):
        wrapped.train(mode)(x)
    assert calls == []


def test_nothing_of_a_call_stays_behind() -> None:
    module, x = nn.LSTM(4, 5, num_layers=2), torch.randn(3, 2, 4)
    wrapped = WeightDrop(module, P)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda m, _: seen.append(weakref.ref(m.weight_hh_l1)))
    wrapped(x)
    with pytest.raises(RuntimeError, match="must be equal to input_size"):
        wrapped(torch.randn(3, 2, 7))
    assert all(reference() is None for reference in seen), "the dropped weights are gone"
    assert len(seen) == 2
    names = module._flat_weights_names
    assert all(weight is getattr(module, name) for name, weight in zip(names, module._flat_weights, strict=True))
    assert all(isinstance(parameter, nn.Parameter) for parameter in module._parameters.values())


@each_module
@each_form
def test_copies_pickles_and_checkpoints_after_training(make: Callable[[], nn.RNNBase], variational: bool) -> None:
    wrapped, x = WeightDrop(make(), P, variational=variational), torch.randn(3, 2, 4)
    wrapped(x)[0].sum().backward()
    file = io.BytesIO()
    torch.save(wrapped.state_dict(), file)
    file.seek(0)
    loaded = WeightDrop(make(), P, variational=variational)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), loaded):
        outputs = []
        for each in (twin, wrapped):
            torch.manual_seed(5)
            outputs.append(each(x)[0])
        assert torch.equal(*outputs)
        twin.module.weight_hh_l0.data.zero_()
        assert wrapped.module.weight_hh_l0.abs().sum() > 0


def test_the_keys_of_the_module_have_one_prefix() -> None:
    module = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    assert list(WeightDrop(module, P).state_dict()) == [f"module.{key}" for key in module.state_dict()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_casts(dtype: torch.dtype) -> None:
    wrapped, x = WeightDrop(nn.LSTM(4, 5), P).to(dtype), torch.randn(3, 2, 4, dtype=dtype)
    output, _ = wrapped(x)
    output.sum().backward()
    assert output.dtype == wrapped.module.weight_hh_l0.grad.dtype == dtype
    assert wrapped._scale.dtype == torch.float32


def test_tied_weights_have_draws_of_their_own() -> None:
    module = nn.LSTM(4, 5, bidirectional=True)
    module.weight_hh_l0_reverse = module.weight_hh_l0
    WeightDrop(module, P)(torch.randn(3, 2, 4))[0].sum().backward()
    assert module.weight_hh_l0.grad is not None


def test_weights_are_laid_out_as_the_raw_ones_are() -> None:
    """What cuDNN wants, on a buffer in an order of its own, with gaps; here without cuDNN."""
    module = nn.LSTM(4, 5)
    names = module._flat_weights_names
    buffer, starts, filled = torch.zeros(300), {}, 3
    for name in reversed(names):
        starts[name] = filled
        filled += module.get_parameter(name).numel() + 2
    for name in names:
        parameter = module.get_parameter(name)
        piece = buffer[starts[name] : starts[name] + parameter.numel()].view_as(parameter)
        piece.copy_(parameter.data)
        parameter.data = piece
    weights = [module.get_parameter(name) for name in names]
    assert _is_flat(weights)
    drawn = [2 * weight for weight in weights]
    laid = _laid_out_like(weights, drawn)
    start = laid[0].untyped_storage().data_ptr()
    assert laid[0].untyped_storage().nbytes() == buffer.untyped_storage().nbytes()
    for name, ours, value, weight in zip(names, laid, drawn, weights, strict=True):
        assert torch.equal(ours, value)
        assert ours.data_ptr() == start + 4 * starts[name]
        (gradient,) = torch.autograd.grad(ours.square().sum(), weight, retain_graph=True)
        torch.testing.assert_close(gradient, 8 * weight)
    assert not _is_flat([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))])
    assert not _is_flat([weights[0], weights[0]])
    large = torch.zeros(10_000)
    assert not _is_flat([large[:100], large[100:200]]), "a buffer that others use too"


def test_what_it_says_of_itself() -> None:
    text = repr(WeightDrop(nn.GRU(4, 5), 0.3, variational=True))
    assert "p=0.3, variational=True" in text
    assert "(module): GRU(4, 5)" in text


def normalised() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.LSTM(4, 5), "weight_hh_l0")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: WeightDrop(nn.Linear(4, 4), 0.5), TypeError, "takes a recurrent module, got Linear; wrap a nn.LSTM"),
        (lambda: WeightDrop(nn.LSTMCell(4, 4), 0.5), TypeError, "got LSTMCell; wrap a nn.LSTM.* whole sequences"),
        (lambda: WeightDrop(nn.Sequential(nn.GRU(4, 4)), 0.5), TypeError, "nn.RNN inside it"),
        (lambda: WeightDrop(NoisyLSTM(4, 4), 0.5), TypeError, "got NoisyLSTM; .*inside it"),
        (lambda: WeightDrop("lstm", 0.5), TypeError, "got str"),
        (lambda: WeightDrop(WeightDrop(nn.GRU(4, 4)), 0.5), TypeError, "wrapped in a WeightDrop already"),
        (lambda: WeightDrop(normalised(), 0.5), TypeError, "weight_hh_l0 of this .*LSTM are computed"),
        (lambda: WeightDrop(nn.GRU(4, 4), 1.0), ValueError, r"p is a drop probability and must be in \[0, 1\)"),
        (lambda: WeightDrop(nn.GRU(4, 4), "0.5"), TypeError, "p must be a number"),
        (lambda: WeightDrop(nn.GRU(4, 4))(torch.randn(3, 2, 7)), RuntimeError, "Expected 4, got 7"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def as_fsdp_does(module: nn.Module, name: str) -> None:
    """With use_orig_params=True, for the time of a call: what is registered is hidden by an attribute."""
    weight = module._parameters[name]
    assert weight is not None
    module.__dict__[name] = weight * 1


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda lstm, name: prune.l1_unstructured(lstm, name, 0.5), "weight_hh_l0"),
        (nn.utils.weight_norm, "weight_hh_l0_reverse"),
        (nn.utils.spectral_norm, "weight_hh_l0"),
        (nn.utils.parametrizations.spectral_norm, "weight_hh_l0"),
        (nn.utils.parametrizations.weight_norm, "weight_ih_l0"),
        (as_fsdp_does, "weight_hh_l0"),
    ],
    ids=["prune", "weight_norm as hook", "spectral_norm as hook", "spectral_norm", "weight_norm", "FSDP, original"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_weights_that_are_computed_later_are_refused(
    compute: Callable[[nn.Module, str], Any], name: str, called_before: bool
) -> None:
    """What computes them would undo the noise, or write it into the parameters."""
    for layer, lstm in (
        (wrapped := WeightDrop(nn.LSTM(4, 5, bidirectional=True), 0.5), wrapped.module),
        (stack := NoisyLSTM(4, 5, bidirectional=True, weight_drop=0.5), next(stack._modules_within())),
    ):
        x = torch.randn(6, 2, 4)
        if called_before:
            layer(x)
        compute(lstm, name)
        before = copy.deepcopy(layer.state_dict())
        with torch.no_grad(), pytest.raises(TypeError, match=rf" {name} of this .*LSTM are computed from others"):
            layer(x)
        torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
        layer.eval()(x)


def test_weights_that_are_plain_tensors_for_a_while_are_dropped() -> None:
    """As in a forward pass of FSDP with use_orig_params=False."""
    layer = WeightDrop(nn.LSTM(4, 5), 0.5)
    own = dict(layer.module.named_parameters())
    for name, weight in own.items():
        delattr(layer.module, name)
        setattr(layer.module, name, weight * 1)
    x = torch.randn(6, 2, 4)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer(x)[0].sum().backward()
    assert all(weight.grad is not None for weight in own.values())


def test_what_is_drawn_is_what_a_call_uses() -> None:
    layer = WeightDrop(nn.LSTM(3, 4), 0.4)
    x = torch.randn(5, 2, 3)
    torch.manual_seed(0)
    expected = layer(x)[0]
    torch.manual_seed(0)
    drawn = layer.draw()
    start = torch.zeros(1, 2, 4)
    found = torch._VF.lstm(x, (start, start), drawn, True, 1, 0.0, True, False, False)[0]
    assert torch.equal(found, expected)
    assert (drawn[1] == 0).any()
    layer.eval()
    assert all(a is b for a, b in zip(layer.draw(), layer.module.parameters(), strict=True))
