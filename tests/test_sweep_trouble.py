"""What can be in the way of a sweep: folders, checkpoints that do not fit, records that come to be meanwhile."""

import copy
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import SOURCE, said
from tests.test_run import Plane, rows
from tests.test_run import plane as plane  # a fixture

from rotationout import cli
from rotationout.cli import loading
from rotationout.experiments import cifar, job, results, sweep
from rotationout.experiments.config import Config
from rotationout.experiments.images import files
from rotationout.experiments.run import Run
from rotationout.experiments.speech import features


def make(config: Config) -> Run:
    return Plane(config, torch.randn(20, 4), torch.device("cpu"))


READERS: dict[str, Callable[[Path], object]] = {
    "run.pt": lambda path: results.load_checkpoint(path, rows()[0]),
    "val.pt": lambda path: files.open_split(path.parent, "val"),
    "features.pt": features.load,
    "cifar-100-python/test": lambda path: cifar.load(path.parent, "test"),
    "inputs.npy": lambda path: loading.batches_of(str(path), 2, 2),
    "inputs.pt": lambda path: loading.batches_of(str(path), 2, 2),
}


@pytest.mark.parametrize("option", ["--out", "--checkpoints"])
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(
    option: str, plane: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("it was too late"))
    (tmp_path / "file").touch()
    assert cli.main(["train", "plane", *plane, option, str(tmp_path / "file" / "deep")]) == 1
    assert "this must be a folder, not a file" in said(capsys)
    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    assert cli.main(["train", "plane", *plane, option, str(tmp_path / "kept")]) == 1
    assert "Permission denied" in said(capsys)


def test_a_sweep_that_cannot_begin_leaves_no_folders(tmp_path: Path) -> None:
    def fails(config: Config) -> Run:
        raise FileNotFoundError("no data")

    (tmp_path / "kept").mkdir()
    places = {"folder": tmp_path / "r", "checkpoints": tmp_path / "kept" / "c"}
    with pytest.raises(FileNotFoundError, match="no data"):
        sweep.sweep(rows(), fails, **places)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_a_checkpoint_is_written_before_a_run_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To close a run may take longer than a machine that is being shut down leaves."""

    def closes(self: job.Job) -> None:
        assert self.checkpoint.exists()
        raise OSError("workers do not end")

    monkeypatch.setattr(job.Job, "close", closes)
    monkeypatch.setattr(Run, "finished", False)
    monkeypatch.setattr(sweep.processes, "any_of", lambda *flags: (True, False, False))  # time is up after a step
    with pytest.raises(OSError, match="workers do not end"):
        sweep.sweep(rows()[:1], make, folder=tmp_path / "r", checkpoints=tmp_path / "c")
    assert [path.suffix for path in (tmp_path / "c").rglob("*.*")] == [".pt"]


def test_what_could_not_be_kept_is_not_said_to_be(
    plane: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert cli.main(["train", "plane", *plane, "--minutes", "0"]) == 3
    shown = said(capsys)
    assert "no checkpoint at step 1: [Errno 28] No space left on device" in shown
    assert "are kept in" not in shown


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow beyond a few bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also where torch only says that it could not write all bytes."""
    done = job.Job(rows()[0], make, tmp_path / "c")
    while not done.run.finished:
        done.advance()
    with full_disk():
        trouble = done.save()
        with pytest.raises(OSError, match="File too large"):
            done.finish(tmp_path / "r")
    assert "no checkpoint at step 13: is the disk full? " in trouble
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    done.finish(tmp_path / "r")
    assert results.read_records(tmp_path / "r", "plane")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_goes_on_if_its_scalars_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class Watched(Plane):
        def test(self) -> dict[str, float]:
            shutil.rmtree(tmp_path / "t", ignore_errors=True)
            time.sleep(0.01)  # a thread writes
            return super().test()

    out = io.StringIO()
    settings = rows()[0].replace(steps=500)
    places = {"folder": tmp_path / "r", "checkpoints": tmp_path / "c", "tensorboard": tmp_path / "t"}
    assert (
        sweep.sweep([settings], lambda c: Watched(c, torch.randn(20, 4), torch.device("cpu")), **places, out=out) == []
    )
    assert "plane, none, seed 0: no more scalars from step" in out.getvalue()
    assert results.read_records(tmp_path / "r", "plane")


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "'weight'": lambda content: content["state"]["network"].popitem(),
    "'shuffler'": lambda content: content["state"].pop("shuffler"),
    "'machines'": lambda content: content["history"].clear(),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_checkpoint_that_does_not_fit_is_told(name: str, plane: list[str], tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["train", "plane", *plane, "--minutes", "0"]) == 3
    (path,) = (tmp_path / "c").rglob("*.pt")
    content = copy.deepcopy(torch.load(path, weights_only=True))
    SPOILT[name](content)
    torch.save(content, path)
    capsys.readouterr()
    assert cli.main(["train", "plane", *plane]) == 1
    assert "_seed0.pt is damaged, or from another version of this package, and does not fit the run (" in said(capsys)
    assert path.exists()


