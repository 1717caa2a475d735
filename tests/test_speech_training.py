"""Training runs of Table 4 on a handful of AN4's utterances: every row, records, going on, what is left out."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import said
from tests.launching import torchrun
from tests.speech_corpora import AN4, made, needs_an4, needs_soundfile
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import assert_resumes, assert_tests_in_eval_mode, finish

from rotationout import cli
from rotationout.experiments import results, sweep
from rotationout.experiments.problems import Problem
from rotationout.experiments.records import mean_sd
from rotationout.experiments.speech import batches, features, recognition
from rotationout.experiments.speech.corpus import read_manifest
from rotationout.experiments.speech.features import Features
from rotationout.experiments.speech.recognition import Recognition, SpeechConfig, load_speech
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES
from rotationout.recipes import speech as recipe
from rotationout.report.cells import by_row
from rotationout.report.table4 import PAPER, section

pytestmark = pytest.mark.usefixtures("_one_thread")
SPEECH = ("an4", "an4_strength", "wsj")
RESULTS = Path(__file__).parents[1] / "results"
CPU = torch.device("cpu")


def small(config: SpeechConfig, **changes: Any) -> SpeechConfig:
    tiny = {"hidden": 4, "layers": 2, "batch": 4, "steps": 2, "milestones": (1,), "precision": "fp32"}
    return config.replace(**{**tiny, **changes})


def some_utterances(train: int = 12, test: int = 5) -> list[Any]:
    """Short ones, by several speakers."""
    chosen = []
    for split, count in (("train", train), ("test", test)):
        utterances = sorted(read_manifest(AN4, split), key=lambda u: (u.path.stat().st_size, u.name))
        chosen += utterances[:count]
    return chosen


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of a handful, in a file."""
    path = tmp_path_factory.mktemp("an4") / "features.pt"
    features.save(features.compute(some_utterances()), path)
    return path


@pytest.fixture(scope="module")
def kaldi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same utterances as Kaldi's data directories, by the names of its WSJ recipe."""
    root = tmp_path_factory.mktemp("kaldi")
    for u in some_utterances():
        folder = root / {"train": "train_si284", "test": "test_eval92"}[u.split]
        folder.mkdir(exist_ok=True)
        for table, value in (("wav.scp", u.path), ("text", u.text.lower()), ("utt2spk", u.speaker)):
            with (folder / table).open("a", encoding="utf-8") as file:
                file.write(f"{u.name} {value}\n")
    return root


@needs_an4
@needs_soundfile
@pytest.mark.parametrize("table", SPEECH)
def test_every_row_of_every_table_runs(table: str, data: Path, kaldi: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recognition, "CACHE", tmp_path / "cache")
    rows = [small(row, held_out=min(row.held_out, 1)) for row in TABLES[table]()]
    make = maker(kaldi if table == "wsj" else data, CPU)
    assert sweep.sweep(rows, make, folder=tmp_path, checkpoints=tmp_path / "kept", together=3) == []
    records = results.read_records(tmp_path, table)
    assert {record["row"] for record in records} == {row.row for row in rows}
    for record in records:
        assert record["epochs"] == len(record["cer_curve"]) == len(record["distance_curve"]) == 1
        assert record["edit_distance"] == record["distance_curve"][-1] > 0
        assert record["cer"] > 0
        assert record["skipped"] == {}
        assert record["train_utterances"] + record["test_utterances"] == (12 if table == "an4_strength" else 17)
        page = section(table, [record])
        assert page.table is not None
        assert page.table.rows[0][:2] == [record["row"], "1"]
        shown = record["transcripts"]
        assert {"name", "said", "heard"} == shown[0].keys()
        assert len(shown) == min(6, record["test_utterances"])


