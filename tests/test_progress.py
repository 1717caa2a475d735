"""What is seen of runs while they are at work: bars, lines, TensorBoard's scalars."""

import io
import os
import re
import signal
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
from tests.test_run import Plane, rows
from tests.training_runs import finish
from torch import Tensor

from rotationout import cli
from rotationout.experiments import job, progress, results, sweep
from rotationout.experiments.config import Config
from rotationout.experiments.run import Run
from rotationout.experiments.sweep import sweep as run_all


def new(config: object) -> Plane:
    return Plane(config, torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.device("cpu"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_closed_stderr_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)  # as after 2>&-
    assert run_all(rows(), new, folder=tmp_path / "a", checkpoints=tmp_path / "c") == []
    assert len(list((tmp_path / "a").rglob("*.json"))) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_log_on_a_full_disk_stops_no_run(tmp_path: Path) -> None:
    out = open("/dev/full", "w")  # noqa: SIM115 - closing it fails
    assert run_all(rows(), new, folder=tmp_path / "a", checkpoints=tmp_path / "c", out=out) == []
    with pytest.raises(OSError, match="No space left"):
        out.close()
    assert len(list((tmp_path / "a").rglob("*.json"))) == 2


def test_a_log_has_whole_lines_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    run_all(rows(), new, folder=tmp_path / "a", checkpoints=tmp_path / "c", out=out)
    first, *rest = out.getvalue().splitlines()
    assert re.fullmatch(r"\[\d+ s\] none, seed 0: 0/13 \| 1 waiting", first), "before the first step, which may be slow"
    assert len(rest) == 2, "of runs this short it then says what came out, no more"
    monkeypatch.setattr(progress.Lines, "seconds", 0.0)
    out = io.StringIO()
    run_all(rows(), new, folder=tmp_path / "b", checkpoints=tmp_path / "c", out=out)
    text = out.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    assert "s] none, seed 0: 1/13" in text
    assert not [line for line in text.splitlines() if line.rstrip().endswith("s]")], "no line about no runs"
    (line,) = [line for line in text.splitlines() if "none, seed 0: 10/13" in line]
    assert "loss " in line
    assert "error " in line
    assert line.endswith("0.0 min left | 1 waiting")


def test_a_terminal_has_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    for name, value in {"COLUMNS": "140", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(progress.Bars, "seconds", 0.0)
    out = Terminal()
    settings = [rows()[0].replace(row=row, steps=6) for row in ("none [of/all]", "next")]
    run_all(settings, new, folder=tmp_path, checkpoints=tmp_path, out=out)
    text = out.getvalue()
    assert "none [of/all], seed 0 ━" in text, "brackets are no markup here"
    assert re.search(r"━ +5/6 loss \d\.\d+, error .* min left \(and 1 waiting\)", text)
    assert "plane, none [of/all], seed 0: last_error " in text
    assert "\x1b[?25h" in text.rpartition("next")[2], "the cursor is back"


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_runs_that_have_ended_leave_the_memory(kind: type[io.StringIO], tmp_path: Path) -> None:
    """Those that went well and those that did not: on a GPU the next run needs their room."""
    pytest.importorskip("rich")
    alive: weakref.WeakSet[Run] = weakref.WeakSet()
    seen: list[set[str]] = []

    class Lost(Plane):
        def batch_loss(self) -> Tensor:
            return super().batch_loss() * (float("nan") if "lost" in self.config.row else 1.0)

    def one(config: Config) -> Run:
        seen.append({run.config.row for run in alive})
        run = Lost(config, torch.randn(20, 4), torch.device("cpu"))
        run.cycle = run  # as CUDA graphs are in reference cycles
        alive.add(run)
        return run

    settings = [rows()[0].replace(row=row) for row in ("lost", "good", "lost too", "last")]
    with pytest.raises(FloatingPointError, match=r"row 'lost', .*; the loss of plane, row 'lost too', "):
        run_all(settings, one, folder=tmp_path, checkpoints=tmp_path, out=kind())
    assert seen == [set()] * 4


def test_a_process_that_is_not_the_first_is_silent() -> None:
    out = io.StringIO()
    with progress.shown(out, silent=True) as display:
        display.message("not to be seen")
        display.update([], 3)
    assert out.getvalue() == ""


def test_time_left_is_that_of_the_steps_since_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])
    first = job.Job(rows()[0], new, tmp_path)
    assert first.seconds_left is None
    for _ in range(3):
        first.advance()
    now[0] += 6.0
    assert first.seconds_left == pytest.approx(2.0 * 10)
    assert first.save() == ""
    resumed = job.Job(rows()[0], new, tmp_path)
    resumed.advance()
    now[0] += 4.0
    assert resumed.seconds_left == pytest.approx(4.0 * 9)
    assert resumed.seconds == pytest.approx(10.0)


