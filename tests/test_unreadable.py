"""Images that turn out to be unreadable in the middle of an epoch: what the network sees instead, in Tables 2 and 3."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests import test_detection_training, test_images_training
from tests.detection_album import write_album
from tests.image_folders import data_set, spoil
from tests.training_runs import _as_exact_as_can_be as _as_exact_as_can_be  # a fixture
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import assert_resumes, assert_tests_in_eval_mode

from rotationout.experiments import streamed
from rotationout.experiments.detection import training
from rotationout.experiments.images.files import open_split
from rotationout.experiments.images.loaded import LoadedImages
from rotationout.experiments.images.training import ImageClassification
from rotationout.experiments.sources import NO_IMAGE
from rotationout.experiments.tasks import maker
from rotationout.experiments.vision import VisionRun

CPU = torch.device("cpu")
COUNT = 24
"""Training images. A bad one is replaced by that two places further on, as a tenth of them is two."""


@pytest.fixture(autouse=True)
def _plain(_one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scores, which need another package; test images by threes, so that the last batch is filled up."""
    monkeypatch.setattr(training, "can_score", lambda: False)
    monkeypatch.setattr(ImageClassification, "test_rows", 3)


class Task:
    """A task on a small data set of its own."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.root = name, root
        if name == "images":
            data_set(root, train=COUNT // 2, val=2)
        else:
            write_album(root, {"train": COUNT, "test": 3})

    def run(self, row: str = "none", **changes: Any) -> VisionRun[Any]:
        """A run that reads images on the way."""
        tests = test_images_training if self.name == "images" else test_detection_training
        made = maker(self.root, CPU)(tests.config(row, held=False, **changes))
        assert isinstance(made, VisionRun)
        return made

    def spoil(self, numbers: list[int]) -> None:
        """Cut off the files of these training images."""
        for number in numbers:
            if self.name == "images":
                label, place = divmod(number, COUNT // 2)
                spoil(self.root / "train" / f"n{label}" / f"{place:02}.JPEG", "damaged image")
            else:
                spoil(self.root / "images" / f"train_{number}.png", "damaged image")

    def spoil_tests(self, count: int, bad: int) -> None:
        """Have so many test images, the first of them cut off."""
        shutil.rmtree(self.root)
        if self.name == "images":
            data_set(self.root, train=COUNT // 2, val=count // 2)
        else:
            write_album(self.root, {"train": COUNT, "test": count})
        for number in range(bad):
            file = f"val/n0/{number:02}.JPEG" if self.name == "images" else f"images/test_{number}.png"
            spoil(self.root / file, "damaged image")


@pytest.fixture(params=["images", "detection"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    return Task(request.param, tmp_path / "data")


def statistics(run: VisionRun[Any]) -> dict[str, torch.Tensor]:
    """The running statistics of BatchNorm."""
    return {name: tensor for name, tensor in run.network.state_dict().items() if "running" in name}


@pytest.mark.parametrize("bad", [[1], [0, 1]])
def test_batch_statistics_are_those_of_images(bad: list[int], task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another image in the place of one that cannot be read, cropped alike; also if no image of a batch can be."""
    sound = task.run(batch=2)
    plan = sound.train_source.draw(torch.Generator().manual_seed(0))
    numbers = [int(plan[place, 0]) for place in bad]
    shown = plan.clone()
    for place, number in zip(bad, numbers, strict=True):
        others = ((number + 2 * step) % COUNT for step in range(1, COUNT // 2))
        shown[place, 0] = next(other for other in others if other not in numbers)
    monkeypatch.setattr(sound.train_source, "draw", lambda _: shown)
    sound.advance()
    task.spoil(numbers)
    run = task.run(batch=2)
    before = {name: tensor.clone() for name, tensor in statistics(run).items()}
    monkeypatch.setattr(run.train_source, "draw", lambda _: plan)
    run.advance()
    expected = statistics(sound)
    assert expected
    for name, tensor in statistics(run).items():
        assert torch.equal(tensor, expected[name]), name
        assert not torch.equal(tensor, before[name]), name
    targets = run.train_source.batch()[-1]
    counted = targets != NO_IMAGE if task.name == "images" else targets
    assert counted.tolist() == [place not in bad for place in range(2)]
    assert len(run.train_source.problems) == len(bad)
    assert run.facts["train_images"] == COUNT - len(bad)
    if len(bad) == 2:
        assert run.loss == 0
    else:
        assert run.loss > 0


def test_what_is_seen_does_not_depend_on_the_rest_of_the_batch(task: Task) -> None:
    """So it is the same however many processes share a batch."""
    task.spoil([3, 5])
    whole, half = task.run(batch=4).train_source, task.run(batch=2).train_source
    plan = whole.draw(torch.Generator().manual_seed(0))
    plan[:4, 0] = torch.tensor([3, 0, 5, 2])
    whole.begin(plan.unflatten(0, (-1, 4)))
    half.begin(plan.unflatten(0, (-1, 2)))
    whole.take(0)
    together = whole.batch()
    for place in (0, 1):
        half.take(place)
        for mine, theirs in zip(half.batch(), together, strict=True):
            assert torch.equal(mine, theirs[2 * place : 2 * place + 2])


def test_a_resumed_run_ends_bit_identical(task: Task, tmp_path: Path) -> None:
    task.spoil([3, 5])
    whole, resumed = assert_resumes(lambda: task.run("rotation block", batch=8, steps=5), 2, tmp_path)
    assert resumed.facts["skipped"] == whole.facts["skipped"] == {"train": {"damaged image": 2}}


def test_a_bad_test_split_is_refused_before_the_first_step(task: Task) -> None:
    """The first test, at the end of an epoch, is too late: there may be no checkpoint yet."""
    task.spoil_tests(20, bad=3)
    run = task.run(batch=2)
    with pytest.raises(ValueError, match=r"3 of 20 images of '(val|test)' cannot be used, more than one in ten"):
        run.advance()
    assert run.step == 0


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_sample_tells_whether_all_test_images_are_looked_at(
    bad: int, task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 20 images 10 are in the sample: a bad one makes all be read, and their number decides."""
    monkeypatch.setattr(streamed, "SAMPLE", 10)
    task.spoil_tests(20, bad)
    source = task.run(batch=2).test_source
    reader, seen = vars(source)["reader"], []
    read = type(reader).read

    def noted(self: Any, row: Any) -> Any:
        seen.append(row[0])
        return read(self, row)

    monkeypatch.setattr(type(reader), "read", noted)
    if bad == 3:
        with pytest.raises(ValueError, match="3 of 20 images"):
            source.check()
    else:
        source.check()
    assert sorted(set(seen)) == list(range(0, 20, 1 if bad else 2))
    told = capsys.readouterr().err
    assert told.count("it is left out") == len(source.problems) == bad


def test_what_the_look_at_test_images_finds_is_told_once(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    """And a run that is resumed does not look again, as it has found out."""
    task.spoil_tests(20, bad=1)
    run = task.run(batch=2, steps=2)
    while not run.finished:
        run.advance()
    assert capsys.readouterr().err.count("it is left out") == 1
    assert list(run.facts["skipped"].values()) == [{"damaged image": 1}]
    resumed = task.run(batch=2, steps=3)
    resumed.restore(run.state())
    resumed.test_source.check = lambda: pytest.fail("it looks again")  # type: ignore[method-assign]
    resumed.advance()
    assert not capsys.readouterr().err


def test_padding_of_the_last_test_batch_leaves_no_trace(task: Task) -> None:
    run = task.run(batch=2)
    run.advance()
    run.losses = [1.0]  # an epoch has ended, and it is time for a test
    assert any((rows[:, 0] == NO_IMAGE).any() for rows in run.test_batches())
    assert_tests_in_eval_mode(run)


def test_a_data_set_without_images_to_show_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No more than a tenth are known to be bad, but they are all that were tried: a disk may be gone."""
    root = data_set(tmp_path / "data", train=60, val=2)
    for number in range(0, 120, 12):
        label, place = divmod(number, 60)
        spoil(root / "train" / f"n{label}" / f"{place:02}.JPEG", "empty file")
    source = LoadedImages(open_split(root, "train"), 16, 16).source(2, CPU)
    source.begin(source.fixed_plan()[:4].unflatten(0, (-1, 2)))
    with pytest.raises(ValueError, match=r"no image of 'train' was found .*: n1/48.JPEG is empty"):
        source.take(0)
    assert capsys.readouterr().err.count("is empty; it is left out") == 10
    shutil.copy(root / "train" / "n0" / "01.JPEG", root / "train" / "n1" / "48.JPEG")
    source.begin(source.fixed_plan()[:4].unflatten(0, (-1, 2)))
    source.take(0)
    assert source.tensors[1].tolist() == [NO_IMAGE, 0]
    assert torch.equal(source.tensors[0][0], source.tensors[0][1]), "the last that is tried"
