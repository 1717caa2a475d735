"""Sweeps shared out to several processes: every run once, interrupts, failures, and what the command makes of them."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rotationout import cli
from rotationout.experiments import results, workers
from rotationout.experiments.config import Config
from rotationout.experiments.run import Run
from rotationout.experiments.sweep import sweep
from rotationout.experiments.workers import Share, share_out

TROUBLE = {"wrong": ValueError("it cannot be made"), "lost": FloatingPointError("its loss is nan")}


class Slope(Run):
    """Fits y = 2·x; it says in a file which process makes it, and rows named in `TROUBLE` go wrong."""

    steps_per_epoch = 10

    def __init__(self, notes: Path, config: Config, device: torch.device) -> None:
        if config.row == "crash":
            os._exit(7)
        if config.row in TROUBLE:
            raise TROUBLE[config.row]
        super().__init__(config, device)
        (notes / f"{config.row}-{os.getpid()}").touch()

    def build_network(self) -> nn.Module:
        return nn.Linear(1, 1)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), self.rate)

    def begin_epoch(self) -> None:
        self.x = torch.rand(40, 1, generator=self.shuffler)

    def take_batch(self, place: int) -> None:
        self.inputs = self.x[4 * place : 4 * place + 4]

    def batch_loss(self) -> Tensor:
        if self.config.steps > 1000:
            time.sleep(1e-3)
        loss: Tensor = (self.network(self.inputs) - 2 * self.inputs).square().mean()
        return loss

    def test(self) -> dict[str, float]:
        return {"slope": self.network.weight.item()}

    @property
    def result(self) -> dict[str, float]:
        return {"slope": self.curves["slope"][-1]}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "x": self.x}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.x = state["x"]


def maker(notes: Path, device: torch.device) -> Callable[[Config], Run]:
    return lambda config: Slope(notes, config, device)


def work(folder: Path, *rows: str, steps: int = 20, **options: Any) -> Share:
    configs = [
        Config(recipe="slope", row=row, steps=steps, learning_rate=0.5, precision="fp32", seed=seed)
        for seed, row in enumerate(rows)
    ]
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    return Share(configs, partial(maker, notes), "cpu", folder / "records", folder / "kept", **options)


def makers(folder: Path) -> dict[str, str]:
    """The process that made each run; one that was made twice fails."""
    names = [path.name.rsplit("-", 1) for path in (folder / "notes").iterdir()]
    assert len({row for row, _ in names}) == len(names)
    return dict(names)


def test_shares_hold_every_run_once() -> None:
    whole = work_of(7)
    for count in (1, 2, 3, 7, 9):
        parts = whole.split(count)
        assert sorted(row for part in parts for row in part.configs) == list(range(7))
        assert len(parts) == min(count, 7)
        assert max(len(part.configs) for part in parts) - min(len(part.configs) for part in parts) <= 1
    assert parts[1].name == "process 2 of 7"
    assert work_of(0).split(3) == []


def work_of(count: int) -> Share:
    return Share(list(range(count)), maker, None, Path(), Path())  # type: ignore[arg-type]


def test_two_processes_do_what_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"row {name}" for name in "abcde"]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder in (alone, shared):
        folder.mkdir()
    one = work(alone, *rows)
    sweep(one.configs, one.maker(torch.device("cpu")), folder=one.folder, checkpoints=one.checkpoints, together=2)
    both = work(shared, *rows, together=2)
    first = work(shared, rows[0])
    sweep(first.configs, first.maker(torch.device("cpu")), folder=first.folder, checkpoints=first.checkpoints)
    capsys.readouterr()
    assert share_out(both, 2) == []
    expected, found = (results.read_records(folder / "records", "slope") for folder in (alone, shared))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine["row"], mine["train_loss"], mine["slope"]) == (
            theirs["row"],
            theirs["train_loss"],
            theirs["slope"],
        )
        assert mine["together"] == (1 if mine["row"] == rows[0] else 4), "two processes with two runs each"
    made = makers(shared)
    assert made[rows[1]] == made[rows[3]] != made[rows[2]] == made[rows[4]]
    said = capsys.readouterr().err
    assert "1 of 5 runs have a record already" in said
    assert "process 2 of 2: slope, row c, seed 2: slope " in said
    assert not list((shared / "kept").rglob("*.pt"))


def test_a_process_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One cannot make its run, one crashes, and one ends well."""
    with pytest.raises(ChildProcessError) as raised:
        share_out(work(tmp_path, "wrong", "crash", "good"), 3)
    assert str(raised.value) == "process 1 of 3: it cannot be made; process 2 of 3: ended with exit code 7"
    assert "process 2 of 3: ended with exit code 7\n" in capsys.readouterr().err, "when it happens, not only at the end"
    assert [record["row"] for record in results.read_records(tmp_path / "records", "slope")] == ["good"]


