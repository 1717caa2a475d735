"""On a GPU: cuDNN's CTC, the network on two streams, and runs with a graph for every length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.speech_corpora import made
from tests.test_speech_training import config
from tests.training_runs import carry_over, finish
from torch import nn

from rotationout import noise
from rotationout.experiments import results, sweep
from rotationout.experiments.graphs import ByLength
from rotationout.experiments.speech.batches import Speech
from rotationout.experiments.speech.network import Listener, ctc_loss
from rotationout.experiments.speech.recognition import Corpus, Recognition, SpeechConfig
from rotationout.recipes import TABLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = [row.row for row in TABLES["an4"]()]


@pytest.fixture(autouse=True)
def _no_tf32() -> Any:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def labelled(frames: int) -> tuple[torch.Tensor, ...]:
    """Scores, lengths, labels and how many: of every kind of length, one as long as its frames allow."""
    lengths, sizes = torch.tensor([frames, 9, frames // 2, frames - 1]), torch.tensor([40, 9, 1, 17])
    labels = torch.randint(1, 29, (4, 40)) * (torch.arange(40) < sizes.unsqueeze(1))
    labels[1, :9] = torch.arange(1, 10)
    return torch.randn(frames, 4, 29), lengths, labels.int(), sizes


@pytest.mark.parametrize("frames", [128, 300, 640])
def test_cudnns_ctc_is_torchs(frames: int) -> None:
    scores, *rest = labelled(frames)
    found = []
    for device in ("cpu", "cuda"):
        x = scores.detach().to(device).requires_grad_()
        loss = ctc_loss(x, *(tensor.to(device) for tensor in rest))
        loss.backward()
        found.append((loss.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)  # of sums over all frames, in fp32


def test_ctc_in_a_graph_takes_other_lengths() -> None:
    """Captured with one batch, replayed with another."""
    first, second = labelled(300), labelled(300)
    second[1].copy_(torch.tensor([280, 300, 260, 33]))
    held = [tensor.cuda() for tensor in first]
    held[0].requires_grad_()
    out, gradient = torch.zeros((), device="cuda"), torch.zeros_like(held[0])

    def work(_: int) -> None:
        loss = ctc_loss(*held)
        (found,) = torch.autograd.grad(loss, held[0])
        out.copy_(loss.detach())
        gradient.copy_(found)

    stream = torch.cuda.Stream()
    step = ByLength(work, stream)
    with torch.cuda.stream(stream):
        step(300)
        step(300)
        with torch.no_grad():
            for tensor, other in zip(held, second, strict=True):
                tensor.copy_(other)
        step(300)
    torch.cuda.synchronize()
    x = second[0].requires_grad_()
    expected = ctc_loss(x, *second[1:])
    expected.backward()
    torch.testing.assert_close(out.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient.cpu(), x.grad, rtol=1e-4, atol=1e-5)


def test_the_network_hears_what_it_hears_on_a_cpu() -> None:
    network, x, lengths = Listener(40, 64, 3, 29), torch.randn(90, 8, 40), torch.randint(1, 91, (8,))
    inside = torch.arange(90).unsqueeze(1) < lengths
    expected = network(x, lengths)
    expected[inside].square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    network.cuda()
    scores = network(x.cuda(), lengths.cuda())
    scores[inside.cuda()].square().sum().backward()
    torch.testing.assert_close(scores.detach().cpu()[inside], expected.detach()[inside], rtol=1e-4, atol=1e-4)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-3, atol=1e-3)


def in_fp16(network: Listener, frames: int = 90) -> tuple[torch.Tensor, ...]:
    """Scores within utterances and gradients, under autocast."""
    torch.manual_seed(1)
    x, lengths = torch.randn(frames, 8, 40, device="cuda"), torch.randint(1, frames + 1, (8,), device="cuda")
    network.zero_grad()
    with torch.autocast("cuda", torch.float16):
        scores = network(x, lengths)
    inside = torch.arange(frames, device="cuda").unsqueeze(1) < lengths
    scores[inside].float().square().mean().backward()
    return scores.detach()[inside].float(), *(parameter.grad.clone() for parameter in network.parameters())


def alike(*choices: dict[str, Any], hidden: int = 128) -> list[Listener]:
    """Networks of the same weights."""
    found = []
    for options in choices:
        torch.manual_seed(0)
        found.append(Listener(40, hidden, 2, 29, **options).cuda())
    return found


def close(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().max()
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=tolerance)


def test_frame_by_frame_is_what_cudnn_computes() -> None:
    cudnn, stepped = alike({"stepped": False}, {"stepped": True})
    close(in_fp16(stepped), in_fp16(cudnn), 1e-2)
    x, lengths = torch.randn(70, 33, 40, device="cuda"), torch.full((33,), 70, device="cuda")
    torch.testing.assert_close(stepped(x, lengths), cudnn(x, lengths), rtol=1e-4, atol=1e-4)


def make(settings: SpeechConfig, device: str = "cuda") -> Recognition:
    torch.manual_seed(0)
    found = made(133)  # 70 to 466 frames, seven lengths when padded
    train, test = (Speech(found, chosen, settings.alphabet, device) for chosen in (range(120), range(120, 133)))
    return Recognition(settings, Corpus(train, test), torch.device(device))


def small(row: str, **changes: Any) -> SpeechConfig:
    return config(row, **{"hidden": 32, "batch": 8, "steps": 60, "milestones": (40,), "test_every": 1, **changes})


def test_graphs_do_what_is_done_without_them() -> None:
    """Without noise, as the noise of a GPU is another one than that of a CPU."""
    runs = [make(small("none"), device) for device in ("cpu", "cuda")]
    for run in runs:
        finish(run)
    torch.testing.assert_close(runs[1].losses, runs[0].losses, rtol=2e-2, atol=2e-2)
    replays = runs[1]._forward_backward_graph._replays
    assert sum(replay is not None for replay in replays.values()) >= 3
    assert runs[1].losses[-1] < 0.8 * runs[1].losses[0]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_captured_and_goes_on(row: str, tmp_path: Path) -> None:
    """The noise differs from step to step: replays of one graph do not repeat it."""
    settings = small(row)
    whole, first, second = (make(settings) for _ in range(3))
    for _ in range(40):
        first.advance()
    carry_over(first, second, tmp_path)
    finish(whole, second)
    torch.testing.assert_close(second.losses, whole.losses, rtol=5e-2, atol=5e-2)
    assert whole.losses[-1] < whole.losses[0]


@pytest.mark.parametrize("lstm", ["cudnn", "stepped"])
def test_a_run_in_fp16(lstm: str) -> None:
    run = make(small("rotation", precision="fp16", hidden=64, lstm=lstm))
    finish(run)
    assert run.losses[-1] < 0.8 * run.losses[0]


def test_runs_are_the_same_whatever_runs_their_lstms() -> None:
    """Replayed from graphs, with the optimizer's updates, in fp16."""
    runs = [make(small("none", precision="fp16", hidden=128, lstm=lstm)) for lstm in ("cudnn", "stepped")]
    for run in runs:
        finish(run)
        assert sum(replay is not None for replay in run._forward_backward_graph._replays.values()) >= 3
        assert run._apply_gradient_graph._replays[0] is not None
    torch.testing.assert_close(runs[1].losses, runs[0].losses, rtol=5e-2, atol=5e-2)


