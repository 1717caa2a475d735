"""Speech: the reader and its features, and a BiLSTM-CTC that learns a few real utterances under every noise."""

import csv
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from rotationout.experiments import speech_data
from rotationout.experiments.speech_data import Utterance, decode, encode, log_filter_banks, read_audio, read_manifest
from rotationout.nn import LockedDropout, NoisyLSTM, RotationOutSequence

AN4 = Path(__file__).parents[2] / "shared" / "data" / "an4"
has_soundfile = importlib.util.find_spec("soundfile") is not None
needs_soundfile = pytest.mark.skipif(not has_soundfile, reason="soundfile, of the extra 'speech', is not installed")
needs_an4 = pytest.mark.skipif(not AN4.is_dir(), reason=f"the AN4 corpus is not at {AN4}")

MANIFEST = 'utt\tsplit\tspeaker\tseconds\tframes\ttext\na\ttrain\ts1\t1.0\t98\tYES\nb\ttest\ts2\t0.7\t68\tI\'M "SO"\n'


def data_set(folder: Path, manifest: str = MANIFEST) -> Path:
    (folder / "manifest.tsv").write_text(manifest, encoding="utf-8")
    return folder


def test_a_manifest_is_read_as_it_is(tmp_path: Path) -> None:
    utterances = read_manifest(data_set(tmp_path))
    assert [(u.name, u.split, u.speaker, u.text) for u in utterances] == [
        ("a", "train", "s1", "YES"),
        ("b", "test", "s2", 'I\'M "SO"'),
    ]
    assert utterances[1].path == tmp_path / "flac" / "test" / "b.flac"
    assert read_manifest(str(tmp_path), "test") == utterances[1:]


@pytest.mark.parametrize(
    ("manifest", "split", "message"),
    [
        ("utt\tsplit\ttext\n", None, r"needs the columns utt, split, speaker, text; it lacks speaker"),
        ("", None, "it lacks speaker, split, text, utt"),
        (MANIFEST + "c\ttrain\n", None, "line 4: the columns do not fit"),
        (MANIFEST + "c\ttrain\ts\t1\t2\tYES\tNO\n", None, "line 4: the columns do not fit"),
        (MANIFEST, "dev", "split must be one of 'test', 'train', got 'dev'"),
    ],
)
def test_a_bad_manifest(tmp_path: Path, manifest: str, split: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_manifest(data_set(tmp_path, manifest), split)


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no manifest.tsv; folder must hold that and flac"):
        read_manifest(tmp_path)


@needs_soundfile
def test_audio_is_read_and_checked(tmp_path: Path) -> None:
    import soundfile

    (tmp_path / "flac" / "train").mkdir(parents=True)
    utterance = read_manifest(data_set(tmp_path), "train")[0]
    with pytest.raises(FileNotFoundError, match="the audio of utterance 'a' is not at"):
        read_audio(utterance)
    samples = torch.rand(1600) - 0.5
    soundfile.write(utterance.path, samples.numpy(), 16_000)
    torch.testing.assert_close(read_audio(utterance), samples, rtol=0, atol=2**-15)
    soundfile.write(utterance.path, torch.stack([samples, samples], 1).numpy(), 8_000)
    with pytest.raises(ValueError, match="one channel at 16000 Hz, got 2 at 8000 Hz"):
        read_audio(utterance)


def test_audio_needs_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rotationout\[speech\]'"):
        read_audio(Utterance("a", "train", "s", "YES", Path("a.flac")))


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 4000.0])
def test_a_tone_is_loudest_in_its_band(frequency: float) -> None:
    """The peak of band k, from 0, is at mel (k + 1) / 41 of the top."""
    time = torch.arange(16_000) / 16_000
    features = log_filter_banks(torch.sin(2 * math.pi * frequency * time))
    assert features.shape == (98, 40)
    mel = [2595 * math.log10(1 + f / 700) for f in (frequency, 8000.0)]
    assert abs(features.mean(0).argmax().item() - (mel[0] / mel[1] * 41 - 1)) <= 0.6
    louder = log_filter_banks(10 * torch.sin(2 * math.pi * frequency * time))
    band = int(features.mean(0).argmax())
    torch.testing.assert_close(louder[:, band], features[:, band] + math.log(100))


def test_bands_cover_every_frequency_once() -> None:
    bands = speech_data._mel_bands(40)
    between = bands[2:188].sum(1)  # from the first peak, 44 Hz, to the last, 7 481 Hz, every 40 Hz
    torch.testing.assert_close(between, torch.ones_like(between))
    assert (bands.amax(0) > 0).all()


