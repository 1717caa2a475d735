"""Speech: corpora and what is wrong with them, features and their file, and batches."""

import csv
import importlib.util
import io
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from rotationout.experiments.problems import UnusableError, counts
from rotationout.experiments.speech import audio, batches, features
from rotationout.experiments.speech.audio import log_filter_banks, read_audio
from rotationout.experiments.speech.batches import Speech, bucketed, select, without_speakers
from rotationout.experiments.speech.corpus import Utterance, read_corpus, read_kaldi, read_manifest
from rotationout.experiments.speech.features import Features
from rotationout.experiments.speech.text import ALPHABET, WSJ_ALPHABET, decode, encode, frames_needed

AN4 = Path(__file__).parents[2] / "shared" / "data" / "an4"
has_soundfile = importlib.util.find_spec("soundfile") is not None
needs_soundfile = pytest.mark.skipif(not has_soundfile, reason="soundfile, of the extra 'speech', is not installed")
needs_an4 = pytest.mark.skipif(not AN4.is_dir(), reason=f"the AN4 corpus is not at {AN4}")

MANIFEST = 'utt\tsplit\tspeaker\tseconds\tframes\ttext\na\ttrain\ts1\t1.0\t98\tYES\nb\ttest\ts2\t0.7\t68\tI\'M "SO"\n'


def data_set(folder: Path, manifest: str = MANIFEST) -> Path:
    (folder / "manifest.tsv").write_text(manifest, encoding="utf-8")
    return folder


def kaldi(folder: Path, **files: str) -> Path:
    """A data directory ``train`` of two utterances, with some of its files replaced."""
    tables = {
        "wav.scp": "a /audio/a.wav\nb b.wav\n",
        "text": "a Yes <NOISE> no\nb ,COMMA\n",
        "utt2spk": "a s1\nb s2\n",
        **{name.replace("_", "."): text for name, text in files.items()},
    }
    (folder / "train").mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / "train" / name).write_text(text, encoding="utf-8")
    return folder


def test_a_manifest_is_read_as_it_is(tmp_path: Path) -> None:
    utterances = read_manifest(data_set(tmp_path))
    assert [(u.name, u.split, u.speaker, u.text) for u in utterances] == [
        ("a", "train", "s1", "YES"),
        ("b", "test", "s2", 'I\'M "SO"'),
    ]
    assert utterances[1].path == tmp_path / "flac" / "test" / "b.flac"
    assert read_manifest(str(tmp_path), "test") == utterances[1:]
    assert read_corpus(tmp_path) == utterances
    assert read_corpus(tmp_path, ["test"]) == utterances[1:]


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


