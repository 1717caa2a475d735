"""What all training runs share, tried on a task of the tests' own; records and checkpoints that are there already."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.cifar_images import images
from tests.command_line import said
from tests.test_training import _small as _small  # a fixture
from tests.test_training import config, make
from tests.training_runs import assert_resumes, finish
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import rotationout as ro
from rotationout import cli
from rotationout.experiments import networks, results, sweep, tasks
from rotationout.experiments.config import Config
from rotationout.experiments.random_stream import RandomStream
from rotationout.experiments.run import Run, _init_momentum
from rotationout.recipes import TABLES
from rotationout.report.page import Table

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, kw_only=True)
class PlaneConfig(Config):
    """Learns a plane through noise, with Adam."""

    inputs: int = 4
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._make_tuples("weights")


class Plane(Run):
    config: PlaneConfig
    steps_per_epoch = 5

    def __init__(self, config: PlaneConfig, data: Tensor, device: torch.device) -> None:
        self.data = data
        super().__init__(config, device)

    def build_network(self) -> nn.Module:
        noise = ro.noise(self.config.noise, self.config.p)
        return nn.Sequential(nn.Linear(self.config.inputs, 8), noise, nn.Linear(8, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        decayed, free = ([p for p in self.network.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
        groups = [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": self.config.weight_decay}]
        return torch.optim.Adam(groups, self.rate, fused=True)

    def begin_epoch(self) -> None:
        self.order = torch.randperm(len(self.data), generator=self.shuffler)

    def take_batch(self, place: int) -> None:
        self.chosen = self.order[place * self.config.batch :][: self.config.batch]

    def batch_loss(self) -> Tensor:
        x = self.data[self.chosen]
        loss: Tensor = (self.network(x) - x.sum(1, keepdim=True)).square().mean()
        return loss

    def test(self) -> dict[str, float]:
        self.network.eval()
        with torch.no_grad():
            error = self.network(self.data) - self.data.sum(1, keepdim=True)
        return {"error": error.square().mean().item(), "worst": error.abs().max().item()}

    @property
    def result(self) -> dict[str, float]:
        return {"last_error": self.curves["error"][-1]}

    @property
    def facts(self) -> dict[str, int]:
        return {"skipped": 3}

    def state(self) -> dict[str, object]:
        return {**super().state(), "order": self.order}

    def restore(self, state: dict[str, object]) -> None:
        super().restore(state)
        self.order = state["order"]


def load(config: PlaneConfig, path: Path, device: torch.device) -> Tensor:
    count = int((path / "count").read_text())
    return torch.randn(count, config.inputs, generator=torch.Generator().manual_seed(0)).to(device)


def table(records: Sequence[dict[str, object]]) -> Table:
    return Table(["row", "error"], [[str(record["row"]), f"{record['last_error']:.3f}"] for record in records])


def rows() -> list[PlaneConfig]:
    base = PlaneConfig(recipe="plane", row="none", steps=13, batch=4, learning_rate=0.05, precision="fp32")
    return [base, base.replace(row="rotation", noise="rotation", p=0.2, ramp=5)]


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The task is known; options for its data and folders."""
    task = tasks.Task("planes", "a folder with count", load, Plane, "plane", data_fields=("inputs",))
    report = SimpleNamespace(table=table, prose=lambda records: [], verdict=lambda records: "")
    monkeypatch.setitem(sys.modules, "rotationout.report.plane", report)
    monkeypatch.setitem(tasks.TASKS, PlaneConfig, task)
    monkeypatch.setitem(TABLES, "plane", rows)
    (tmp_path / "count").write_text("20")
    return ["--data", str(tmp_path), "--out", str(tmp_path / "r"), "--checkpoints", str(tmp_path / "c"), "--device=cpu"]


