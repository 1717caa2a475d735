"""Speech: the network of Table 4 and its loss, scores, and a few real utterances learnt by heart under every noise."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.speech_corpora import AN4, needs_an4, needs_soundfile
from tests.training_runs import _one_thread as _one_thread  # a fixture
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rotationout import noise
from rotationout.experiments.speech import features, network, scoring
from rotationout.experiments.speech.batches import Speech
from rotationout.experiments.speech.corpus import read_manifest
from rotationout.experiments.speech.network import Listener, _mirror, _turn, ctc_loss
from rotationout.experiments.speech.text import ALPHABET, encode
from rotationout.nn.weight_drop import WeightDrop


def counterparts(listener: Listener, lstm: nn.LSTM) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """The weights of a listener, each with its like in torch's own bidirectional network."""
    for k in range(lstm.num_layers):
        for part, suffix in ((listener.onwards[k], ""), (listener.backwards[k], "_reverse")):
            for name, weight in part.named_parameters():
                yield weight, lstm.get_parameter(name.rpartition(".")[2].replace("_l0", f"_l{k}{suffix}"))


def test_it_is_a_bidirectional_lstm_on_packed_utterances() -> None:
    """Scores, and the gradients of the input and of every weight."""
    listener, lstm = Listener(5, 4, 3, 7).double(), nn.LSTM(5, 4, 3, bidirectional=True).double()
    pairs = list(counterparts(listener, lstm))
    assert len(pairs) == len(list(lstm.parameters()))
    with torch.no_grad():
        for mine, theirs in pairs:
            theirs.copy_(mine)
    x = torch.randn(11, 3, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 11, 2])
    inside = torch.arange(11).unsqueeze(1) < lengths
    scores = listener(x, lengths)
    output, _ = lstm(pack_padded_sequence(x, lengths, enforce_sorted=False))
    expected = listener.labels(pad_packed_sequence(output)[0])
    torch.testing.assert_close(scores[inside], expected[inside])
    weights = torch.randn_like(scores[inside])
    ours, others = ([x, *side] for side in zip(*pairs, strict=True))
    gradients = torch.autograd.grad((scores[inside] * weights).sum(), ours)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected[inside] * weights).sum(), others))
    assert not gradients[0][~inside].any(), "padding is not heard"


def test_padding_changes_nothing() -> None:
    listener = Listener(5, 4, 2, 7)
    x, lengths = torch.randn(6, 2, 5), torch.tensor([4, 6])
    longer = torch.cat([x, torch.full((5, 2, 5), 1e3)])
    torch.testing.assert_close(listener(longer, lengths)[:4], listener(x, lengths)[:4])
    torch.testing.assert_close(listener(longer, lengths)[:6, 1], listener(x, lengths)[:, 1])


def test_mirrored_twice_is_as_before() -> None:
    x, lengths = torch.randn(9, 4, 3), torch.tensor([9, 1, 4, 8])
    order = _mirror(lengths, len(x))
    turned = _turn(x, order)
    for i, length in enumerate(lengths.tolist()):
        assert torch.equal(turned[:length, i], x[:length, i].flip(0))
        assert torch.equal(turned[length:, i], x[length:, i])
    assert torch.equal(_turn(turned, order), x)


def test_noises_are_where_they_should_be() -> None:
    listener = Listener(5, 4, 3, 7, noise=lambda: noise("locked", 0.2), weight_drop=0.1, variational=True)
    assert len({id(module) for module in listener.noises}) == 3
    drops = [module for module in listener.modules() if isinstance(module, WeightDrop)]
    assert [(drop.p, drop.variational) for drop in drops] == [(0.1, True)] * 6
    seen: list[Tensor] = []
    listener.labels.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    listener(torch.randn(6, 2, 5), torch.tensor([6, 6]))
    dropped = (seen[0] == 0).all(0)
    assert dropped.any(), "features of the last layer are dropped for a whole utterance"
    assert torch.equal(dropped, (seen[0] == 0).any(0))


def test_initial_weights() -> None:
    listener = Listener(5, 4, 2, 7, weight_drop=0.1)
    seen = 0
    for name, parameter in listener.named_parameters():
        for place, gate in enumerate(parameter.chunk(4)):
            if "weight_hh" in name:
                torch.testing.assert_close(gate @ gate.T, torch.eye(4))
            elif "weight_ih" in name:
                assert 0 < gate.abs().max() <= (6 / (4 + gate.size(1))) ** 0.5
            elif "bias" in name and "labels" not in name:
                assert (gate == (1.0 if "bias_ih" in name and place == 1 else 0.0)).all()
            else:
                continue
            seen += 1
    assert seen == 2 * 2 * 4 * 4  # layers, directions, tensors, gates


