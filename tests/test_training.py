"""The training engine on small networks and random images: data, resuming, records, trouble."""

import json
import math
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.cifar_images import images, write_cifar
from tests.command_line import said
from tests.training_runs import assert_resumes, finish

import rotationout as ro
from rotationout import cli
from rotationout.experiments import cifar, networks, results, sweep
from rotationout.experiments.cifar import Images
from rotationout.experiments.classification import Classification, ClassificationConfig
from rotationout.experiments.job import Job
from rotationout.experiments.run import Run
from rotationout.recipes import cifar100, search

TABLE = "cifar100_resnet110_authors"
TABLES = {**cifar100.TABLES, **search.TABLES}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One block a stage, and one thread, which is faster for it."""
    for name in ("resnet20", "resnet110"):
        monkeypatch.setitem(networks.NETWORKS, name, partial(networks.ResNet, 1))
    monkeypatch.setitem(networks.NETWORKS, "wrn28_10", partial(networks.WideResNet, 1, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Make = Callable[[ClassificationConfig], Classification]


def make(train: Images, test: Images) -> Make:
    """What makes runs on these images, as sweeps take it."""
    return lambda config: Classification(config, (train, test), train.pixels.device)


def config(row: str = "rotation default sigma 0.500", **changes: object) -> ClassificationConfig:
    found = {c.row: c for c in TABLES[TABLE]()}[row]
    return found.replace(**{"steps": 7, "batch": 16, "precision": "fp32", "ramp": 5, "milestones": (4,), **changes})


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ramp": 5}, [0.04, 0.08, 0.12, 0.16, 0.2, 0.2, 0.2]),
        ({"ramp": 0, "fade_out": 4}, [0.2, 0.2, 0.2, 0.2, 0.15, 0.1, 0.05]),
        ({"ramp": 2, "fade_out": 2}, [0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1]),
        ({"ramp": 0}, [0.2] * 7),
    ],
)
def test_p_grows_on_a_ramp_and_fades_out(changes: dict[str, int], expected: list[float]) -> None:
    run = make(images(64), images(20))(config(**changes))
    layer = next(module for module in run.network.modules() if isinstance(module, ro.RotationOut2d))
    rates = []
    while not run.finished:
        rates.append(layer.p)
        run.advance()
    assert rates == pytest.approx(expected)
    assert layer.p == rates[-1], "studies of the trained network need the last noise"


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_every_table_runs(table: str, tmp_path: Path) -> None:
    data = make(images(8), images(4, seed=1))
    small = {"steps": 2, "batch": 4, "precision": "fp32", "held_out": 0, "subset": 0, "studies": ()}
    least = {"ramp": 1, "fade_out": 1, "ghost_batch": 2}
    rows = [
        row.replace(**small, **{name: min(getattr(row, name), most) for name, most in least.items()})
        for row in TABLES[table]()
    ]
    assert sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "kept", together=3) == []
    records = results.read_records(tmp_path, table)
    assert {record["row"] for record in records} == {row.row for row in rows}
    for record in records:
        assert {"recipe", "row", "seed", "steps", "weight_decay", "best_top1", "last10_top1"} <= record.keys()
        assert record["epochs"] == len(record["test_curve"]) == 1
        assert 0 <= record["last10_top1"] <= record["best_top1"] <= 100


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_resumed_run_ends_bit_identical(stop: int, tmp_path: Path) -> None:
    """Stopped inside an epoch, at its end, on the ramp and after it, around a milestone."""
    new = make(images(64), images(20, seed=1))
    assert_resumes(lambda: new(config()), stop, tmp_path)


@pytest.mark.parametrize("row", ["dropout keep 0.8", "rotation plane sigma 0.500"])
def test_a_resumed_transformer_ends_bit_identical(row: str, tmp_path: Path) -> None:
    new, found = make(images(64), images(20, seed=1)), {c.row: c for c in cifar100.vit_rows()}[row]
    settings = found.replace(steps=7, batch=16, subset=0, warmup=3, milestones=(5,), network_options={"width": 12})
    whole, _ = assert_resumes(lambda: new(settings), 3, tmp_path)
    assert isinstance(whole.optimizer, torch.optim.AdamW)
    assert whole.optimizer.param_groups[0]["weight_decay"] == 0.05


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("count", [40, 66])
def test_a_run_is_not_resumed_on_other_images(count: int, tmp_path: Path) -> None:
    """Its order has images that may not exist: on a GPU their numbers would end all runs."""
    first = Job(config(), make(images(64), images(20, seed=1)), tmp_path)
    first.advance()
    assert first.save() == ""
    with pytest.raises(ValueError, match=rf"\(it has seen 64 training images; now there are {count}\)"):
        Job(config(), make(images(count), images(20, seed=1)), tmp_path)
    assert Job(config(), make(images(64), images(20, seed=1)), tmp_path).run.step == 1


@pytest.mark.usefixtures("_small")
def test_a_run_learns() -> None:
    """Two classes, dark and bright images, in bf16."""
    labels = torch.arange(32) % 2
    data = Images((labels * 200).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous(), labels)
    run = make(data, data)(config(steps=16, batch=8, milestones=(), precision="bf16"))
    finish(run)
    assert run.losses[0] > 1.5
    assert run.losses[-1] < 0.3
    assert run.result["best_top1"] == 100


@pytest.mark.usefixtures("_small")
def test_an_interrupt_keeps_everything_and_a_second_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folders = make(images(64), images(20, seed=1)), {"folder": tmp_path / "r", "checkpoints": tmp_path / "c"}
    uninterrupted = {**folders, "folder": tmp_path / "whole", "checkpoints": tmp_path / "d"}
    sweep.sweep([config()], data, **uninterrupted)
    advance, calls = Run.advance, []

    def interrupted(self: Run) -> None:
        calls.append(1)
        advance(self)
        if len(calls) == 4:  # inside a step, by a second Ctrl-C for instance: half of an update may be done
            next(self.network.parameters()).data.zero_()
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([config()], data, **folders)
    assert not results.read_records(tmp_path / "r", TABLE)
    assert [path.suffix for path in (tmp_path / "c" / TABLE).iterdir()] == [".pt"]
    sweep.sweep([config()], data, **folders)
    (resumed,), (whole,) = results.read_records(tmp_path / "r", TABLE), results.read_records(tmp_path / "whole", TABLE)
    assert resumed["test_curve"] == whole["test_curve"]
    assert resumed["train_loss"] == whole["train_loss"]
    assert not list((tmp_path / "c" / TABLE).iterdir())


@pytest.mark.usefixtures("_small")
def test_what_has_a_record_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = results.record_path(tmp_path, config())
    results.write_record(path, config(), {"best_top1": 1.0})
    before = path.read_text()
    data = make(images(64), images(20))
    assert sweep.sweep([config()], data, folder=tmp_path, checkpoints=tmp_path / "c") == []
    assert path.read_text() == before
    assert "1 of 1 runs have a record already" in capsys.readouterr().err
    same = config(kernels="torch" if config().kernels == "fused" else "fused")
    assert sweep.sweep([same], data, folder=tmp_path, checkpoints=tmp_path / "c") == [], "by which kernels is no matter"
    with pytest.raises(ValueError, match="is the record of a run with other settings; move it away"):
        sweep.sweep([config(steps=8)], data, folder=tmp_path, checkpoints=tmp_path / "c")
    path.write_text("{")
    with pytest.raises(ValueError, match="is not the record of a run, or is damaged"):
        sweep.sweep([config()], data, folder=tmp_path, checkpoints=tmp_path / "c")


@pytest.mark.usefixtures("_small")
def test_runs_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    data = make(images(64), images(20, seed=1))
    rows = [config(seed=seed) for seed in (0, 1)] + [config("dropout keep 0.6", ramp=0)]
    for together in (1, 3):
        sweep.sweep(rows, data, folder=tmp_path / str(together), checkpoints=tmp_path / "c", together=together)
    alone, beside = (results.read_records(tmp_path / str(n), TABLE) for n in (1, 3))
    assert [record["train_loss"] for record in alone] == [record["train_loss"] for record in beside]
    assert len({tuple(record["train_loss"]) for record in alone}) == 3


@pytest.mark.usefixtures("_small")
def test_a_record_that_cannot_be_written_does_not_cost_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folders = make(images(64), images(20)), {"folder": tmp_path / "r", "checkpoints": tmp_path / "c"}
    write = results.write_record

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(results, "write_record", refuse)
    with pytest.raises(PermissionError):
        sweep.sweep([config()], data, **folders)
    monkeypatch.setattr(results, "write_record", write)
    monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("it was done already"))
    assert sweep.sweep([config()], data, **folders) == []
    (record,) = results.read_records(tmp_path / "r", TABLE)
    assert record["epochs"] == 2


@pytest.mark.usefixtures("_small")
def test_an_interrupt_waits_for_the_end_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folders = make(images(64), images(20)), {"folder": tmp_path / "r", "checkpoints": tmp_path / "c"}
    advance, done = Run.advance, []

    def interrupted(self: Run) -> None:
        signal.raise_signal(signal.SIGINT)
        advance(self)
        done.append(self.step)

    monkeypatch.setattr(Run, "advance", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep([config()], data, **folders)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is handler
    state, _ = results.load_checkpoint(next((tmp_path / "c" / TABLE).iterdir()), config())
    assert state["step"] == 1


@pytest.mark.usefixtures("_small")
def test_time_can_be_limited(tmp_path: Path) -> None:
    data = make(images(64), images(20))
    rows = [config(seed=seed) for seed in range(3)]
    left = sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c", limit_seconds=0.0)
    assert left == rows
    assert (tmp_path / "c" / TABLE / "rotation-default-sigma-0.500_seed0.pt").exists()


@pytest.mark.usefixtures("_small")
def test_a_full_disk_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    monkeypatch.setattr(sweep, "CHECKPOINT_SECONDS", 0.0)
    data = make(images(64), images(20))
    assert sweep.sweep([config()], data, folder=tmp_path, checkpoints=tmp_path / "c") == []
    assert "no checkpoint at step 1: [Errno 28] No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "c" / TABLE).iterdir()), "nothing half-written stays"
    assert results.read_records(tmp_path, TABLE)


@pytest.mark.usefixtures("_small")
def test_a_loss_that_is_not_a_number_is_reported(tmp_path: Path) -> None:
    """And the other rows go on."""
    data = make(images(64), images(20))
    rows = [config("none", learning_rate=1e30, ramp=0), config()]
    with pytest.raises(FloatingPointError, match=r"row 'none', seed 0 is (nan|inf) at step 4; try"):
        sweep.sweep(rows, data, folder=tmp_path, checkpoints=tmp_path / "c")
    assert [record["row"] for record in results.read_records(tmp_path, TABLE)] == [config().row]
    assert not list((tmp_path / "c").rglob("*.pt"))


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    results.save_checkpoint(path, config(), {}, {})
    with pytest.raises(ValueError, match=r"is the checkpoint of a run with other settings \(weight_decay\)"):
        results.load_checkpoint(path, config(weight_decay=1e-5))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"run\.pt is not a checkpoint of a run, or is damaged"):
        results.load_checkpoint(path, config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 1.0}, "p is a drop probability"),
        ({"precision": "fp8"}, "precision must be one of"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"ramp": -1}, "ramp must not be negative"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, got nan"),
        ({"fade_out": -1}, "fade_out must not be negative"),
        ({"fade_out": 8}, "fade_out must be at most steps = 7, got 8"),
        ({"network": "resnet101"}, "did you mean 'resnet110'"),
        ({"stages": (3, 4)}, "stages are 1, 2 and 3"),
        ({"norm": "layer"}, "norm must be one of"),
        ({"ghost_batch": 1}, "or 2 to batch = 16 examples, got 1"),
        ({"dropout": 1.5}, r"dropout is a drop probability and must be in \[0, 1\), got 1.5"),
        ({"ghost_batch": 17}, "ghost_batch must be 0, for the whole batch, or 2 to batch = 16 examples, got 17"),
        ({"norm": "group", "ghost_batch": 8}, "normalises every example alone: ghost_batch must be 0, got 8"),
    ],
)
def test_configs_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.usefixtures("_small")
def test_what_would_be_ignored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the strength of 'dropout' cannot be changed during a run"):
        make(images(64), images(20))(config("dropout keep 0.9", ramp=5))
    with pytest.raises(ValueError, match="fade_out = 3: the strength of 'dropout' cannot be changed"):
        make(images(64), images(20))(config("dropout keep 0.9", ramp=0, fade_out=3))
    with pytest.raises(ValueError, match="fewer than a batch of 16"):
        make(images(8), images(20))(config())
    with pytest.raises(ValueError, match="together must be at least 1"):
        sweep.sweep([config()], make(images(64), images(20)), folder=tmp_path, checkpoints=tmp_path, together=0)


@pytest.mark.usefixtures("_small")
def test_the_command_runs_a_row_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "COUNTS", {"train": 400, "test": 200})
    for split in ("train", "test"):
        write_cifar(tmp_path, split)
    common = [
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "r"),
        "--checkpoints",
        str(tmp_path / "c"),
        "--device",
        "cpu",
    ]
    changes = ["--steps", "2", "--batch", "16", "--precision", "fp32", "--milestones", "1", "--held-out", "100"]
    row = "dropout keep 0.9"
    assert cli.main(["train", TABLE, "--row", row, "--seed", "3", *common, *changes]) == 0
    (record,) = [json.loads(path.read_text()) for path in (tmp_path / "r").rglob("*.json")]
    assert record["recipe"] == f"{TABLE}_steps=2_batch=16_milestones=1_precision=fp32_held_out=100", (
        "not the recipe's own"
    )
    assert (record["row"], record["seed"], record["steps"]) == (row, 3, 2)
    capsys.readouterr()
    for wrong, message in (
        (["train", "cifar100_resnet11_authors", *common], "did you mean 'cifar100_resnet110_authors'?"),
        (["train", TABLE, "--row", "dropout 0.9", *common], "did you mean 'dropout keep 0.9'?"),
        (["train", TABLE, "--steps", "many", *common], "'--steps': must be INT, for instance 100, got 'many'"),
        (["train", TABLE, "--noise-options", "[1]", *common], "'--noise-options': must be JSON"),
    ):
        assert cli.main(wrong) == 2
        assert message in said(capsys)
    assert cli.main(["rows", TABLE]) == 0
    assert "rotation structured sigma 0.816" in capsys.readouterr().out


def test_tables_come_from_records_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {
        "none": [70.0, 70.2, 70.1],
        "dropout keep 0.8": [71.0, 71.2, 71.4],
        "rotation default sigma 0.500": [72.0, 72.3, 72.1],
        "rotation structured sigma 0.816": [69.0],
    }
    for row, values in scores.items():
        for seed, value in enumerate(values):
            found = {c.row: c for c in TABLES[TABLE]()}[row].replace(seed=seed)
            measured = {"last10_top1": value, "best_top1": value + 0.25, "device": "CPU"}
            results.write_record(results.record_path(tmp_path, found), found, measured)
    assert cli.main(["table", TABLE, "--out", str(tmp_path)]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    lines = {line.split("|")[1].strip(): line for line in shown}
    none, dropout, rotation = (lines[row] for row in list(scores)[:3])
    assert "| 3 | 70.10 ± 0.10 * | 71.93 ± 0.16 | 70.35 ± 0.10 * | 72.12 ± 0.18 | – | – |" in none
    assert "| 3 | 71.20 ± 0.20 * | 73.33 ± 0.27 |" in dropout
    assert "| 72.13 ± 0.15 * | 74.14 ± 0.11 | 72.38 ± 0.15 * | 74.35 ± 0.13 | < 0.001 | 0.004 |" in rotation
    assert "| 1 | 69.00 | 71.83 ± 0.35" not in lines["rotation structured sigma 0.816"], "that form is not the paper's"
    assert cli.main(["table", "cifar100_wrn28_10_paper", "--out", str(tmp_path)]) == 1
    assert "there are no records of cifar100_wrn28_10_paper in" in capsys.readouterr().err