def test_another_task_is_trained_by_the_same_commands(
    plane: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", "plane", "--seeds", "0,1", "--together", "3", *plane]) == 0
    records = results.read_records(tmp_path / "r", "plane")
    assert [(record["row"], record["seed"]) for record in records] == [
        ("none", 0),
        ("none", 1),
        ("rotation", 0),
        ("rotation", 1),
    ]
    for record in records:
        assert record["epochs"] == len(record["error"]) == len(record["worst"]) == len(record["train_loss"]) == 3
        assert record["last_error"] == pytest.approx(record["error"][-1], abs=1e-5)
        assert record["last_error"] < record["error"][0]
        assert record["skipped"] == 3
    capsys.readouterr()
    assert cli.main(["table", "plane", "--out", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.count("| rotation | 0.") == 2


def test_fields_of_a_task_are_options_and_those_of_others_are_refused(
    plane: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "plane", *plane, "--inputs", "2", "--weights", "1,0.5"]) == 0
    (record,) = [json.loads(path.read_text()) for path in (tmp_path / "r").rglob("*.json")]
    assert record["recipe"] == "plane_inputs=2_weights=1.0-0.5"
    assert record["config"]["weights"] == [1.0, 0.5]
    assert cli.main(["train", "plane", *plane, "--stages", "2"]) == 2
    assert "'--stages': plane has no such field; its fields are --noise, --p, --noise-options" in said(capsys)
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Fields of all tables" in shown
    assert "Fields of planes" in shown
    assert "Data of planes: a folder with count." in shown
    assert shown.count("--noise-options") == 1


def test_data_are_read_once_for_all_runs_that_share_them(plane: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    task, read = tasks.TASKS[PlaneConfig], []

    def counted(config: PlaneConfig, *rest: object) -> Tensor:
        read.append(config.inputs)
        return load(config, *rest)

    monkeypatch.setitem(tasks.TASKS, PlaneConfig, tasks.Task("", "", counted, Plane, "plane", task.data_fields))
    new = tasks.maker(Path(plane[1]), torch.device("cpu"))
    for inputs in (4, 2, 4):
        assert new(rows()[0].replace(inputs=inputs)).data.size(1) == inputs
    assert read == [4, 2]


@pytest.mark.parametrize("stop", [3, 5])
def test_adam_with_groups_is_resumed_bit_identical(stop: int, tmp_path: Path) -> None:
    data, device, settings = torch.randn(20, 4), torch.device("cpu"), rows()[1].replace(milestones=(4,))
    whole, resumed = assert_resumes(lambda: Plane(settings, data, device), stop, tmp_path)
    for mine, theirs in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        for name, value in whole.optimizer.state[theirs].items():
            assert torch.equal(value, resumed.optimizer.state[mine][name]), name


@pytest.mark.parametrize("recipe", [path.name for path in RESULTS.iterdir() if path.is_dir()])
def test_records_that_are_there_count_as_done(recipe: str, tmp_path: Path) -> None:
    """Those of the repository, whatever fields configs have got since."""
    shutil.copytree(RESULTS / recipe, tmp_path / recipe)
    records = results.read_records(tmp_path, recipe)
    assert records
    seeds = {record["seed"] for record in records}
    table = [row.replace(seed=seed) for row in TABLES[recipe]() for seed in seeds]
    left = {(row.row, row.seed) for row in results.missing(tmp_path, table)}
    done = {(record["row"], record["seed"]) for record in records}
    assert done <= {(row.row, row.seed) for row in table}
    assert left == {(row.row, row.seed) for row in table} - done


def test_two_rows_that_would_have_one_record_are_refused(tmp_path: Path) -> None:
    first = config().replace(row="keep 0.9", weight_decay=1e-4)
    assert results.missing(tmp_path, [first, first, first.replace()]) == [first], "the same, asked for again"
    second = first.replace(row="Keep: 0.9", weight_decay=5e-4)
    with pytest.raises(ValueError, match=r"'keep 0.9' and 'Keep: 0.9' .*keep-0.9_seed0.json, .* row, weight_decay"):
        results.missing(tmp_path, [first, second])
    assert results.missing(tmp_path, [first, second.replace(seed=1)]) == [first, second.replace(seed=1)]


@pytest.mark.usefixtures("_small")
def test_a_gpus_checkpoint_is_resumed_on_a_cpu() -> None:
    """All but its random numbers, 16 bytes there: noise is drawn anew, the order of the images is not."""
    new = make(images(64), images(20, seed=1))
    first, second = new(config()), new(config())
    begun = second.random_stream.state().clone()
    for _ in range(5):
        first.advance()
    second.restore({**first.state(), "numbers": [torch.zeros(16, dtype=torch.uint8)]})
    assert torch.equal(second.random_stream.state(), begun)
    assert torch.equal(second.plan, first.plan)
    finish(second)
    assert len(second.losses) == len(second.curves["test_curve"]) == 2


def test_processes_have_the_same_weights_and_their_own_noise() -> None:
    """On a CPU, whose generator would take seeds that differ by 2³² for the same."""
    streams = {name: RandomStream(seed, torch.device("cpu"), rank) for name, seed, rank in SEEDS}
    drawn = {}
    for name, stream in streams.items():
        with stream.initial_weights():
            weight = torch.rand(4)
        with stream.active():
            drawn[name] = weight, torch.rand(4)
    assert torch.equal(drawn["first"][0], drawn["second"][0])
    assert len({tuple(noise.tolist()) for _, noise in drawn.values()}) == len(SEEDS)


SEEDS = [("first", 0, 0), ("second", 0, 1), ("third", 0, 2), ("another run", 1, 0), ("its second", 1, 1)]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides it, but not from those who make it an error
@pytest.mark.usefixtures("_small")
def test_a_compiled_run_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled by blocks, those that are alike once, only where it learns; here by a backend that changes nothing."""
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    compile_ = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_(self, backend=backend, **options))
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 3))
    torch._dynamo.reset()
    settings = config(ramp=0, steps=3, batch=4, kernels="torch")
    plain, compiled = (make(images(12), images(4, seed=1))(settings) for _ in range(2))
    compiled.compile()
    assert (plain.compiled, compiled.compiled) == (False, True)
    for run in (plain, compiled):
        finish(run)
    assert len(graphs) == 5, "first and other blocks of three stages, but all of the first are alike"
    assert compiled.losses == pytest.approx(plain.losses)
    assert compiled.network.state_dict().keys() == plain.network.state_dict().keys()
    torch._dynamo.reset()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_can_be_compiled_and_its_record_says_so(
    recorded: bool, plane: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: None)
    assert cli.main(["train", "plane", *plane, *(["--compile"] if recorded else [])]) == 0
    (record,) = results.read_records(tmp_path / "r", "plane")
    assert record["compiled"] is recorded


def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(ValueError, match="precision = 'fp16' needs a GPU; on 'cpu' use 'bf16' or 'fp32'"):
        Plane(rows()[0].replace(precision="fp16"), torch.randn(20, 4), torch.device("cpu"))


def test_momentum_is_zero_after_a_first_step_that_is_skipped() -> None:
    weight = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weight], torch.tensor(0.1), momentum=0.9, fused=True)
    _init_momentum(optimizer)
    scaler = GradScaler("cpu")
    for value in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.ones(1000))
    assert torch.equal(weight, torch.full((1000,), 0.9))


def test_a_record_that_came_to_be_meanwhile_is_left_and_the_run_kept(tmp_path: Path) -> None:
    settings, path = rows()[0], results.record_path(tmp_path / "r", rows()[0])

    class Late(Plane):
        def advance(self) -> None:
            super().advance()
            if self.finished and self.config.row == settings.row:  # another process is done first
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("theirs")

    def new(config: Config) -> Run:
        return Late(config, torch.randn(20, 4), torch.device("cpu"))

    with pytest.raises(FileExistsError, match="exists already, written by another process; it is left as it is"):
        sweep.sweep(rows()[:2], new, folder=tmp_path / "r", checkpoints=tmp_path / "c")
    assert path.read_text() == "theirs"
    assert results.read_record(results.record_path(tmp_path / "r", rows()[1])), "the others go on"
    state, _ = results.load_checkpoint(tmp_path / "c" / "plane" / "none_seed0.pt", settings)
    assert state["step"] == settings.steps
