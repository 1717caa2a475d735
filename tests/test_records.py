"""Files of records: how they are read, where they are written, and what they say about the code."""

import errno
import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.records import write
from tests.test_run import rows

from rotationout.experiments import results


def test_records_are_read_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    """Which is not that of their names. Hidden files are no records."""
    for seed in (10, 2):
        each = rows()[0].replace(seed=seed)
        results.write_record(results.record_path(tmp_path, each), each, {})
    (tmp_path / "plane" / "._none_seed2.json").write_text("[]")
    assert [record["seed"] for record in results.read_records(tmp_path, "plane")] == [2, 10]


def test_a_record_says_which_commit_ran_and_whether_files_were_changed(tmp_path: Path) -> None:
    """Files of the package: others do not matter. A package that git does not track has no commit."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True).stdout

    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git("init")
    assert results._commit(package) == ""
    git("add", ".")
    git("commit", "-m", "all")
    (tmp_path / "notes").write_text("not of the package")
    head = git("rev-parse", "HEAD").strip()
    assert (len(head), results._commit(package)) == (40, head)
    (package / "new.py").write_text("")
    assert results._commit(package) == f"{head}-changed"


def test_benchmarks_record_the_commit_as_runs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the package, wherever they are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "_commit", lambda: "abc-changed")
    monkeypatch.delenv("ROTATIONOUT_COMMIT", raising=False)
    found = [json.loads(write(tmp_path, "nothing", given, {}, "cpu").read_text()) for given in ("", "def")]
    assert [record["commit"] for record in found] == ["abc-changed", "def"]


def test_a_record_is_placed_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network drives; and one that is there already is not replaced."""

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(results.os, "link", refuse)
    path = results.record_path(tmp_path, rows()[0])
    results.write_record(path, rows()[0], {"found": 1})
    with pytest.raises(FileExistsError, match="written by another process; it is left as it is"):
        results.write_record(path, rows()[0], {"found": 2})
    assert json.loads(path.read_text())["found"] == 1
    assert list(path.parent.iterdir()) == [path], "no temporary files are left"