def test_a_checkpoint_that_a_full_gpu_has_no_room_for_is_not_said_to_be_damaged(
    plane: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert cli.main(["train", "plane", *plane, "--minutes", "0"]) == 3
    monkeypatch.setattr(Plane, "restore", full)
    capsys.readouterr()
    assert cli.main(["train", "plane", *plane]) == 1
    assert said(capsys) == "rotationout: there is not enough memory: CUDA out of memory. Tried to allocate 2.00 GiB"


UNREADABLE = Path("/proc/self/mem")  # there, but what is at its beginning cannot be read


@pytest.mark.skipif(not UNREADABLE.exists(), reason="needs a file that cannot be read, whoever runs the tests")
@pytest.mark.parametrize("read", READERS)
def test_a_file_that_cannot_be_read_is_not_said_to_be_damaged(read: str, tmp_path: Path) -> None:
    """It would be deleted, or made again."""
    path = tmp_path / read
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(UNREADABLE)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        READERS[read](path)


def test_a_checkpoint_that_the_memory_has_no_room_for_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    size = Path("/proc/self/statm")
    if not size.exists():
        pytest.skip("reads how much memory there is in /proc")
    first = job.Job(rows()[0], make, tmp_path)
    first.advance()
    large = {**first.run.state(), "large": torch.zeros(2**29, dtype=torch.uint8)}
    results.save_checkpoint(first.checkpoint, rows()[0], large, first.history)
    del large
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(size.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
    try:
        with pytest.raises((MemoryError, RuntimeError), match="can't allocate memory"):
            results.load_checkpoint(first.checkpoint, rows()[0])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    first.checkpoint.unlink()


def test_a_run_with_a_long_name_is_recorded(tmp_path: Path) -> None:
    """Temporary names must not be longer than names may be: this would be found out after the work."""
    long = rows()[0].replace(row="a" * 240)
    first = job.Job(long, make, tmp_path / "c")
    first.advance()
    assert first.save() == ""
    assert sweep.sweep([long], make, folder=tmp_path / "r", checkpoints=tmp_path / "c") == []
    assert [record["row"] for record in results.read_records(tmp_path / "r", "plane")] == [long.row]


def test_a_record_is_on_the_disk_before_its_checkpoint_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = job.Job(rows()[0], make, tmp_path / "c")
    while not done.run.finished:
        done.advance()
    sync, seen = os.fsync, []

    def watched(number: int) -> None:
        sync(number)
        written = Path(os.readlink(f"/proc/self/fd/{number}"))
        seen.append((written.parent, json.loads(written.read_text())["row"], done.checkpoint.exists()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("reads the names of open files in /proc")
    monkeypatch.setattr(os, "fsync", watched)
    done.finish(tmp_path / "r")
    assert seen == [(tmp_path / "r" / "plane", "none", True)]
    assert not done.checkpoint.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from rotationout.experiments.results import write_whole

def write(temporary):
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

write_whole(Path(sys.argv[1]), write)
"""


def test_what_killed_processes_leave_goes_with_the_checkpoint(tmp_path: Path) -> None:
    first, second = (job.Job(config, make, tmp_path / "c") for config in rows())
    for each in (first, second):
        each.advance()
        assert each.save() == ""
        script = [sys.executable, "-c", KILLED, str(each.checkpoint)]
        assert subprocess.run(script, env={**os.environ, "PYTHONPATH": SOURCE}).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "c" / "plane").iterdir())) == 4
    while not first.run.finished:
        first.advance()
    first.finish(tmp_path / "r")
    left = sorted(path.name for path in (tmp_path / "c" / "plane").iterdir())
    assert len(left) == 2, "those of the other run"
    assert all("rotation_seed0.pt" in name for name in left)


def test_an_error_is_not_hidden_by_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """Such a run has no order of its data yet, and nothing to save."""
    first, second = rows()

    def one(config: Config) -> Run:
        if config == second:
            raise ValueError("it cannot be made")
        return make(config)

    with pytest.raises(ValueError, match="it cannot be made"):
        sweep.sweep([first, second], one, folder=tmp_path / "r", checkpoints=tmp_path / "c", together=2)
    assert not list((tmp_path / "c").rglob("*.pt"))


def test_a_record_names_its_commit_without_touching_the_repository(tmp_path: Path) -> None:
    """Git's status would refresh the index, under a lock on which someone's commit fails."""
    file = tmp_path / "__init__.py"
    file.write_text("")
    who = ["-c", "user.name=me", "-c", "user.email=me@here"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    os.utime(file, (1, 1))  # the index has another time
    index = (tmp_path / ".git" / "index").read_bytes()
    assert re.fullmatch("[0-9a-f]{40,}", results._commit(tmp_path))
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_what_another_sweep_has_recorded_is_not_begun(tmp_path: Path, capsys: Any) -> None:
    first, second = rows()[:2]
    begun: list[str] = []

    def meanwhile(config: Config) -> Run:
        begun.append(config.row)
        results.write_record(results.record_path(tmp_path / "r", second), second, {"last_error": 0.5})
        return make(config)

    assert sweep.sweep([first, second], meanwhile, folder=tmp_path / "r", checkpoints=tmp_path / "c") == []
    assert begun == [first.row]
    assert f"{second.row}, seed 0: has a record by now" in capsys.readouterr().err
    assert results.read_record(results.record_path(tmp_path / "r", second))["last_error"] == 0.5


def test_what_is_beside_another_sweeps_record_is_left_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plane, "files", {".found": b"mine"})
    late = job.Job(rows()[0], make, tmp_path / "c")
    while not late.run.finished:
        late.advance()
    path = results.record_path(tmp_path / "r", rows()[0])
    results.write_beside(path, ".found", b"theirs")
    path.write_text("theirs")
    with pytest.raises(FileExistsError, match="exists already, written by another process"):
        late.finish(tmp_path / "r")
    assert path.with_suffix(".found").read_bytes() == b"theirs"
    assert late.checkpoint.exists()


def test_seeds_and_rows_that_are_given_twice_are_one(plane: list[str], capsys: Any) -> None:
    assert cli.main(["sweep", "plane", "--seeds", "0,0-1", "--row", "none", "--row", "none", *plane, "--json"]) == 0
    shown = capsys.readouterr()
    assert [record["seed"] for record in json.loads(shown.out)] == [0, 1]
    assert "have a record already" not in shown.err


@pytest.mark.parametrize(("name", "value"), [("row", None), ("seed", "a"), ("config", [])])
def test_records_whose_names_are_none_are_refused(name: str, value: object, tmp_path: Path) -> None:
    record = {"row": "none", "seed": 0, "config": {}}
    (tmp_path / "plane").mkdir()
    for place, content in enumerate((record, {**record, name: value})):
        (tmp_path / "plane" / f"{place}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"1\.json is not the record of a run: it must have a row, a seed"):
        results.read_records(tmp_path, "plane")


def test_hidden_files_beside_records_are_left_alone(tmp_path: Path) -> None:
    results.write_record(results.record_path(tmp_path, rows()[0]), rows()[0], {})
    (tmp_path / "plane" / "._none_seed0.json").write_bytes(b"\x00\x05\x16\x07")  # as macOS copies
    assert [record["row"] for record in results.read_records(tmp_path, "plane")] == ["none"]