def test_a_missing_corpus(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no manifest.tsv; folder must hold that and flac"):
        read_manifest(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"neither a manifest.tsv nor a folder with a wav.scp"):
        read_corpus(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no test_eval92; of Kaldi's data directories it has \['train'\]"):
        read_corpus(kaldi(tmp_path), ["train", "test_eval92"])
    (tmp_path / "train" / "utt2spk").unlink()
    with pytest.raises(FileNotFoundError, match=r"utt2spk does not exist; a data directory of Kaldi's has"):
        read_corpus(tmp_path)


def test_a_data_directory_of_kaldis(tmp_path: Path) -> None:
    """Text in capitals and without its noises, relative paths from the directory."""
    assert read_corpus(kaldi(tmp_path)) == [
        Utterance("a", "train", "s1", "YES NO", Path("/audio/a.wav")),
        Utterance("b", "train", "s2", ",COMMA", tmp_path / "train" / "b.wav"),
    ]


def test_segments_of_recordings(tmp_path: Path) -> None:
    kaldi(tmp_path, wav_scp="rec\t/audio/rec.wav\n", segments="a rec 0.5 1.25\nb rec 2 -1\n")
    first, second = read_kaldi(tmp_path, "train")
    assert (first.path, first.start, first.end) == (Path("/audio/rec.wav"), 0.5, 1.25)
    assert (second.path, second.start, second.end) == (Path("/audio/rec.wav"), 2.0, None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"wav_scp": "a sph2pipe -f wav a.wv1 |\nb b.wav\n"},
            r"'a' is what a command writes, 'sph2pipe .*', and commands",
        ),
        ({"wav_scp": "a\nb b.wav\n"}, "'a' has no path"),
        ({"text": "a YES\n\nb NO\n"}, r"text, line 2: the line is empty"),
        ({"text": "a YES\na NO\n"}, r"text, line 2: 'a' is there twice"),
        ({"text": "a YES\nc NO\n"}, r"text has an utterance 'c' that wav.scp has not"),
        ({"utt2spk": "a s1\n"}, r"text has an utterance 'b' that utt2spk has not"),
        ({"segments": "a a 0 1\n"}, r"text has an utterance 'b' that segments has not"),
        ({"segments": "a a 0 1\nb c 0 1\n"}, r"segments has a recording 'c' that wav.scp has not"),
        ({"segments": "a a 0\nb b 0 1\n"}, r"'a' must have a recording, a start and an end in seconds, got 'a 0'"),
        ({"segments": "a a 1 0.5\nb b 0 1\n"}, r"'a' must end after it starts, got 'a 1 0.5'"),
    ],
)
def test_a_bad_data_directory(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_kaldi(kaldi(tmp_path, **files), "train")


@needs_soundfile
def test_audio_is_read_and_pieces_of_it(tmp_path: Path) -> None:
    import soundfile

    path = tmp_path / "a.flac"
    samples = torch.rand(3200) - 0.5
    soundfile.write(path, samples.numpy(), 16_000)
    torch.testing.assert_close(read_audio(Utterance("a", "train", "s", "YES", path)), samples, rtol=0, atol=2**-15)
    piece = read_audio(Utterance("a", "train", "s", "YES", path, 0.05, 0.15))
    torch.testing.assert_close(piece, samples[800:2400], rtol=0, atol=2**-15)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 500] = bytes(500)
    path.write_bytes(content)


def rewrite(path: Path, samples: torch.Tensor, rate: int = 16_000, subtype: str | None = None) -> None:
    import soundfile

    soundfile.write(path, samples.numpy(), rate, subtype=subtype)


DAMAGE: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "gone": ("missing file", "the audio of utterance 'a' is not at .*a.wav", Path.unlink),
    "half a FLAC": ("damaged audio", "a.flac cannot be read, it may be damaged", lambda path: cut(path, 3000)),
    "half a WAV": ("truncated audio", "a.wav ends 3244 bytes before its end", lambda path: cut(path, 3200)),
    "no WAV": ("damaged audio", "a.wav cannot be read", lambda path: cut(path, 0)),
    "zeros in a FLAC": ("damaged audio", "a.flac cannot be read", spoil),
    "8 kHz": ("sample rate", "a.wav must be at 16000 Hz, got 8000", lambda p: rewrite(p, torch.zeros(800), 8_000)),
    "stereo": ("channels", "a.wav must have one channel, got 2", lambda path: rewrite(path, torch.zeros(800, 2))),
    "NaN": (
        "damaged audio",
        "a.wav has samples missing, or some that are not numbers",
        lambda path: rewrite(path, torch.full((800,), math.nan), subtype="FLOAT"),
    ),
}


@needs_soundfile
@pytest.mark.parametrize("kind", DAMAGE)
def test_bad_audio(tmp_path: Path, kind: str) -> None:
    reason, message, damage = DAMAGE[kind]
    path = tmp_path / f"a.{'flac' if 'FLAC' in kind else 'wav'}"
    rewrite(path, torch.rand(3200) - 0.5)
    damage(path)
    with pytest.raises(UnusableError, match=message) as error:
        read_audio(Utterance("a", "train", "s", "YES", path))
    assert error.value.reason == reason


@needs_soundfile
def test_a_piece_beyond_the_end(tmp_path: Path) -> None:
    rewrite(tmp_path / "a.wav", torch.zeros(3200))
    with pytest.raises(UnusableError, match=r"a.wav has 0.20 s, but utterance 'a' is from 0.10 to 0.30 s"):
        read_audio(Utterance("a", "train", "s", "YES", tmp_path / "a.wav", 0.1, 0.3))