def test_runs_share_the_time_of_the_device_while_they_are_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one ends before the other, and if they are stopped and resumed."""
    now = [100.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])

    class Slow(Plane):
        def take_batch(self, place: int) -> None:
            now[0] += 1.0  # a second for every step
            super().take_batch(place)

    def slow(config: object) -> Slow:
        return Slow(config, torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.device("cpu"))

    short, long = (rows()[0].replace(row=row, steps=steps) for row, steps in (("short", 4), ("long", 10)))
    places = {"folder": tmp_path / "r", "checkpoints": tmp_path / "c"}
    assert run_all([short, long], slow, **places, together=2, limit_seconds=2.5) == [short, long]
    now[0] += 1000.0  # away
    assert run_all([short, long], slow, **places, together=2) == []
    found = {run["row"]: run for run in results.read_records(tmp_path / "r", "plane")}
    assert found["short"]["seconds"] == pytest.approx(7, abs=1)
    assert found["short"]["device_seconds"] == pytest.approx(3.5, abs=0.5)
    assert found["long"]["seconds"] == pytest.approx(14)
    assert found["long"]["device_seconds"] == pytest.approx(10, abs=0.5), "half of 8 seconds, and 6 alone"


def test_checkpoints_are_written_now_and_then_and_not_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])
    clock = sweep._Clock(float("inf"), [])
    saved = []
    for _ in range(200):  # seconds
        now[0] += 1
        clock.tick()
        saved += [now[0] - 100] if clock.should_save else []
    assert saved == [46, 92, 138, 184]


def test_a_run_names_each_machine_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that it was on before another."""
    for commit in ("first", "first", "second", "first"):
        monkeypatch.setenv("ROTATIONOUT_COMMIT", commit)
        each = job.Job(rows()[0], new, tmp_path)
        each.advance()
        assert each.save() == ""
    assert [machine["commit"] for machine in each.history["machines"]] == ["first", "second"]


class Writer:
    """Stands for TensorBoard's."""

    written: dict[str, list[tuple[str, float, int]]] = {}  # noqa: RUF012
    closed: list[str] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert step >= self.purge_step
        self.written.setdefault(self.folder, []).append((name, value, step))

    def close(self) -> None:
        self.closed.append(self.folder)


def test_scalars_are_written_at_the_end_of_every_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run that was stopped between; and every writer is closed."""
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.written, Writer.closed = {}, []
    places = {"folder": tmp_path / "r", "checkpoints": tmp_path / "c", "tensorboard": tmp_path / "t"}
    settings = rows()[1].replace(milestones=(5,))
    advance, calls = Run.advance, []

    def interrupted(self: Run) -> None:
        calls.append(1)
        if len(calls) == 7:
            signal.raise_signal(signal.SIGINT)  # it waits for the end of the step
        advance(self)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all([settings], new, **places)
    run_all([settings], new, **places)
    whole = new(settings)
    finish(whole)
    name = str(tmp_path / "t" / "plane" / "rotation_seed0")
    assert Writer.closed == [name, name]
    written = Writer.written[name]
    steps = [5, 10, 13]
    for curve, values in {"train_loss": whole.losses, **whole.curves}.items():
        assert [(value, step) for found, value, step in written if found == curve] == list(
            zip(values, steps, strict=True)
        )
    assert [value for found, value, _ in written if found == "learning_rate"] == pytest.approx([0.05, 0.005, 0.005])
    assert [value for found, value, _ in written if found == "p"] == pytest.approx([0.2, 0.2, 0.2])


def test_an_interrupt_is_answered_before_the_step_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, advance, heard = io.StringIO(), Run.advance, []

    def interrupted(self: Run) -> None:
        signal.raise_signal(signal.SIGINT)
        heard.append(out.getvalue().splitlines()[-1])
        advance(self)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all([rows()[0]], new, folder=tmp_path / "r", checkpoints=tmp_path / "c", out=out)
    assert heard == ["stopping after this step, with a checkpoint; interrupt again to stop at once"]
    assert out.getvalue().endswith(f"1 unfinished run is kept in {tmp_path / 'c'}\n")


def test_an_interrupt_that_also_ends_the_reader_of_the_output_leaves_the_step_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``rotationout sweep … 2>&1 | tee log``: Ctrl-C reaches both processes."""
    reader, writer = os.pipe()
    advance = Run.advance

    def interrupted(self: Run) -> None:
        os.close(reader)
        signal.raise_signal(signal.SIGINT)
        advance(self)

    monkeypatch.setattr(Run, "advance", interrupted)
    out = io.TextIOWrapper(io.FileIO(writer, "w"), encoding="utf-8", write_through=True)
    with out, pytest.raises((KeyboardInterrupt, BrokenPipeError)):
        run_all([rows()[0]], new, folder=tmp_path / "r", checkpoints=tmp_path / "c", out=out)
    (kept,) = (tmp_path / "c").rglob("*.pt")
    assert results.load_checkpoint(kept, rows()[0])[0]["step"] == 1


