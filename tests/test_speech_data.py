"""Speech: labels, the features of a corpus and their file, and batches."""

import csv
import dataclasses
import math
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.speech_corpora import AN4, cut, made, needs_an4, needs_soundfile, rewrite
from torch.nn.utils.rnn import pad_sequence

from rotationout.experiments import processes
from rotationout.experiments.problems import counts
from rotationout.experiments.speech import batches, features
from rotationout.experiments.speech.batches import Speech, bucketed, select, without_speakers
from rotationout.experiments.speech.corpus import read_corpus, read_manifest
from rotationout.experiments.speech.text import ALPHABET, WSJ_ALPHABET, decode, encode, frames_needed


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
    with pytest.raises(ValueError, match="text has '3', 'b', which the alphabet"):
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
def test_features_that_cannot_be_kept_are_used_all_the_same(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert len(features.open_corpus(corpus, cache=tmp_path / "file" / "cache")) == 24
    assert f"the features are not kept in {tmp_path / 'file' / 'cache'}: " in capsys.readouterr().err


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
@pytest.mark.parametrize("absurd", [1e30, -3e38])
def test_an_absurd_sample_does_not_spread_over_its_speaker(
    corpus: Path, absurd: float, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = 0.01 * torch.randn(4000)
    samples[2000] = absurd
    rewrite(corpus / "train" / "u04.wav", samples, subtype="FLOAT")
    found = features.open_corpus(corpus)
    assert found.frames.isfinite().all()
    assert counts(found.problems) == {"damaged audio": 1}
    assert f"u04.wav must have samples of about −1 to 1, got one of ±{abs(absurd):.3g}" in capsys.readouterr().err


@needs_soundfile
def test_features_of_a_speaker_who_is_never_heard_are_finite(corpus: Path) -> None:
    """Nor do features that do not vary at all, or that one click spreads far, become anything but numbers."""
    for number in range(0, 24, 4):
        rewrite(corpus / "train" / f"u{number:02}.wav", torch.zeros(4000), subtype="FLOAT")
    click = torch.zeros(4000)
    click[2000] = 1e15
    rewrite(corpus / "train" / "u01.wav", click, subtype="FLOAT")
    found = features.open_corpus(corpus)
    assert len(found) == 24
    assert found.frames.isfinite().all()
    assert not found.frames[: int(found.lengths[0])].any()


@needs_soundfile
def test_an_unreadable_file_is_not_kept_as_such(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When permission is given, neither size nor time of the file changes."""
    path = corpus / "train" / "u05.wav"
    (corpus / "train" / "u05.wav").rename(corpus / "train" / "there.wav")
    path.mkdir()
    assert counts(features.open_corpus(corpus, cache=tmp_path / "cache").problems) == {"unreadable file": 1}
    path.rmdir()
    (corpus / "train" / "there.wav").rename(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda file, mode: Path(file).name != "u05.wav")
        first = features._key(read_corpus(corpus))
    assert features._key(read_corpus(corpus)) != first
    assert not features.open_corpus(corpus, cache=tmp_path / "cache").problems


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
def test_bad_audio_is_reported_counted_and_left_out(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    (corpus / "train" / "u05.wav").unlink()
    cut(corpus / "train" / "u09.wav", 2000)
    found = features.open_corpus(corpus)
    assert len(found) == 22
    assert counts(found.problems) == {"missing file": 1, "truncated audio": 1}
    assert {problem.name for problem in found.problems} == {"u05", "u09"}
    assert "u05.wav; it is left out" in capsys.readouterr().err
    for _ in range(2):
        assert len(features.open_corpus(corpus, ["train"], cache=cache)) == 22
        assert "u05.wav; it is left out" in capsys.readouterr().err, "also if the features were computed before"
    features.save(found, cache / "carried.pt")
    features.open_corpus(cache / "carried.pt")
    assert "u05.wav; it is left out" in capsys.readouterr().err
    rewrite(corpus / "train" / "u11.wav", torch.zeros(399))
    with pytest.raises(ValueError, match="3 of 24 utterances of 'train' cannot be used, more than one in ten") as error:
        features.open_corpus(corpus)
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
    features.save(dataclasses.replace(made(2), frames=torch.full((143, 40), math.inf).half()), path)
    with pytest.raises(ValueError, match=r"features.pt does not hold the features of a corpus, or is damaged"):
        features.load(path)
    shutil.copy(path, tmp_path / "cut.pt")
    cut(tmp_path / "cut.pt", 200)
    with pytest.raises(ValueError, match="damaged"):
        features.load(tmp_path / "cut.pt")


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


@needs_soundfile
def test_of_several_processes_the_first_tells(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "train" / "u05.wav").unlink()
    told = {}
    for rank in (0, 1):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        assert features.open_corpus(corpus).problems
        assert Speech(made(60, {7: "NO. 7"}), range(60), ALPHABET, "cpu").problems
        told[rank] = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in told[0]] == ["train, u05", "train, u7"]
    assert told[1] == []


def test_bad_transcripts_are_reported_counted_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    long = "A" * 2000
    texts = {3: "", 7: "NO. 7", 11: "A" * 53, 12: long}  # 103 frames are enough for 52 equal letters
    speech = Speech(made(60, texts), range(60), ALPHABET, "cpu")
    assert {problem.name: problem.reason for problem in speech.problems} == {
        "u3": "empty transcript",
        "u7": "unknown character",
        "u11": "transcript too long",
        "u12": "transcript too long",
    }
    told = capsys.readouterr().err
    assert "train, u7: text has '.', '7', which the alphabet" in told
    assert (
        f"its 103 frames are too few for '{long[:53]}': CTC needs 105, counting a blank between equal letters" in told
    )
    assert f"its 106 frames are too few for '{long[:60]}…': CTC needs 3999" in told
    assert len(Speech(made(60, {11: "A" * 52}), range(60), ALPHABET, "cpu")) == 60
    with pytest.raises(
        ValueError, match=r"2 of 10 utterances of 'train' cannot be used.*the first: u1: its transcript"
    ):
        Speech(made(10, {1: " ", 2: ""}), range(10), ALPHABET, "cpu")
    with pytest.raises(ValueError, match="there are no utterances"):
        Speech(made(10), [], ALPHABET, "cpu")


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
        with pytest.raises(ValueError, match="must be at least 1 and less than the 5 speakers"):
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