def test_audio_needs_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rotationout\[speech\]'"):
        read_audio(Utterance("a", "train", "s", "YES", Path("a.flac")))


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 4000.0])
def test_a_tone_is_loudest_in_its_band(frequency: float) -> None:
    """The peak of band k, from 0, is at mel (k + 1) / 41 of the top."""
    time = torch.arange(16_000) / 16_000
    bands = log_filter_banks(torch.sin(2 * math.pi * frequency * time))
    assert bands.shape == (98, 40)
    mel = [2595 * math.log10(1 + f / 700) for f in (frequency, 8000.0)]
    assert abs(bands.mean(0).argmax().item() - (mel[0] / mel[1] * 41 - 1)) <= 0.6
    louder = log_filter_banks(10 * torch.sin(2 * math.pi * frequency * time))
    band = int(bands.mean(0).argmax())
    torch.testing.assert_close(louder[:, band], bands[:, band] + math.log(100))


def test_bands_cover_every_frequency_once() -> None:
    bands = audio._mel_bands(40)
    between = bands[2:188].sum(1)  # from the first peak, 44 Hz, to the last, 7 481 Hz, every 40 Hz
    torch.testing.assert_close(between, torch.ones_like(between))
    assert (bands.amax(0) > 0).all()


def test_silence_and_too_little_sound() -> None:
    assert log_filter_banks(torch.zeros(400)).isfinite().all()
    with pytest.raises(ValueError, match=r"at least 400, one frame, got shape \(399,\)"):
        log_filter_banks(torch.zeros(399))


def test_labels() -> None:
    text = "IT'S A CAB"
    labels = encode(text)
    assert min(labels) == 1
    assert max(labels) <= len(ALPHABET)
    path = [label for pair in zip(labels, [0] * len(labels), strict=True) for label in pair]
    assert decode(path) == text
    assert decode([0, 3, 3, 0, 0, 3, 4, 4]) == "AAB"
    assert decode([]) == ""
    assert decode(encode("MR. X", WSJ_ALPHABET), WSJ_ALPHABET) == "MR. X"
    assert len(set(WSJ_ALPHABET)) == len(WSJ_ALPHABET)
    with pytest.raises(ValueError, match="text holds '3', 'b', the alphabet is"):
        encode("A b3")


@pytest.mark.parametrize("text", ["A", "AB", "AAB", "AAABBA", "BOOKKEEPER"])
def test_ctc_needs_a_blank_between_equal_letters(text: str) -> None:
    """As `torch.nn.functional.ctc_loss` finds: a frame less and no path is left."""
    needed = frames_needed(encode(text))
    scores = torch.randn(needed, 1, 29).log_softmax(-1)
    labels = torch.tensor([encode(text)])
    losses = [
        torch.nn.functional.ctc_loss(scores[:n], labels, torch.tensor([n]), torch.tensor([len(text)]))
        for n in (needed, needed - 1)
        if n > 0
    ]
    assert losses[0].isfinite()
    assert all(loss.isinf() for loss in losses[1:])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty-four utterances of noise by four speakers, each louder than the one before, in Kaldi's layout."""
    names = [f"u{i:02}" for i in range(24)]
    folder = tmp_path / "corpus" / "train"
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        rewrite(folder / f"{name}.wav", 0.01 * (1 + i % 4) * torch.randn(4000 + 320 * i))
    for table, line in (("wav.scp", "{0} {0}.wav"), ("text", "{0} YES NO"), ("utt2spk", "{0} s{1}")):
        lines = [line.format(name, i % 4) for i, name in enumerate(names)]
        (folder / table).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "corpus"