def test_the_loss_is_the_mean_of_utterances() -> None:
    scores, lengths = torch.randn(20, 3, 29, requires_grad=True), torch.tensor([20, 11, 17])
    texts = [encode(text) for text in ("YES", "A", "HELLO")]
    labels = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    loss = ctc_loss(scores, lengths, labels, torch.tensor([3, 1, 5]))
    alone = [
        F.ctc_loss(
            scores[:n, i : i + 1].log_softmax(-1), torch.tensor([text]), torch.tensor([n]), torch.tensor([len(text)])
        )
        for i, (n, text) in enumerate(zip(lengths.tolist(), texts, strict=True))
    ]
    torch.testing.assert_close(loss, torch.stack(alone).mean())
    joined = network._joined(labels, torch.tensor([3, 1, 5]))
    assert joined.tolist() == [*texts[0], *texts[1], *texts[2], *[0] * 6]


def test_scores() -> None:
    heard, said = ["YES", "", "GO ON"], ["YES", "NO", "GOON"]
    assert scoring.score(heard, said) == {"distance": 1.0, "cer": pytest.approx(100 * 3 / 9, abs=1e-4)}
    paths = torch.tensor([[27, 0], [7, 16], [0, 17], [21, 3]])
    assert scoring.greedy(paths, [4, 3], ALPHABET) == ["YES", "NO"]
    shown = scoring.examples([str(i) for i in range(20)], ["A"] * 20, [f"u{i}" for i in range(20)])
    assert [row["heard"] for row in shown] == ["0", "3", "6", "9", "12", "15"]
    assert shown[1] == {"name": "u3", "said": "A", "heard": "3"}


def of(kind: str, p: float = 0.2) -> dict[str, Callable[[], nn.Module]]:
    return {"noise": lambda: noise(kind, p)}


NOISES: dict[str, dict[str, Any]] = {
    "none": {},
    "dropout": of("dropout", 0.1),
    "locked": of("locked"),
    "rotation": of("rotation-sequence"),
    "weight drop": {"weight_drop": 0.2},
    "variational weight drop": {"weight_drop": 0.2, "variational": True},
    "rotation, variational weight drop": {**of("rotation-sequence"), "weight_drop": 0.1, "variational": True},
}


@pytest.fixture(scope="module")
def four_words() -> Speech:
    """Four short utterances, every fourth frame."""
    names = ["an121-fjdn-b", "an253-fash-b", "an100-mskh-b", "an102-mrcb-b"]
    found = features.compute([u for u in read_manifest(AN4, "train") if u.name in names])
    pieces = [piece[::4] for piece in found.frames.split(found.lengths.tolist())]
    thinned = features.Features(
        torch.cat(pieces),
        torch.tensor([len(p) for p in pieces]),
        found.names,
        found.splits,
        found.speakers,
        found.texts,
    )
    return Speech(thinned, range(4), ALPHABET, "cpu")


@needs_an4
@needs_soundfile
@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", NOISES)
def test_a_network_learns_utterances_by_heart(name: str, four_words: Speech) -> None:
    """From hearing nothing right to every letter."""
    assert set(four_words.texts) == {"HELP", "GO", "YES", "NO"}
    batch = four_words.batch(torch.arange(4), int(four_words.durations.max()))
    torch.manual_seed(0)
    model = Listener(40, 64, 2, 29, **NOISES[name])

    @torch.no_grad()
    def heard() -> list[str]:
        scores = model.eval()(batch.features, batch.lengths)
        model.train()
        return scoring.greedy(scores.argmax(-1), four_words.durations.tolist(), ALPHABET)

    assert not set(heard()) & set(four_words.texts)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(400):
        scores = model(batch.features, batch.lengths)
        optimizer.zero_grad()
        ctc_loss(scores, batch.lengths, batch.labels, batch.sizes).backward()
        assert step > 0 or all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
        optimizer.step()
        if step % 5 == 4 and heard() == four_words.texts:
            return
    pytest.fail(f"after {step + 1} steps it hears {heard()}, not {four_words.texts}")