def test_a_second_interrupt_stops_at_once_also_while_the_first_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(io.StringIO):
        """A terminal that has been told to wait, by Ctrl-S for instance."""

        def write(self, text: str) -> int:
            if text.startswith("stopping"):
                answered.append(text)
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    answered: list[str] = []
    advance, done = Run.advance, []

    def interrupted(self: Run) -> None:
        if self.step == 1:
            signal.raise_signal(signal.SIGINT)
        advance(self)
        done.append(self.step)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all([rows()[0]], new, folder=tmp_path / "r", checkpoints=tmp_path / "c", out=Stuck())
    assert len(answered) == 1
    assert done == [1], "not after the second step"


@pytest.mark.parametrize("stop", [0, 5, 7])
def test_tensorboard_reads_what_is_written(stop: int, tmp_path: Path) -> None:
    """Also of a run that goes on from its checkpoint, at the end of an epoch or within one."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    places = {"checkpoints": tmp_path / "c", "tensorboard": tmp_path / "t"}
    for last in (stop, 10) if stop else ():  # the second goes further, but leaves no checkpoint
        first = job.Job(rows()[0], new, **places)
        while first.run.step < last:
            first.advance()
        first.close()
        assert last > stop or first.save() == ""
    run_all([rows()[0]], new, folder=tmp_path / "r", **places)
    events = EventAccumulator(str(tmp_path / "t" / "plane" / "none_seed0"))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [5, 10, 13]


def test_a_score_is_written_where_it_was_tested_and_not_again(tmp_path: Path) -> None:
    """Some tasks test only now and then."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Seldom(Plane):
        def test(self) -> dict[str, float]:
            return super().test() if self.step == 5 or self.finished else {}

    def seldom(config: object) -> Seldom:
        return Seldom(config, torch.randn(20, 4), torch.device("cpu"))

    places = {"checkpoints": tmp_path / "c", "tensorboard": tmp_path / "t"}
    run_all([rows()[0].replace(steps=20)], seldom, folder=tmp_path / "r", **places)
    read = EventAccumulator(str(tmp_path / "t" / "plane" / "none_seed0")).Reload()
    assert [event.step for event in read.Scalars("train_loss")] == [5, 10, 15, 20]
    assert [event.step for event in read.Scalars("error")] == [5, 20]


def test_without_tensorboard_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"need tensorboard: pip install 'rotationout\[tensorboard\]'"):
        run_all(rows(), new, folder=tmp_path, checkpoints=tmp_path, tensorboard=tmp_path)
    monkeypatch.setattr(sweep, "sweep", lambda *_, tensorboard, **__: (_ for _ in ()).throw(ModuleNotFoundError("x")))
    command = ["train", "cifar100_resnet110_paper", "--data", str(tmp_path), "--tensorboard", str(tmp_path)]
    assert cli.main([*command, "--device", "cpu"]) == 1
    assert "rotationout: x" in capsys.readouterr().err