@needs_soundfile
def test_features_are_normalised_by_speaker_and_kept(corpus: Path, tmp_path: Path) -> None:
    found = features.open_corpus(corpus, cache=tmp_path / "cache")
    assert found.frames.dtype == torch.float16
    assert found.lengths.tolist() == [(4000 + 320 * i - 400) // 160 + 1 for i in range(24)]
    pieces = found.frames.float().split(found.lengths.tolist())
    for speaker in range(4):
        spoken = torch.cat(pieces[speaker::4])
        torch.testing.assert_close(spoken.mean(0), torch.zeros(40), rtol=0, atol=1e-3)
        torch.testing.assert_close(spoken.std(0, correction=0), torch.ones(40), rtol=0, atol=1e-3)
    assert pieces[0].mean(0).abs().max() > 0.02, "not by utterance"
    (kept,) = (tmp_path / "cache").iterdir()
    loaded = features.load(kept)
    assert torch.equal(loaded.frames, found.frames)
    assert (loaded.names, loaded.speakers, loaded.texts) == (found.names, found.speakers, found.texts)


@needs_soundfile
def test_features_are_computed_once_and_anew_if_the_corpus_changed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = features.open_corpus(corpus, cache=cache)
    features.save(first, tmp_path / "carried.pt")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        assert torch.equal(features.open_corpus(corpus, cache=cache).frames, first.frames)
        assert torch.equal(features.open_corpus(tmp_path / "carried.pt", ["train"]).frames, first.frames)
    with pytest.raises(ValueError, match=r"carried.pt has no features of test; it has train"):
        features.open_corpus(tmp_path / "carried.pt", ["train", "test"])
    path = corpus / "train" / "u03.wav"
    rewrite(path, torch.randn(8000))
    assert features.open_corpus(corpus, cache=cache).lengths[3] == 48
    os.utime(path, ns=(0, 0))
    assert features.open_corpus(corpus, cache=cache).lengths[3] == 48
    assert len(list(cache.iterdir())) == 3


@needs_soundfile
def test_bad_audio_is_reported_counted_and_left_out(corpus: Path) -> None:
    (corpus / "train" / "u05.wav").unlink()
    cut(corpus / "train" / "u09.wav", 2000)
    out = io.StringIO()
    found = features.open_corpus(corpus, out=out)
    assert len(found) == 22
    assert counts(found.problems) == {"missing file": 1, "truncated audio": 1}
    assert {problem.name for problem in found.problems} == {"u05", "u09"}
    assert "u05.wav; it is left out" in out.getvalue()
    rewrite(corpus / "train" / "u11.wav", torch.zeros(399))
    with pytest.raises(ValueError, match="3 of 24 utterances of 'train' cannot be used, more than one in ten") as error:
        features.open_corpus(corpus, out=out)
    assert "too short: 1" in str(error.value)


def test_features_that_are_not(tmp_path: Path) -> None:
    path = tmp_path / "features.pt"
    path.write_bytes(b"no")
    with pytest.raises(ValueError, match=r"features.pt does not hold the features of a corpus, or is damaged"):
        features.load(path)
    features.save(made(2), path)
    content = torch.load(path, weights_only=True)
    torch.save({**content, "settings": {"bands": 80}}, path)
    with pytest.raises(ValueError, match=r"holds other features \({'bands': 80}\); compute them again"):
        features.load(path)
    shutil.copy(path, tmp_path / "cut.pt")
    cut(tmp_path / "cut.pt", 200)
    with pytest.raises(ValueError, match="damaged"):
        features.load(tmp_path / "cut.pt")


def made(count: int, texts: dict[int, str] | None = None) -> Features:
    """Utterances of 70, 73, … frames, by five speakers."""
    lengths = torch.tensor([70 + 3 * i for i in range(count)])
    return Features(
        frames=torch.randn(int(lengths.sum()), 40).half(),
        lengths=lengths,
        names=[f"u{i}" for i in range(count)],
        splits=["train"] * count,
        speakers=[f"s{i % 5}" for i in range(count)],
        texts=[(texts or {}).get(i, "YES" if i % 2 else "GO ON") for i in range(count)],
    )


def test_a_batch_is_the_utterances_padded() -> None:
    found = made(6)
    speech = Speech(found, range(1, 6), ALPHABET, "cpu")
    chosen = torch.tensor([4, 0, 2])
    assert speech.padded_length(chosen) == 128, "85 frames, in steps of 64"
    batch = speech.batch(chosen, 128)
    pieces = found.frames.float().split(found.lengths.tolist())
    expected = pad_sequence([pieces[5], pieces[1], pieces[3], torch.zeros(128, 40)])[:, :3]
    assert torch.equal(batch.features, expected)
    assert batch.lengths.tolist() == [85, 73, 79]
    assert batch.sizes.tolist() == [3, 3, 3]
    assert [decode(row, ALPHABET) for row in batch.labels.tolist()] == ["YES"] * 3
    assert speech.names == ["u1", "u2", "u3", "u4", "u5"]


def test_bad_transcripts_are_reported_counted_and_left_out() -> None:
    texts = {3: "", 7: "NO. 7", 11: "A" * 53, 12: "A" * 54}  # 103 frames are enough for 52 equal letters, 106 for 53
    out = io.StringIO()
    speech = Speech(made(60, texts), range(60), ALPHABET, "cpu", out)
    assert {problem.name: problem.reason for problem in speech.problems} == {
        "u3": "empty transcript",
        "u7": "unknown character",
        "u11": "transcript too long",
        "u12": "transcript too long",
    }
    assert "train, u7: text holds '.', '7', the alphabet is" in out.getvalue()
    assert "its 103 frames are too few for" in out.getvalue()
    assert "CTC needs 105, counting a blank between equal letters" in out.getvalue()
    assert len(Speech(made(60, {11: "A" * 52}), range(60), ALPHABET, "cpu", out)) == 60
    with pytest.raises(ValueError, match=r"2 of 10 utterances of 'train' cannot be used.*the first: its transcript"):
        Speech(made(10, {1: " ", 2: ""}), range(10), ALPHABET, "cpu", out)
    with pytest.raises(ValueError, match="there are no utterances"):
        Speech(made(10), [], ALPHABET, "cpu", out)


def test_speakers_are_held_out_whole_and_always_the_same() -> None:
    found = made(23)
    learnt, held = without_speakers(found, select(found, "train"), 2)
    speakers = [{found.speakers[index] for index in part} for part in (learnt, held)]
    assert [len(part) for part in speakers] == [3, 2]
    assert not speakers[0] & speakers[1]
    assert sorted(learnt + held) == list(range(23))
    torch.rand(3)
    assert without_speakers(found, select(found, "train"), 2)[1] == held
    for count in (0, 5):
        with pytest.raises(ValueError, match="must leave speakers on either side of 5"):
            without_speakers(found, select(found, "train"), count)
    with pytest.raises(ValueError, match="split must be one of train, got 'dev'"):
        select(found, "dev")


def test_batches_of_an_epoch() -> None:
    """Every utterance at most once, alike in length, in another order and company every time, the same by seed."""
    durations = torch.randint(70, 640, (948,))
    generator = torch.Generator().manual_seed(0)
    first, second = bucketed(durations, 32, generator), bucketed(durations, 32, generator)
    assert first.shape == (29, 32)
    assert first.unique().numel() == 928
    padded = durations[first].amax(1)
    assert padded.sum() * 32 < 1.1 * durations[first].sum()
    assert not torch.equal(padded, padded.sort().values)
    assert {tuple(sorted(row)) for row in first.tolist()} & {tuple(sorted(row)) for row in second.tolist()} == set()
    assert torch.equal(bucketed(durations, 32, torch.Generator().manual_seed(0)), first)


@needs_an4
def test_the_corpus_is_complete() -> None:
    assert [len(read_manifest(AN4, split)) for split in ("train", "test")] == [948, 130]
    utterances = read_manifest(AN4)
    assert all(u.path.is_file() for u in utterances)
    assert all(encode(u.text) for u in utterances)
    assert not {u.speaker for u in utterances if u.split == "train"} & {
        u.speaker for u in utterances if u.split == "test"
    }


@needs_an4
@needs_soundfile
def test_features_have_the_frames_of_the_manifest() -> None:
    with (AN4 / "manifest.tsv").open(encoding="utf-8", newline="") as lines:
        frames = {row["utt"]: int(row["frames"]) for row in csv.DictReader(lines, delimiter="\t")}
    chosen = read_manifest(AN4, "test")[::20]
    found = features.compute(chosen)
    assert found.lengths.tolist() == [frames[u.name] for u in chosen]
    assert found.frames.isfinite().all()
    assert not found.problems
    speech = Speech(found, range(len(found)), ALPHABET, "cpu")
    assert speech.padded_length(torch.arange(len(speech))) % batches.ROUND == 0