def test_what_scores_need_is_missed_before_the_corpus_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the first test, when hours of training would be lost."""
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", None)
    with pytest.raises(ModuleNotFoundError, match=r"need torchmetrics: pip install 'rotationout\[speech\]'"):
        maker(tmp_path / "no corpus", CPU)(small(TABLES["an4"]()[0]))


def test_the_tables_are_the_papers() -> None:
    rows = {row.row: row for row in TABLES["an4"]()}
    assert len(rows) == 8
    assert list(PAPER) == list(rows)
    keep = {name: (round(1 - row.p, 3), round(1 - row.weight_drop, 3), row.variational) for name, row in rows.items()}
    p = 1 - recipe.ROTATION_P
    assert list(keep.values()) == [
        (1, 1, False),
        (0.9, 1, False),
        (1, 0.8, False),
        (1, 0.8, True),
        (0.7, 1, False),
        (0.8, 0.8, True),
        (p, 1, False),
        (p, 0.9, True),
    ]
    for table in SPEECH:
        for row in TABLES[table]():
            assert row.recipe == table
            assert (row.hidden, row.layers, row.batch, row.weight_decay) == (512, 4, 32, 1e-5)
            rates = [row.rate_at(step) for step in (0, row.steps // 2 - 1, row.steps // 2, row.steps - 1)]
            assert rates == pytest.approx([1e-3, 1e-3, 2e-4, 2e-4])
            assert SpeechConfig(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
    assert rows["none"].steps == 80 * (948 // 32)
    assert {row.held_out for row in TABLES["an4_strength"]()} == {10}


def records_of(table: str) -> list[dict[str, Any]]:
    return results.read_records(RESULTS, table)


@pytest.mark.skipif(not (RESULTS / "an4_strength").is_dir(), reason="the search for the strength has no records yet")
def test_the_strength_is_what_the_search_found() -> None:
    """The row with the least mean edit distance."""
    rows = by_row(records_of("an4_strength"))
    means = {row: mean_sd([run["edit_distance"] for run in runs])[0] for row, runs in rows.items() if row != "none"}
    assert rows[min(means, key=lambda row: means[row])][0]["config"]["p"] == recipe.ROTATION_P


def corpus(train: int = 24, **texts: str) -> Callable[[SpeechConfig], Recognition]:
    """Makes runs on random features; the last five utterances are to test on."""
    torch.manual_seed(0)
    found = made(train + 5, {int(name[1:]): text for name, text in texts.items()})
    found = dataclasses.replace(found, splits=["train"] * train + ["test"] * 5)
    return on(found)


def on(found: Features) -> Callable[[SpeechConfig], Recognition]:
    def make(config: SpeechConfig) -> Recognition:
        train_indices = recognition.select(found, "train")
        test_indices = recognition.select(found, "test")
        train, test = (
            recognition.Speech(found, chosen, config.alphabet, CPU) for chosen in (train_indices, test_indices)
        )
        return Recognition(config, recognition.Corpus(train, test, tuple(found.problems)), CPU)

    return make


def config(row: str = "rotation, variational weight drop keep 0.9", **changes: Any) -> SpeechConfig:
    (found,) = (found for found in TABLES["an4"]() if found.row == row)
    return small(found, **{"steps": 14, "milestones": (8,), "test_every": 1, **changes})


@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_resumed_run_ends_bit_identical(stop: int, tmp_path: Path) -> None:
    """Stopped inside an epoch, at its end, and after the learning rate dropped."""
    make = corpus()
    whole, resumed = assert_resumes(lambda: make(config()), stop, tmp_path)
    assert resumed.facts == whole.facts


@pytest.mark.parametrize("count", [12, 30])
def test_a_run_is_not_resumed_on_other_utterances(count: int) -> None:
    first = corpus()(config())
    first.advance()
    with pytest.raises(ValueError, match=f"it has batches of other utterances than these {count}"):
        corpus(count)(config()).restore(first.state())


def test_a_test_is_without_noise_and_leaves_the_network_as_it_is() -> None:
    run = corpus()(config())
    run.advance()
    assert assert_tests_in_eval_mode(run)["distance_curve"] > 0


def test_a_run_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words of twelve to fifteen frames, every letter with a sound of its own: heard right in the end."""
    monkeypatch.setattr(batches, "ROUND", 4)
    lengths = torch.tensor([12 + i % 4 for i in range(37)])
    words = ["NO" if i % 2 else "YES" for i in range(37)]
    sounds = {letter: torch.randn(40) for letter in "NOYES"}
    clean = [
        sounds[word[t * len(word) // n]] for word, n in zip(words, lengths.tolist(), strict=True) for t in range(n)
    ]
    found = dataclasses.replace(
        made(37, dict(enumerate(words))),
        frames=(torch.stack(clean) + 0.3 * torch.randn(len(clean), 40)).half(),
        lengths=lengths,
        splits=["train"] * 32 + ["test"] * 5,
    )
    changes = {"steps": 280, "milestones": (250,), "learning_rate": 1e-2, "hidden": 32, "test_every": 30}
    run = on(found)(config("rotation", **changes))
    finish(run)
    assert run.losses[-1] < 0.1 * run.losses[0]
    assert run.result == {"edit_distance": 0.0, "cer": 0.0}
    assert {(row["said"], row["heard"]) for row in run.transcripts} == {("YES", "YES"), ("NO", "NO")}
    assert len(run.losses) == 35
    assert len(run.curves["cer_curve"]) == 2, "in the thirtieth epoch and in the last"


def test_what_is_left_out_is_in_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a test set smaller than a batch is no trouble."""
    make = corpus(60, u7="", u9="NO. 7", u63="YES")
    assert sweep.sweep([config(batch=8)], make, folder=tmp_path, checkpoints=tmp_path / "c") == []
    (record,) = results.read_records(tmp_path, "an4")
    assert record["skipped"] == {"train": {"empty transcript": 1, "unknown character": 1}}
    assert record["skipped_names"] == ["train/u7: empty transcript", "train/u9: unknown character"]
    assert (record["train_utterances"], record["test_utterances"]) == (58, 5)
    assert "train, u9: text has '.', '7'" in capsys.readouterr().err


@needs_an4
@needs_soundfile
def test_audio_that_was_left_out_is_in_the_record(tmp_path: Path) -> None:
    found = dataclasses.replace(
        features.compute(some_utterances()), problems=[Problem("train", "a", "damaged audio", "a.flac cannot be read")]
    )
    features.save(found, tmp_path / "features.pt")
    loaded = load_speech(config(), tmp_path / "features.pt", CPU)
    assert loaded.facts["skipped"] == {"train": {"damaged audio": 1}}


def test_bad_audio_and_bad_transcripts_count_together(tmp_path: Path) -> None:
    """Three of forty are less than a tenth, and so are two of the thirty-seven that are left; together they are more.

    One of thirty-eight and those two are not.
    """
    heard = made(42, {7: "", 9: "NO. 7"})
    bad = [Problem("train", f"b{i}", "damaged audio", f"b{i}.flac cannot be read") for i in range(3)]
    splits = ["train"] * 37 + ["test"] * 5
    for problems, refused in ((bad[:1], False), (bad, True)):
        features.save(dataclasses.replace(heard, splits=splits, problems=problems), tmp_path / "features.pt")
        if not refused:
            assert len(load_speech(config(), tmp_path / "features.pt", CPU).train) == 35
            continue
        with pytest.raises(ValueError, match=r"5 of 40 utterances of 'train' cannot be used.*damaged audio: 3, empty"):
            load_speech(config(), tmp_path / "features.pt", CPU)


@needs_an4
@needs_soundfile
def test_the_commands(tmp_path: Path, kaldi: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "wsj.pt"
    assert cli.main(["features", str(kaldi), str(file), "--split", "train_si284", "--split", "test_eval92"]) == 0
    assert "wsj.pt: 17 utterances, " in capsys.readouterr().out
    common = [
        "--data",
        str(file),
        "--out",
        str(tmp_path / "r"),
        "--device",
        "cpu",
        "--hidden",
        "4",
        "--layers",
        "1",
        "--precision",
        "fp32",
    ]
    assert cli.main(["train", "wsj", "--row", "rotation", *common, "--steps", "3", "--batch", "4"]) == 0
    name = "wsj_steps=3_batch=4_precision=fp32_hidden=4_layers=1"
    capsys.readouterr()
    assert cli.main(["table", name, "--out", str(tmp_path / "r")]) == 0
    printed = capsys.readouterr().out
    assert "| rotation | 1 | " in printed
    assert " | 6.8 | " in printed
    for wrong, code, message in (
        (["features", str(tmp_path / "r"), str(file)], 1, "neither a manifest.tsv nor a folder with a wav.scp"),
        (["train", "wsj", *common, "--weight-drop", "2"], 2, "weight_drop is a drop probability"),
        (["train", "wsj", *common, "--precision", "bf16"], 2, "precision must be one of 'fp16', 'fp32'"),
        (["train", "wsj", *common, "--held-out", "99"], 1, "held_out must be at least 1 and less than the"),
        (["train", "an4", *common], 1, "wsj.pt has no features of test, train; it has test_eval92, train_si284"),
        (["train", "wsj", *common, "--batch", "4", "--compile"], 1, "--compile has no effect on speech recognition"),
        (["train", "wsj", *common], 1, "there are 12 training utterances, fewer than a batch of 32"),
    ):
        assert cli.main(wrong) == code
        assert message in said(capsys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_drop": 1.0}, "p is a drop probability"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"test_every": 0}, "test_every must be at least 1"),
        ({"alphabet": "AA"}, "alphabet must have characters, each of them once"),
    ],
)
def test_configs_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_table_from_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"none": [9.0, 9.2, 9.1], "locked keep 0.7": [7.1, 7.2, 7.3], "rotation": [6.0, 6.3, 6.1]}
    for row, values in scores.items():
        for seed, value in enumerate(values):
            found = {c.row: c for c in TABLES["an4"]()}[row].replace(seed=seed)
            heard = [{"name": "u1", "said": "YES", "heard": "YET" if row == "none" else ""}]
            measured = {"edit_distance": value, "cer": 4 * value, "transcripts": heard, "epochs": 80, "device": "a GPU"}
            measured |= {"train_utterances": 900, "test_utterances": 130, "skipped": {"train": {"empty": 2}}}
            results.write_record(results.record_path(tmp_path, found), found, measured)
    assert cli.main(["table", "an4", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| none | 3 | 9.10 ± 0.10 | 9.1 | 36.40 ± 0.40 | – | – |"
    assert lines[3].startswith("| locked keep 0.7 | 3 | 7.20 ± 0.10 | 7.3 | 28.80 ± 0.40 | < 0.001 | – |")
    assert lines[4].startswith("| rotation | 3 | 6.13 ± 0.15 | 6.8 | 24.53 ± 0.61 | < 0.001 | 0.00")
    assert lines[6].startswith("80 epochs on 900 utterances; ")
    assert lines[6].endswith(
        "130 utterances; 2 were left out. Mean ± standard deviation over runs; 9 runs in all, on a GPU. RotationOut "
        "has p = 0.1, and the keep rates of other rows are 1 − p: rows may differ in strength."
    )
    assert "WSJ" in lines[8]
    assert lines[10].startswith("Rotation is ahead of no noise (−2.97 edits, p-value < 0.001) and locked keep 0.7 (")
    assert lines[12:] == ["- u1, YES — heard: YET (none), (nothing) (locked keep 0.7; rotation)"]
    assert cli.main(["table", "an4_strength", "--out", str(tmp_path)]) == 1
    assert "there are no records of an4_strength in" in capsys.readouterr().err


WITHOUT_TORCHMETRICS = """
import sys
from rotationout import cli
from rotationout.experiments.speech import recognition

recognition.score = lambda heard, said: {"distance": float(len(heard)), "cer": 0.0}  # it takes seconds to import
sys.exit(cli.main(sys.argv[1:]))
"""


def test_two_processes_hear_what_one_hears(tmp_path: Path) -> None:
    """Each learns from half of every batch, and listens to half of the test utterances."""
    torch.manual_seed(0)
    features.save(dataclasses.replace(made(21), splits=["train"] * 12 + ["test"] * 9), tmp_path / "features.pt")
    command = ["train", "an4", "--data", str(tmp_path / "features.pt"), "--device", "cpu", "--learning-rate", "0.01"]
    command += [
        "--hidden",
        "4",
        "--layers",
        "1",
        "--steps",
        "6",
        "--batch",
        "4",
        "--milestones",
        "4",
        "--precision",
        "fp32",
    ]
    script = tmp_path / "run.py"
    script.write_text(WITHOUT_TORCHMETRICS)
    torchrun(str(script), *command, "--out", str(tmp_path / "both"), "--checkpoints", str(tmp_path / "c"))
    assert cli.main([*command, "--out", str(tmp_path / "alone"), "--checkpoints", str(tmp_path / "c")]) == 0
    both, alone = (json.loads(next((tmp_path / name).rglob("*.json")).read_text()) for name in ("both", "alone"))
    assert (both["processes"], alone["processes"]) == (2, 1)
    assert both["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
    assert both["transcripts"] == alone["transcripts"]
    assert both["edit_distance"] == 9, "all were scored"
