"""What makes training on speech faster changes nothing: kernels of our own, when graphs are captured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.test_speech_training import config, corpus
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import finish

from rotationout import noise
from rotationout.experiments import graphs
from rotationout.experiments.graphs import ByLength
from rotationout.experiments.speech import stepped
from rotationout.experiments.speech.network import Listener

pytestmark = pytest.mark.usefixtures("_one_thread")


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
    for by_frames in (False, True):
        network.stepped = by_frames
        network.zero_grad()
        inputs = x.clone().requires_grad_()
        torch.manual_seed(1)
        scores = network(inputs, lengths)
        scores.square().sum().backward()
        found.append((scores.detach(), inputs.grad, *(parameter.grad.clone() for parameter in network.parameters())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


def test_a_run_frame_by_frame_is_the_same_run() -> None:
    runs = [corpus()(config("rotation", steps=6, lstm=kind)) for kind in ("cudnn", "stepped")]
    assert not any(run.network.stepped for run in runs)  # on a CPU torch's own are faster
    runs[1].network.stepped = True
    for run in runs:
        finish(run)
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-4)
    with pytest.raises(ValueError, match="lstm must be one of 'cudnn', 'stepped'"):
        config("rotation", lstm="cuda")


@pytest.mark.parametrize(
    ("installed", "hidden", "expected"), [(True, 512, True), (True, 500, False), (False, 512, False)]
)
def test_cudnn_runs_lstms_that_there_are_no_kernels_for(
    installed: bool, hidden: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped, "HAS_TRITON", installed)
    assert stepped.has_kernels(torch.device("cuda"), hidden) == expected


def test_a_length_can_be_captured_while_a_batch_of_another_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded then is work of that length."""
    run = corpus()(config("none"))
    run.advance()
    train, asked = run.corpus.train, []
    batch = train.batch
    monkeypatch.setattr(train, "batch", lambda chosen, frames: asked.append(frames) or batch(chosen, frames))
    before = run.frames
    run._forward_backward(before + 64)
    assert asked == [before + 64]
