"""Speech: corpora with a manifest and in Kaldi's layout, and what is wrong with them."""

from pathlib import Path

import pytest
from tests.speech_corpora import AN4, needs_an4

from rotationout.experiments.speech.corpus import Utterance, read_corpus, read_kaldi, read_manifest
from rotationout.experiments.speech.text import encode

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
        (MANIFEST + "c\ttrain\n", None, "line 4: the columns do not match"),
        (MANIFEST + "c\ttrain\ts\t1\t2\tYES\tNO\n", None, "line 4: the columns do not match"),
        (MANIFEST + "\na\ttrain\ts\t1\t2\tNO\n", None, "manifest.tsv, line 5: 'a' of 'train' is there twice"),
        (MANIFEST, "dev", "split must be one of 'test', 'train', got 'dev'"),
    ],
)
def test_a_bad_manifest(tmp_path: Path, manifest: str, split: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_manifest(data_set(tmp_path, manifest), split)


@pytest.mark.parametrize(
    "text",
    [MANIFEST.replace("YES", "CAFÉ").encode("latin1"), MANIFEST.replace("YES", 200_000 * "A").encode()],
    ids=["latin1", "long"],
)
def test_a_manifest_in_another_encoding_is_named(tmp_path: Path, text: bytes) -> None:
    """And so is one with a text that is too long for Python's csv."""
    data_set(tmp_path).joinpath("manifest.tsv").write_bytes(text)
    with pytest.raises(ValueError, match=r"manifest.tsv must be UTF-8 text, columns between tabs: "):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["wav.scp", "text", "utt2spk"])
def test_a_table_of_kaldis_in_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    (kaldi(tmp_path) / "train" / name).write_bytes("a CAFÉ\nb NO\n".encode("latin1"))
    with pytest.raises(ValueError, match=f"{name} must be UTF-8 text: "):
        read_kaldi(tmp_path, "train")


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
            r"'a' has a command, 'sph2pipe .*', and commands",
        ),
        ({"wav_scp": "a\nb b.wav\n"}, "'a' has no path"),
        ({"text": "a YES\n\nb NO\n"}, r"text, line 2: the line is empty"),
        ({"text": "a YES\na NO\n"}, r"text, line 2: 'a' is there twice"),
        ({"text": "a YES\nc NO\n"}, r"text has an utterance 'c' that wav.scp lacks"),
        ({"text": "b YES\n"}, r"wav.scp has an utterance 'a' that text lacks"),
        ({"text": "b YES\n", "segments": "b b 0 1\n"}, r"utt2spk has an utterance 'a' that text lacks"),
        ({"text": "b YES\n", "segments": "a a 0 1\nb b 0 1\n"}, r"segments has an utterance 'a' that text lacks"),
        ({"text": ""}, r"train.text is empty; it must have a line for each utterance of 'train'"),
        ({"utt2spk": "a s1\n"}, r"text has an utterance 'b' that utt2spk lacks"),
        ({"segments": "a a 0 1\n"}, r"text has an utterance 'b' that segments lacks"),
        ({"segments": "a a 0 1\nb c 0 1\n"}, r"segments has a recording 'c' that wav.scp lacks"),
        ({"segments": "a a 0\nb b 0 1\n"}, r"'a' must have a recording, a start and an end in seconds, got 'a 0'"),
        ({"segments": "a a 0 1\nb b 0 inf\n"}, r"segments, line 2: 'b' must start and end at finite .*got 'b 0 inf'"),
        ({"segments": "a a nan 1\nb b 0 1\n"}, r"segments, line 1: 'a' must start and end at finite .*got 'a nan 1'"),
        ({"segments": "a a 1 0.5\nb b 0 1\n"}, r"'a' must end after it starts, got 'a 1 0.5'"),
    ],
)
def test_a_bad_data_directory(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_kaldi(kaldi(tmp_path, **files), "train")


@needs_an4
def test_the_corpus_is_complete() -> None:
    assert [len(read_manifest(AN4, split)) for split in ("train", "test")] == [948, 130]
    utterances = read_manifest(AN4)
    assert all(u.path.is_file() for u in utterances)
    assert all(encode(u.text) for u in utterances)
    assert not {u.speaker for u in utterances if u.split == "train"} & {
        u.speaker for u in utterances if u.split == "test"
    }