def test_silence_and_too_little_sound() -> None:
    assert log_filter_banks(torch.zeros(400)).isfinite().all()
    with pytest.raises(ValueError, match=r"at least 400, one frame, got shape \(399,\)"):
        log_filter_banks(torch.zeros(399))


def test_labels() -> None:
    text = "IT'S A CAB"
    labels = encode(text).tolist()
    assert min(labels) == 1
    assert max(labels) <= len(speech_data.ALPHABET)
    path = [label for pair in zip(labels, [0] * len(labels), strict=True) for label in pair]
    assert decode(path) == text
    assert decode([0, 3, 3, 0, 0, 3, 4, 4]) == "AAB"
    assert decode([]) == ""
    with pytest.raises(ValueError, match="text holds '3', 'b', the alphabet is"):
        encode("A b3")


@needs_an4
def test_the_corpus_is_complete() -> None:
    assert [len(read_manifest(AN4, split)) for split in ("train", "test")] == [948, 130]
    utterances = read_manifest(AN4)
    assert all(u.path.is_file() for u in utterances)
    assert all(encode(u.text).numel() for u in utterances)
    assert not {u.speaker for u in utterances if u.split == "train"} & {
        u.speaker for u in utterances if u.split == "test"
    }


@needs_an4
@needs_soundfile
def test_features_have_the_frames_of_the_manifest() -> None:
    with (AN4 / "manifest.tsv").open(encoding="utf-8", newline="") as lines:
        frames = {row["utt"]: int(row["frames"]) for row in csv.DictReader(lines, delimiter="\t")}
    for utterance in read_manifest(AN4, "test")[::20]:
        features = speech_data.features_of(utterance)
        assert features.shape == (frames[utterance.name], 40)
        torch.testing.assert_close(features.mean(0), torch.zeros(40), rtol=0, atol=1e-5)
        torch.testing.assert_close(features.std(0), torch.ones(40))


class Listener(nn.Module):
    """The paper's network, smaller: a bidirectional LSTM and a label for every frame."""

    def __init__(self, **noises: Any) -> None:
        super().__init__()
        self.recurrent = NoisyLSTM(speech_data.FEATURES, 64, 2, bidirectional=True, **noises)
        self.labels = nn.Linear(128, len(speech_data.ALPHABET) + 1)

    def forward(self, utterances: list[Tensor]) -> tuple[Tensor, Tensor]:
        output, _ = self.recurrent(pack_sequence(utterances, enforce_sorted=False))
        padded, lengths = pad_packed_sequence(output)
        return self.labels(padded).log_softmax(-1), lengths


@torch.no_grad()
def heard(model: Listener, utterances: list[Tensor]) -> list[str]:
    """The best path of every utterance, without noise."""
    scores, lengths = model.eval()(utterances)
    model.train()
    return [decode(scores[:n, i].argmax(-1).tolist()) for i, n in enumerate(lengths)]


def everywhere(noise: Callable[..., nn.Module]) -> dict[str, Any]:
    return {f"{place}_noise": noise(0.2) for place in ("input", "layer", "output")}


NOISES: dict[str, dict[str, Any]] = {
    "none": {},
    "locked": everywhere(LockedDropout),
    "rotation": everywhere(RotationOutSequence),
    "weight drop": {"weight_drop": 0.2},
    "variational weight drop": {"weight_drop": 0.2, "variational": True},
    "rotation, variational weight drop": {**everywhere(RotationOutSequence), "weight_drop": 0.1, "variational": True},
}


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """The matrices are small: more threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@needs_an4
@needs_soundfile
@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", NOISES)
def test_a_network_learns_utterances_by_heart(name: str) -> None:
    """Four short utterances, every fourth frame: from hearing nothing right to every letter."""
    names = ["an121-fjdn-b", "an253-fash-b", "an100-mskh-b", "an102-mrcb-b"]
    found = {u.name: u for u in read_manifest(AN4, "train")}
    texts = [found[name].text for name in names]
    assert texts == ["HELP", "GO", "YES", "NO"]
    utterances = [speech_data.features_of(found[name])[::4] for name in names]
    targets = [encode(text) for text in texts]
    torch.manual_seed(0)
    model = Listener(**NOISES[name])
    assert not set(heard(model, utterances)) & set(texts)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(400):
        scores, lengths = model(utterances)
        optimizer.zero_grad()
        F.ctc_loss(scores, torch.cat(targets), lengths, torch.tensor([t.numel() for t in targets])).backward()
        assert step > 0 or all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
        optimizer.step()
        if step % 5 == 4 and heard(model, utterances) == texts:
            return
    pytest.fail(f"after {step + 1} steps it hears {heard(model, utterances)}, not {texts}")
