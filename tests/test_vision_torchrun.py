"""Runs of Tables 2 and 3 that two processes share: held on the device or read on the way, they see what one sees."""

import json
from typing import Any

import pytest

pytest.importorskip("torchvision")

from tests.detection_album import write_album
from tests.image_folders import data_set, spoil
from tests.launching import torchrun
from tests.test_detection_training import TINY as TINY_DETECTOR
from tests.test_images_training import TINY as TINY_NETWORK

from rotationout import cli
from rotationout.experiments import streamed

PROGRAM = """
import json, sys
from rotationout import cli
from rotationout.experiments import processes, streamed

streamed.workers = lambda: 0
with processes.joined("cpu"):
    sys.exit(max(cli.main(command) for command in json.loads(sys.argv[1])))
"""
IMAGES = ["imagewoof", "--network-options", json.dumps(TINY_NETWORK), "--size", "16", "--short-side", "16"]
IMAGES += ["--learning-rate", "0.001", "--warmup", "0", "--steps", "4", "--batch", "6", "--milestones", "3"]
# GroupNorm of two values on a 1 × 1 map leaves but their sign, which is chance.
PLAIN = json.dumps({**TINY_DETECTOR["backbone_options"], "head_norm": False})
BOXES = ["bccd", "--backbone", "resnet18", "--backbone-options", PLAIN, "--crop", "128", "--scales", "112,160"]
BOXES += ["--warmup", "0", "--steps", "3", "--batch", "4", "--milestones", "2"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool, int], dict[str, Any]]:
    """Of every task, held or not, by one process and by two, all of which start once. An image of each is bad."""
    root = tmp_path_factory.mktemp("shared")
    data = {"imagewoof": data_set(root / "images", train=6, val=6), "bccd": root / "album"}
    spoil(data["imagewoof"] / "val" / "n1" / "05.JPEG", "damaged image")
    write_album(data["bccd"], {"train": 7, "test": 11})
    spoil(data["bccd"] / "images" / "test_4.png", "damaged image")
    found: dict[tuple[str, bool, int], dict[str, Any]] = {}
    for count in (2, 1):
        commands: dict[tuple[str, bool, int], list[str]] = {}
        for options in (IMAGES, BOXES):
            for held in (True, False):
                name = options[0]
                places = ["--out", str(root / f"{name}-{held}-{count}"), "--checkpoints", str(root / "c")]
                more = ["--data", str(data[name]), "--held", str(held), "--device", "cpu", "--precision", "fp32"]
                commands[name, held, count] = ["train", *options, *more, *places]
        if count == 2:
            (root / "program.py").write_text(PROGRAM)
            torchrun(str(root / "program.py"), json.dumps(list(commands.values())))
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(streamed, "workers", lambda: 0)
                assert [cli.main(command) for command in commands.values()] == [0] * 4
        for name, held, _ in commands:
            (path,) = (root / f"{name}-{held}-{count}").rglob("*.json")
            found[name, held, count] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("held", [True, False])
def test_two_processes_classify_as_one_does(held: bool, records: dict[tuple[str, bool, int], dict[str, Any]]) -> None:
    """Each learns from half of every batch, and is tested on half of the images; padding fills up the last batch."""
    both, alone = (records["imagewoof", held, count] for count in (2, 1))
    assert (both["processes"], alone["processes"]) == (2, 1)
    assert both["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-3)
    assert both["test_curve"] == pytest.approx(alone["test_curve"], abs=1.01 / 11)  # one image of eleven
    assert both["test_images"] == alone["test_images"] == 11
    assert both["skipped"] == alone["skipped"] == {"val": {"damaged image": 1}}


@pytest.mark.parametrize("held", [True, False])
def test_two_processes_detect_as_one_does(held: bool, records: dict[tuple[str, bool, int], dict[str, Any]]) -> None:
    """With losses over each one's own anchors."""
    both, alone = (records["bccd", held, count] for count in (2, 1))
    assert (both["processes"], alone["processes"]) == (2, 1)
    assert both["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
    assert both["test_loss_curve"] == pytest.approx(alone["test_loss_curve"], rel=1e-3)
    assert both["test_images"] == alone["test_images"] == 10
    assert both["skipped"] == alone["skipped"] == {"test": {"damaged image": 1}}


def test_held_images_are_those_that_are_read(records: dict[tuple[str, bool, int], dict[str, Any]]) -> None:
    held, read = (records["bccd", held, 1] for held in (True, False))
    assert read["train_loss"] == pytest.approx(held["train_loss"], rel=1e-5)
    assert read["test_loss_curve"] == pytest.approx(held["test_loss_curve"], rel=1e-5)
