"""On a GPU: recurrent networks under noise run on cuDNN, their weights in one piece, and are what they are on a CPU.

Warnings are errors here, cuDNN's "weights are not part of single contiguous chunk of memory" among them.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.test_recurrent import NOISES, OPTIONS
from tests.core.test_sequences import CHOICES, pack, real, seeded
from tests.core.test_weight_drop import MODULES, P, output_and_gradients
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rotationout.nn import NoisyGRU, NoisyLSTM, RotationOutSequence, WeightDrop

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer and a stack are other programs of cuDNN, and round the ten bits of TF32 differently."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def multipliers(module: nn.RNNBase, variational: bool) -> dict[str, Tensor]:
    """Those of `tests.core.test_weight_drop`, drawn on the GPU."""
    found = {}
    for name, weight in module.named_parameters():
        if name.startswith("weight_hh"):
            shape = (weight.size(0), 1) if variational else weight.shape
            found[name] = (torch.rand(shape, device="cuda") >= P) / (1 - P)
    return found


def addresses(module: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in module.parameters()]


def cudnn_calls(call: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        call()
    return sum(event.name == "aten::_cudnn_rnn" for event in profile.events())


@each_module
@pytest.mark.parametrize("variational", [False, True])
def test_it_is_the_module_with_dropped_weights(make: Callable[[], nn.RNNBase], variational: bool) -> None:
    module, x = make().cuda(), torch.randn(7, 2, 4, device="cuda")
    dropped = copy.deepcopy(module)
    dropped.flatten_parameters()
    torch.manual_seed(3)
    drawn = multipliers(module, variational)
    with torch.no_grad():
        for name, multiplier in drawn.items():
            dropped.get_parameter(name).mul_(multiplier)
    wrapped, before = WeightDrop(module, P, variational=variational), addresses(module)
    torch.manual_seed(3)
    output, gradients = output_and_gradients(wrapped, x)
    expected, theirs = output_and_gradients(dropped, x)
    assert (output - module(x)[0]).abs().max() > 1e-3
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, theirs[name] * drawn.get(name, 1.0), rtol=1e-3, atol=1e-4)
    assert addresses(module) == before, "the raw weights stay where they are"
    assert cudnn_calls(lambda: wrapped(x)) == 1


@each_module
def test_two_calls_before_backward_and_a_deep_copy(make: Callable[[], nn.RNNBase]) -> None:
    wrapped, x = WeightDrop(make(), P).cuda(), torch.randn(7, 2, 4, device="cuda")
    (wrapped(x)[0] + wrapped(x)[0]).sum().backward()
    twin = copy.deepcopy(wrapped)  # its weights lie apart until it is first called
    twin(x)[0].sum().backward()
    flat = addresses(twin)
    twin(x)[0].sum().backward()
    assert addresses(twin) == flat
    assert all(parameter.grad.abs().sum() > 0 for parameter in [*wrapped.parameters(), *twin.parameters()])


# In bf16 torch does not lay out weights for cuDNN: plain nn.LSTM warns too.
APART = pytest.mark.filterwarnings("ignore:RNN module weights are not part")


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=APART), torch.float64])
def test_dtypes_and_autocast(dtype: torch.dtype) -> None:
    stack = NoisyLSTM(4, 6, 2, bidirectional=True, layer_noise=RotationOutSequence(0.3), weight_drop=0.3).cuda()
    x = torch.randn(7, 3, 4, device="cuda")
    if dtype != torch.float64:
        with torch.autocast("cuda", dtype=dtype):
            loss = stack(x)[0].float().square().sum()
        loss.backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in stack.parameters())
    stack.to(dtype)
    assert stack(x.to(dtype))[0].dtype == dtype


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("noisy", [NoisyLSTM, NoisyGRU])
def test_without_noise_it_is_torchs_own(noisy: Any, options: dict[str, Any]) -> None:
    if "proj_size" in options and noisy is NoisyGRU:
        pytest.skip("torch.nn.GRU has no projections")
    plain = (nn.LSTM if noisy is NoisyLSTM else nn.GRU)(5, 7, **options).cuda()
    ours = noisy.from_module(plain)
    x = torch.randn(4, 4, 5, device="cuda")
    for sequences in (x, x[0], pack(x, options["batch_first"], [3, 4, 1, 2])):
        ours_, theirs = ours(sequences), plain(sequences)
        torch.testing.assert_close(tuple(ours_[0]), tuple(theirs[0]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours_[1], theirs[1], rtol=1e-4, atol=1e-5)
    assert cudnn_calls(lambda: ours(x)) == options["num_layers"]


@pytest.mark.parametrize("name", NOISES)
def test_cudnn_runs_every_layer_under_every_noise(name: str) -> None:
    stack = NoisyLSTM(5, 7, 3, bidirectional=True, **NOISES[name]).cuda()
    x = torch.randn(6, 4, 5, device="cuda")
    for sequences in (x, pack(x, lengths=[3, 6, 1, 4])):
        assert cudnn_calls(lambda sequences=sequences: stack(sequences)) == 3
        stack.zero_grad()
        output, _ = stack(sequences)
        (output.data if isinstance(output, PackedSequence) else output).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in stack.parameters())


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("size", [7, 64])
def test_packed_sequences_get_the_noise_of_padded_ones(name: str, batch_first: bool, size: int) -> None:
    layer = CHOICES[name](batch_first).cuda()
    x = torch.randn((4, 5, size) if batch_first else (5, 4, size), device="cuda", requires_grad=True)
    mask = {"mask": real(batch_first).cuda()} if isinstance(layer, RotationOutSequence) else {}
    padded = pack(seeded(layer, x, **mask), batch_first).data
    packed = seeded(layer, pack(x, batch_first)).data
    torch.testing.assert_close(packed, padded)
    cotangent = torch.randn_like(packed)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, cotangent)[0] for y in (packed, padded)))