def test_graphs_of_several_lengths_take_the_memory_of_the_longest() -> None:
    out, wide = torch.zeros((), device="cuda"), 1 << 18

    def work(length: int) -> None:
        x = torch.ones(length, wide, device="cuda")
        out.copy_((2 * x).sum())

    stream = torch.cuda.Stream()
    step = ByLength(work, stream)
    with torch.cuda.stream(stream):
        for length in (64, 128, 256):
            step(length)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with torch.cuda.stream(stream):
        for length in (64, 128, 256):
            step(length)
            torch.cuda.synchronize()
            assert out.item() == 2 * length * wide
    assert torch.cuda.memory_reserved() - before < 1.2 * 2 * 256 * wide * 4


def test_replays_draw_new_noise() -> None:
    torch.manual_seed(0)
    layer = noise("rotation-sequence", 0.3).cuda()
    x, out = torch.randn(64, 4, 32, device="cuda"), torch.zeros(64, 4, 32, device="cuda")
    stream = torch.cuda.Stream()
    step = ByLength(lambda _: out.copy_(layer(x)), stream)
    found = []
    with torch.cuda.stream(stream):
        for _ in range(4):
            step(64)
            found.append(out.clone())
    torch.cuda.synchronize()
    for i in range(4):
        for j in range(i):
            assert not torch.allclose(found[i], found[j])


def test_runs_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    rows = [small(row, seed=seed, steps=30) for row in ("none", "rotation") for seed in (0, 1)]
    for together in (1, 4):
        sweep.sweep(rows, make, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), "an4") for n in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one["train_loss"], other["train_loss"], rtol=5e-2, atol=5e-2)


def test_weights_stay_in_one_piece_for_cudnn() -> None:
    """Or cuDNN gathers them at every call, with a warning, which is an error here."""
    network = Listener(40, 32, 2, 29, weight_drop=0.2, variational=True).cuda()
    network(torch.randn(20, 4, 40, device="cuda"), torch.full((4,), 20, device="cuda")).sum().backward()
    modules = [module for module in network.modules() if isinstance(module, nn.LSTM)]
    assert len(modules) == 4
