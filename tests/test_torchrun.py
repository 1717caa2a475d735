"""Two processes under torchrun share every batch: they reach the losses of one, stop together and go on together."""

import copy
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cifar_images import write_cifar
from tests.launching import torchrun
from torch import Tensor, nn

from rotationout import cli
from rotationout.experiments import cifar, networks, processes
from rotationout.functional.inputs import feature_mean

np = pytest.importorskip("numpy")

TABLE = "cifar100_resnet110_authors"
ROWS = ["none", "rotation default sigma 0.500"]
COUNTS = {"train": 100, "test": 100}
SCRIPT = f"""
import sys
from functools import partial
from rotationout import cli
from rotationout.experiments import cifar, networks, processes, sweep

cifar.COUNTS, sweep.ROUNDS_TO_AGREE = {COUNTS}, 3
networks.NETWORKS["resnet110"] = partial(networks.ResNet, 1)
with processes.joined(sys.argv.pop()):
    stopped = cli.main([*sys.argv[1:], "--minutes", "0"])
    assert processes.gather(stopped) == [0] * processes.size()
    sys.exit(cli.main(sys.argv[1:]))
"""
FIELDS = [
    "--steps=8",
    "--batch=20",
    "--learning-rate=0.01",
    "--milestones=6",
    "--precision=fp32",
    "--ramp=0",
    "--studies=",
]


def arguments(folder: Path, name: str) -> list[str]:
    places = ["--data", str(folder), "--out", str(folder / name), "--checkpoints", str(folder / f"{name}_kept")]
    return ["sweep", TABLE, *(word for row in ROWS for word in ("--row", row)), "--seeds", "0", *places, *FIELDS]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small CIFAR, and in this process the network that the script has."""
    monkeypatch.setattr(cifar, "COUNTS", COUNTS)
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 1))
    source = np.random.default_rng(0)
    for split, count in COUNTS.items():
        write_cifar(tmp_path, split, data=source.integers(0, 256, (count, 3072), dtype=np.uint8))
    (tmp_path / "run.py").write_text(SCRIPT)
    return tmp_path


def launch(data: Path, size: int, device: str) -> str:
    """Run the sweep in so many processes, stopped once between; what was written to stderr."""
    return torchrun(str(data / "run.py"), *arguments(data, "shared"), "--device", device, device, size=size)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]


def test_a_single_process_that_ran_out_of_time_is_no_crash_to_torchrun(data: Path) -> None:
    assert launch(data, 1, "cpu").count("1 unfinished run is kept") == 1
    assert len(records(data / "shared")) == len(ROWS)


THREADS = """
import os
from rotationout.experiments import processes

with processes.joined("cpu"):
    import torch._dynamo
    assert processes.gather(1) == [1]
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not [name for name in names if "gloo" in name], names
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the names of threads in /proc")
def test_no_thread_of_the_process_group_outlives_it(tmp_path: Path) -> None:
    """One that frees a tensor while Python exits would abort the process, which torchrun takes for a failed run."""
    (tmp_path / "run.py").write_text(THREADS)
    torchrun(str(tmp_path / "run.py"), size=1)


def test_two_processes_reach_the_losses_of_one(data: Path) -> None:
    """With BatchNorm over both and the same cuts of the same images. They are stopped after three steps, and go on."""
    said = launch(data, 2, "cpu")
    assert said.count("1 unfinished run is kept") == 1, "said once, not by each process"
    assert not list((data / "shared_kept").rglob("*.pt"))
    assert cli.main([*arguments(data, "alone"), "--device", "cpu"]) == 0
    (none, turned), (none_alone, turned_alone) = records(data / "shared"), records(data / "alone")
    assert none["epochs"] == none_alone["epochs"] == 2
    assert none["train_loss"] == pytest.approx(none_alone["train_loss"], rel=1e-4)
    assert none["test_curve"] == pytest.approx(none_alone["test_curve"], abs=0.021)  # two images of 100
    assert (none["processes"], none_alone["processes"]) == (2, 1)
    # With noise they do not draw what one process draws, but nearly the same happens.
    assert turned["train_loss"] != pytest.approx(turned_alone["train_loss"], rel=1e-4)
    assert turned["train_loss"] == pytest.approx(turned_alone["train_loss"], rel=0.05)


def test_what_the_first_process_says_is_not_lost_among_tracebacks_of_the_others(tmp_path: Path) -> None:
    """They wait for it, and lose the connection."""
    (tmp_path / "file").touch()
    words = ["train", TABLE, "--data", str(tmp_path), "--out", str(tmp_path / "file"), "--device", "cpu"]
    said = torchrun("-m", "rotationout.cli", *words, code=1)
    assert said.count(f"rotationout: {tmp_path / 'file'}: this must be a folder, not a file") == 1
    assert "[rank1]: Traceback" not in said


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "size", lambda: 3)
    with pytest.raises(ValueError, match="batch = 128 cannot be shared equally by 3 processes"):
        processes.share(128)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batchnorm_over_processes_is_torchs_where_there_is_one(
    shape: tuple[int, ...], momentum: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, gradients of input and parameters, running statistics, evaluation."""

    def mean_and_count(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        mean, count = feature_mean(*given, **options)
        return mean, torch.tensor([float(count)], requires_grad=True)  # as it comes from an exchange

    monkeypatch.setattr(processes, "feature_mean", mean_and_count)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    theirs = kind(3, momentum=momentum, dtype=torch.float64)
    nn.init.normal_(theirs.weight)
    nn.init.normal_(theirs.bias)
    ours = processes._GlobalBatchNorm.like(copy.deepcopy(theirs))
    weights = torch.randn(shape, dtype=torch.float64)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        found = [torch.autograd.grad((bn(x) * weights).sum(), [x, *bn.parameters()]) for bn in (ours, theirs)]
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other)
    for mine, other in zip(
        ours.state_dict(keep_vars=True).values(), theirs.state_dict(keep_vars=True).values(), strict=True
    ):
        torch.testing.assert_close(mine, other)
        assert not mine.requires_grad or isinstance(mine, nn.Parameter), "else every step would keep all before it"
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