def test_failures_of_one_kind_are_of_that_kind(tmp_path: Path) -> None:
    children = [type("Child", (), {"share": share, "error": TROUBLE["lost"]})() for share in work_of(2).split(2)]
    with pytest.raises(FloatingPointError, match="process 1 of 2: its loss is nan; process 2 of 2: its loss"):
        workers._raise_errors(children)
    workers._raise_errors([])


def test_an_interrupt_is_passed_on_and_all_go_on_later(tmp_path: Path) -> None:
    """Both write a checkpoint; what they do then is what they would have done."""
    long, ended = work(tmp_path, "a", "b", steps=100_000), threading.Event()

    def interrupt() -> None:
        deadline = time.monotonic() + 90
        while len(list((tmp_path / "notes").iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        if not ended.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            share_out(long, 2)
    finally:
        ended.set()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    kept = [torch.load(path, weights_only=True)["state"]["step"] for path in (tmp_path / "kept").rglob("*.pt")]
    assert len(kept) == 2
    assert all(0 < step < 100_000 for step in kept)
    assert share_out(Share(**{**vars(long), "deadline": 0.0}), 2) == list(long.configs), "no time is left"


PARENT = """
import sys
from pathlib import Path
from tests.test_workers import work
from rotationout.experiments.workers import share_out

if __name__ == "__main__":
    share_out(work(Path(sys.argv[1]), "a", "b", steps=100_000), 2)
"""


def test_processes_stop_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Even if that was killed and could not tell them."""
    (tmp_path / "parent.py").write_text(PARENT)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(tmp_path)], env=environment)
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("notes/*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    running = [int(number) for number in makers(tmp_path).values()]
    assert len(running) == 2
    while any(Path(f"/proc/{number}/exe").exists() for number in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list((tmp_path / "kept").rglob("*.pt"))) == 2, "they have written checkpoints"


def test_the_command_shares_out_what_it_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    asked: list[Any] = []

    def fake(share: Share, count: int) -> list[Config]:
        asked.append((pickle.loads(pickle.dumps(share)), count))
        return list(share.configs)

    monkeypatch.setattr(workers, "share_out", fake)
    words = ["sweep", "an4", "--row", "none", "--row", "rotation", "--data", str(tmp_path), "--out", str(tmp_path)]
    assert cli.main([*words, "--together", "3", "--processes", "4", "--minutes", "2", "--steps", "7", "--json"]) == 3
    ((share, count),) = asked
    assert count == 4
    assert [(c.row, c.seed, c.steps) for c in share.configs[:3]] == [("none", 0, 7), ("rotation", 0, 7), ("none", 1, 7)]
    assert (share.together, share.device, share.folder) == (3, None, tmp_path)
    assert 0 < share.deadline - time.time() <= 120
    assert callable(share.maker(torch.device("cpu")))
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "6 runs are not finished" in shown.err
    assert cli.main([*words, "--processes", "0"]) == 2


def test_misuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        share_out(work(tmp_path, "a"), 0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ValueError, match="processes must be 1 under torchrun"):
        share_out(work(tmp_path, "a"), 2)
