"""What makes training on speech faster changes nothing: padded inputs, kernels of our own, when graphs are captured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.test_speech_training import config, corpus
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import finish
from torch import nn

from rotationout import noise
from rotationout.experiments import graphs
from rotationout.experiments.graphs import ByLength
from rotationout.experiments.speech import padded
from rotationout.experiments.speech.network import Listener
from rotationout.experiments.speech.padded import PaddedLSTM
from rotationout.nn import NoisyLSTM

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pad though there is no GPU; the inputs that kernels are given."""
    found, lstm = [], torch._VF.lstm

    def watched(x: torch.Tensor, *rest: Any) -> Any:
        found.append(x.size(-1))
        return lstm(x, *rest)

    monkeypatch.setattr(padded, "_in_fp16", lambda x: True)
    monkeypatch.setattr(torch._VF, "lstm", watched)
    return found


@pytest.mark.parametrize("options", [{}, {"weight_drop": 0.3}, {"weight_drop": 0.3, "variational": True}])
def test_padding_changes_nothing(options: dict[str, Any], widths: list[int]) -> None:
    torch.manual_seed(0)
    plain, wide = NoisyLSTM(40, 128, **options).double(), PaddedLSTM(40, 128, **options).double()
    wide.load_state_dict(plain.state_dict())
    x, h, c = torch.randn(9, 3, 40), torch.randn(1, 3, 128), torch.randn(1, 3, 128)
    for state in (None, (h.double(), c.double())):
        found = []
        for layer in (plain, wide):
            layer.zero_grad()
            inputs = x.double().requires_grad_()
            torch.manual_seed(1)
            output, final = layer(inputs, state)
            (output.square().sum() + final[0].sum() + final[1].sum()).backward()
            gradients = [parameter.grad.clone() for parameter in layer.parameters()]
            found.append((output.detach(), *(part.detach() for part in final), inputs.grad, *gradients))
        torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
    assert widths == [40, 128] * 2


@pytest.mark.parametrize(("inputs", "hidden"), [(128, 128), (40, 96), (40, 1152)])
def test_what_has_no_persistent_kernel_is_not_padded(inputs: int, hidden: int, widths: list[int]) -> None:
    PaddedLSTM(inputs, hidden)(torch.randn(2, 1, inputs))
    assert widths == [inputs]


def test_sequences_that_are_packed_or_single_are_not_padded(widths: list[int]) -> None:
    layer = PaddedLSTM(40, 128)
    assert layer(torch.randn(5, 40))[0].shape == (5, 128)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 40), torch.randn(2, 40)])
    assert layer(packed)[0].data.shape == (6, 128)
    assert widths == [40, 40]


def test_the_network_is_the_same_padded_or_not(widths: list[int]) -> None:
    networks = []
    for choice in (True, False):
        torch.manual_seed(0)
        networks.append(Listener(40, 128, 2, 29, padded=choice))
    one, other = (network.state_dict() for network in networks)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one), "the same are drawn"
    x, lengths = torch.randn(11, 2, 40), torch.tensor([11, 7])
    torch.testing.assert_close(networks[0](x, lengths), networks[1](x, lengths), rtol=1e-5, atol=1e-6)
    assert widths == [128, 128, 256, 256, 40, 40, 256, 256]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths in the order in which they are captured, without a GPU: to replay is to do the work."""
    order: list[int] = []

    def captured(work: Callable[[], None], stream: Any, pool: Any) -> Callable[[], None]:
        order.append(work.args[0])  # type: ignore[attr-defined]
        return work

    monkeypatch.setattr(graphs, "_captured", captured)
    return order


def test_the_longest_is_captured_first(capture: list[int]) -> None:
    """Of those that have come; what is captured stays so, and what is too long is not."""
    done: list[int] = []
    step = ByLength(done.append, "stream", "pool", patience=4)  # type: ignore[arg-type]
    lengths = [64, 128, 64, 192, 128, 128, 64, 256, 192, 256, 64, 1088, 1088]
    for length in lengths:
        step(length)
    assert capture == [192, 128, 64, 256]
    assert done == lengths, "everything is done once, captured or not"


@pytest.mark.parametrize("patience", [0, 5])
def test_nothing_is_captured_that_is_new_or_before_its_time(patience: int, capture: list[int]) -> None:
    step = ByLength(lambda _: None, "stream", "pool", patience=patience)  # type: ignore[arg-type]
    for _ in range(max(1, patience)):
        step(64)
    assert capture == []
    step(32)
    assert capture == []
    step(64)
    assert capture == [64]


@pytest.mark.parametrize("options", [{}, {"weight_drop": 0.3, "variational": True}])
def test_frame_by_frame_is_what_torch_computes(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = Listener(40, 16, 2, 29, noise=lambda: noise("rotation-sequence", 0.2), **options).double()
    x, lengths = torch.randn(11, 3, 40, dtype=torch.float64), torch.tensor([11, 7, 1])
    found = []
    for stepped in (False, True):
        network.stepped = stepped
        network.zero_grad()
        inputs = x.clone().requires_grad_()
        torch.manual_seed(1)
        scores = network(inputs, lengths)
        scores.square().sum().backward()
        found.append((scores.detach(), inputs.grad, *(parameter.grad.clone() for parameter in network.parameters())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


def test_a_run_frame_by_frame_is_the_same_run() -> None:
    runs = [corpus()(config("rotation", steps=6, lstm=kind)) for kind in ("cudnn", "stepped")]
    for run in runs:
        finish(run)
    assert runs[1].network.stepped
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-4)
    with pytest.raises(ValueError, match="lstm must be one of 'cudnn', 'stepped'"):
        config("rotation", lstm="cuda")


def test_a_length_can_be_captured_while_a_batch_of_another_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded then is work of that length."""
    run = corpus()(config("none"))
    run.advance()
    train, asked = run.corpus.train, []
    batch = train.batch
    monkeypatch.setattr(train, "batch", lambda chosen, frames: asked.append(frames) or batch(chosen, frames))
    before = run.frames
    run._add_gradient(before + 64)
    assert asked == [before + 64]
