"""Checkpoints are written in the background, from copies that later steps do not change."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.test_run import Plane, rows
from torch import Tensor, nn

from rotationout.experiments import job, results, snapshot, sweep
from rotationout.experiments.config import Config
from rotationout.experiments.run import Run


def make(config: Config) -> Run:
    torch.manual_seed(3)
    return Plane(config, torch.randn(20, 4), torch.device("cpu"))


def odd_tensors(device: str = "cpu") -> list[Tensor]:
    """In every layout that a state can have, of several types; some larger than others."""
    x = torch.randn(6, 5, 4, 3, device=device)
    return [
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(0, 2),
        x[:, 1:3],
        x[:1].expand(6, 5, 4, 3),
        torch.tensor(7, device=device),
        torch.zeros(0, 3, device=device),
        torch.arange(9, device=device),
        torch.randn(1000, device=device, dtype=torch.bfloat16),
        torch.arange(5, dtype=torch.uint8, device=device)[2:],
        nn.Parameter(torch.randn(3, device=device)),
    ]


@pytest.mark.parametrize("limit", [1, 400, 2**25])
def test_gathered_tensors_are_copies_with_the_same_strides(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU as on a GPU, however many fit into a piece."""
    monkeypatch.setattr(snapshot, "PIECE_BYTES", limit)
    tensors = odd_tensors()
    copies = snapshot._gathered(tensors)
    for tensor, copied in zip(tensors, copies, strict=True):
        assert copied.dtype == tensor.dtype
        assert torch.equal(copied, tensor)
        dense = torch.empty_like(tensor).stride() == tensor.stride()
        assert copied.stride() == (tensor.stride() if dense else tensor.contiguous().stride())
        assert not copied.requires_grad
    memory = {copied.untyped_storage().data_ptr() for copied in copies if copied.numel()}
    assert not memory & {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if limit == 2**25:
        assert len(memory) == 4, "one piece for each type"


def test_a_full_device_is_copied_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "cat", full)
    tensors = odd_tensors()
    for tensor, copied in zip(tensors, snapshot._gathered(tensors), strict=True):
        assert torch.equal(copied, tensor)
        assert copied.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_a_snapshot_does_not_follow_the_network() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    state = {"network": network.state_dict(), "losses": [1.0], "both": (torch.ones(2), 3), "nothing": None}
    kept = snapshot.snapshot(state)
    before = {name: value.clone() for name, value in state["network"].items()}
    network(torch.randn(4, 2, 5, 5))
    with torch.no_grad():
        network[0].weight.zero_()
    assert all(torch.equal(kept["network"][name], value) for name, value in before.items())
    assert kept["network"]._metadata == state["network"]._metadata
    assert (kept["losses"], kept["both"][1], kept["nothing"]) == ([1.0], 3, None)
    assert isinstance(kept["both"], tuple)


class Disk:
    """A disk that is as slow, or as full, as a test wants it."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.write = write
        self.ready, self.asked, self.error = threading.Event(), threading.Event(), ""

    def save(self, *content: Any) -> None:
        self.asked.set()
        assert self.ready.wait(20)
        if self.error:
            raise OSError(self.error)
        self.write(*content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    slow = Disk(results.save_checkpoint)
    monkeypatch.setattr(results, "save_checkpoint", slow.save)
    return slow


@pytest.fixture
def writer() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_run_goes_on_while_its_checkpoint_is_written(disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path) -> None:
    done = job.Job(rows()[0], make, tmp_path, writer=writer)
    done.advance()
    then = done.run.network[0].weight.detach().clone()
    assert done.save(wait=False) == ""
    assert disk.asked.wait(20)
    for _ in range(3):
        assert done.advance() == ""
    assert not torch.equal(done.run.network[0].weight, then)
    assert not done.checkpoint.exists()
    disk.ready.set()
    assert done._written() == ""
    state, _ = results.load_checkpoint(done.checkpoint, done.config)
    assert state["step"] == 1
    assert torch.equal(state["network"]["0.weight"], then)


TOLD = "plane, none, seed 0: no checkpoint at step 1: No space left on device"


def not_kept(disk: Disk, writer: ThreadPoolExecutor, folder: Path) -> job.Job:
    """A run after a step, for whose checkpoint there is no room."""
    done = job.Job(rows()[0], make, folder, writer=writer)
    done.advance()
    disk.error = "No space left on device"
    disk.ready.set()
    assert done.save(wait=False) == ""
    return done


def test_what_was_in_the_way_of_a_checkpoint_is_told_later(
    disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path
) -> None:
    done = not_kept(disk, writer, tmp_path)
    writer.submit(int).result()  # it has been written by now
    assert done.advance() == TOLD
    assert done.advance() == "", "once"
    assert done.save(wait=False) == ""
    assert done.save(wait=False) == TOLD.replace("step 1", "step 3"), "by the next one, if no step is in between"
    disk.error = ""
    assert done.save() == "", "now there is one"
    assert done.checkpoint.exists()


def test_a_checkpoint_does_not_come_back_after_the_record(
    disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path
) -> None:
    done = job.Job(rows()[0], make, tmp_path / "c", writer=writer)
    while not done.run.finished:
        done.advance()
    threading.Timer(0.2, disk.ready.set).start()
    done.finish(tmp_path / "r")
    writer.submit(int).result()
    assert results.read_records(tmp_path / "r", "plane")
    assert not done.checkpoint.exists()


def test_a_sweep_does_not_wait_for_the_disk(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is due after every step, and the second step is done while the first is being written."""
    monkeypatch.setattr(sweep, "CHECKPOINT_SECONDS", 0.0)
    seen = []

    class Watched(Plane):
        def advance(self) -> None:
            super().advance()
            seen.append(disk.asked.is_set() and not disk.ready.is_set())
            if self.step == 2:
                assert disk.asked.wait(20)
                disk.ready.set()

    def watched(config: Config) -> Run:
        return Watched(config, torch.randn(20, 4), torch.device("cpu"))

    assert sweep.sweep([rows()[0]], watched, folder=tmp_path / "r", checkpoints=tmp_path / "c") == []
    assert any(seen), "a step while the disk was busy"
    assert not list((tmp_path / "c").rglob("*.pt"))


def test_an_interrupt_while_waiting_does_not_let_an_older_checkpoint_win(
    disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = job.Job(rows()[0], make, tmp_path, writer=writer)
    done.advance()
    done.save(wait=False)
    done.advance()
    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", lambda self, timeout=None: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            done.save(wait=False)
    threading.Timer(0.2, disk.ready.set).start()
    assert done.save() == "", "after the one before"
    writer.submit(int).result()
    assert results.load_checkpoint(done.checkpoint, done.config)[0]["step"] == 2


def test_what_is_being_written_does_not_keep_a_run_in_memory(
    disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path
) -> None:
    done = job.Job(rows()[0], make, tmp_path, writer=writer)
    done.advance()
    done.save(wait=False)
    run = weakref.ref(done.run)
    del done
    gc.collect()
    assert run() is None
    disk.ready.set()


def test_a_failed_checkpoint_is_told_even_if_the_next_step_breaks_off(
    disk: Disk, writer: ThreadPoolExecutor, tmp_path: Path
) -> None:
    done = not_kept(disk, writer, tmp_path)
    done.step_complete = False
    assert done.save().splitlines() == [
        TOLD,
        "plane, none, seed 0: step 1 broke off; there is no checkpoint of it yet",
    ]
    done.checkpoint.parent.mkdir(parents=True)
    done.checkpoint.touch()
    assert done.save() == "plane, none, seed 0: step 1 broke off; the last checkpoint is kept"
