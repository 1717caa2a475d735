"""Training runs that tests finish, stop half-way, carry over to another run and compare."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rotationout.experiments import results, streamed
from rotationout.experiments.run import Run
from rotationout.experiments.snapshot import snapshot


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """The matrices are small: more threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _as_exact_as_can_be(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a GPU, where it is imported: algorithms that do not change, in full fp32; images are read in this process."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def finish(*runs: Run) -> None:
    for run in runs:
        while not run.finished:
            run.advance()


def carry_over(first: Run, second: Run, folder: Path, **history: Any) -> None:
    """Let the second stand where the first does, by a checkpoint, which has their history too."""
    path = folder / "run.pt"
    results.save_checkpoint(path, first.config, snapshot(first.state()), history)
    state, found = results.load_checkpoint(path, second.config)
    second.restore(state)
    assert found == history


def assert_resumes(make: Callable[[], Run], stop: int, folder: Path) -> tuple[Any, Any]:
    """A run that is stopped after some steps, and goes on in another, ends bit-identical to one that never was.

    Returns:
        The run that never stopped and the one that went on, for what a task has besides losses, curves and weights.
    """
    whole, first, second = (make() for _ in range(3))
    finish(whole)
    for _ in range(stop):
        first.advance()
    carry_over(first, second, folder, seconds=1.5)
    while not second.finished:
        torch.rand(7)  # what others draw does not matter
        second.advance()
    assert (second.losses, second.curves) == (whole.losses, whole.curves)
    mine, theirs = (run.network.state_dict() for run in (second, whole))
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    return whole, second


def assert_tests_in_eval_mode(run: Run) -> dict[str, float]:
    """A test draws no noise and leaves the network as it is, statistics of BatchNorm too, also if it was training.

    Returns:
        The scores of the test.
    """
    run.network.train()
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    drawn = torch.get_rng_state()
    scores = run.test()
    assert scores, "it is time for a test"
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, tensor in run.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not run.network.training
    return scores


def assert_captured_as_plain(make: Callable[[], Run], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Steps captured in a CUDA graph are those done one by one, on a GPU and without noise, three of them.

    Rounding is all that is between them; ten times what it has grown to after the last update. Were an update left out,
    or a batch met twice, it would be ten times as much again.

    Returns:
        The captured run and the plain one.
    """
    captured, plain = make(), make()
    monkeypatch.setattr(plain, "captured", False)
    finish(captured, plain)
    assert (captured._graphs.captured, plain._graphs.captured) == (True, False)
    torch.testing.assert_close(captured.losses[0], plain.losses[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(captured.losses, plain.losses, rtol=3e-3, atol=0)
    assert len({round(loss, 2) for loss in plain.losses}) == 3, "no batch is like another"
    return captured, plain


def assert_goes_on_captured(make: Callable[[], Run], folder: Path) -> Any:
    """The step after a checkpoint is the same on a GPU: so are weights, random numbers, data and the learning rate.

    Returns:
        The run that went on.
    """
    first, second = make(), make()
    for _ in range(2):
        first.advance()
    carry_over(first, second, folder)
    finish(first, second)
    torch.testing.assert_close(second.losses, first.losses, rtol=1e-3, atol=0)
    return second


def assert_beside_as_alone(make: Callable[[int], Run]) -> None:
    """Runs of two seeds with noise, step by step in turn, do what each does alone."""
    alone, beside = ([make(seed) for seed in (0, 1)] for _ in range(2))
    finish(*alone)
    for _ in range(3):
        for run in beside:
            run.advance()
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one.losses, other.losses, rtol=3e-3, atol=0)
    assert alone[0].losses != alone[1].losses
