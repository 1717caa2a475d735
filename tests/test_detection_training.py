"""Training runs of Table 3 on a few images: every row, records, going on, scoring later, what is left out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.detection_album import edit, needs_bccd, needs_pycocotools, some_of_bccd, write_album
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import assert_resumes, assert_tests_in_eval_mode, finish
from torch import nn
from torchvision.io import write_png
from torchvision.models.resnet import BasicBlock, ResNet

from rotationout import cli
from rotationout.experiments import results, streamed, sweep
from rotationout.experiments.detection import scoring, training
from rotationout.experiments.detection.config import DetectionConfig
from rotationout.experiments.detection.training import Detection
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES
from rotationout.report import whole
from rotationout.report.gallery import write
from rotationout.report.gallery.detections import seen_boxes
from rotationout.report.table3 import PAPER, section

pytestmark = pytest.mark.usefixtures("_one_thread")
CPU = torch.device("cpu")
TINY: dict[str, Any] = {"backbone": "resnet18", "backbone_options": {"layers": [1, 1, 1, 1], "width": 16}}
TINY |= {
    "crop": 128,
    "scales": (112, 160),
    "precision": "fp32",
    "warmup": 2,
    "batch": 2,
    "steps": 2,
    "milestones": (1,),
}


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Painted rectangles."""
    return write_album(tmp_path_factory.mktemp("painted") / "album", {"train": 7, "test": 3})


def config(row: str = "rotation block", **changes: Any) -> DetectionConfig:
    (found,) = (found for found in TABLES["bccd"]() if found.row == row)
    return found.replace(**{**TINY, "steps": 6, "milestones": (4,), "test_every": 1, **changes})


def run_of(settings: DetectionConfig, album: Path) -> Detection:
    made = maker(album, CPU)(settings)
    assert isinstance(made, Detection)
    return made


@needs_bccd
@pytest.mark.parametrize("table", ["bccd", "coco"])
def test_every_row_of_every_table_runs(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a handful of BCCD's images, those of COCO's recipe in its layout and read on the way."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    names = ("train", "test") if table == "bccd" else ("train2017", "val2017")
    root = some_of_bccd(tmp_path / "data", names=names)
    torch.save(ResNet(BasicBlock, [1, 1, 1, 1]).state_dict(), root / "resnet18.pth")
    odd = {"dropblock": (5, 3)}  # the last map has 4 × 4 places, and torchvision refuses to clip a block to that
    rows = [row.replace(**TINY, block_sizes=odd.get(row.noise, row.block_sizes)) for row in TABLES[table]()]
    assert sweep.sweep(rows, maker(root, CPU), folder=tmp_path, checkpoints=tmp_path / "kept", together=len(rows)) == []
    records = results.read_records(tmp_path, table)
    assert {record["row"] for record in records} == {row.row for row in rows}
    for record in records:
        assert record["epochs"] == len(record["test_loss_curve"]) == 1
        assert 0.5 < record["test_loss"] < 20
        assert record["skipped"] == {}
        assert (record["train_images"], record["test_images"]) == (6, 3)
        assert [shown["size"] for shown in record["shown"]] == [[480, 640]] * 3
    page = section(table, records)
    assert page.table is not None
    assert [line[0] for line in page.table.rows] == [row.row for row in rows]
    assert len(list((tmp_path / table).glob("*.detections.json.gz"))) == len(rows)


def test_the_tables_are_the_papers() -> None:
    bccd, coco = ({row.row: row for row in TABLES[name]()} for name in ("bccd", "coco"))
    assert set(PAPER) <= set(coco)
    for row in (*bccd.values(), *coco.values()):
        assert (row.alpha, row.gamma, row.scales, row.crop) == (0.25, 1.5, (512, 768), 640)
        assert (row.momentum, row.weight_decay, row.backbone) == (0.9, 1e-4, "resnet50")
        assert DetectionConfig(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
        epochs = 60 if row.recipe == "bccd" else 35
        batches = (205 if row.recipe == "bccd" else 118_287) // row.batch
        assert row.steps == epochs * batches
        rates = [row.rate_at(int(row.steps * share)) / row.learning_rate for share in (0.5, 0.7, 0.9)]
        assert rates == pytest.approx([1, 0.1, 0.01])
    assert coco["none"].milestones == (20 * 1848, 28 * 1848)
    assert {row.batch for row in coco.values()} == {64}
    kinds = {name: (row.noise, row.p, row.block_sizes, row.initialization) for name, row in coco.items()}
    assert kinds["dropblock keep 0.9, block 5"] == ("dropblock", 0.1, (5, 5), "random")
    assert kinds["rotation block, ImageNet"] == ("rotation", 0.2, (7, 3), "imagenet")
    assert list(bccd) == [
        "none",
        "dropout keep 0.9",
        "dropblock keep 0.9, block 5",
        "rotation",
        "rotation block",
    ]


@pytest.mark.parametrize(("stop", "held"), [(1, True), (3, True), (5, True), (4, False)])
def test_a_resumed_run_ends_bit_identical(stop: int, held: bool, album: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Stopped inside an epoch, at its end, and after the learning rate dropped."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    monkeypatch.setattr(training, "can_score", lambda: False)
    settings = config(held=held, test_every=2)
    never_stopped, resumed = assert_resumes(lambda: run_of(settings, album), stop, tmp_path)
    assert (resumed.facts, resumed.files) == (never_stopped.facts, never_stopped.files)


@needs_pycocotools
def test_two_images_are_learnt_by_heart(tmp_path: Path) -> None:
    """Seen as they are trained on, and found again nearly all."""
    root = write_album(tmp_path / "album", {"train": 2, "test": 1})
    edit(
        root,
        "test",
        lambda content: content.update(json.loads((root / "annotations/instances_train.json").read_text())),
    )
    changes = {"scales": (128, 128), "steps": 28, "milestones": (20,), "warmup": 5, "learning_rate": 0.02}
    wide = {"layers": [1, 1, 1, 1], "width": 32}
    run = run_of(config("none", **changes, test_every=100, backbone_options=wide), root)
    finish(run)
    assert run.losses[-1] < 0.5 * run.losses[0]
    assert run.result["ap50"] > 90
    assert f"AP50 {run.result['ap50']:.2f}" in run.summary


@needs_pycocotools
def test_detections_are_scored_later_as_at_once(album: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Once where pycocotools is, once as if it were not there; the records then say the same."""
    common = ["--data", str(album), "--device", "cpu", "--checkpoints", str(tmp_path / "c")]
    for name, value in (TINY | {"steps": 6, "batch": 2}).items():
        text = (
            json.dumps(value)
            if isinstance(value, dict)
            else ",".join(map(str, value))
            if isinstance(value, tuple)
            else str(value)
        )
        common += [f"--{name.replace('_', '-')}", text]

    def surely_seen(_: Any, logits: torch.Tensor, *rest: Any) -> Any:
        """Whatever the network says: the true boxes, one of them a little off."""
        seen = []
        for index in range(len(logits)):
            boxes = run_boxes[index].clone()
            boxes[1] += 3
            seen.append({"boxes": boxes, "scores": torch.tensor([0.9, 0.8]), "labels": torch.tensor([0, 1])})
        return seen

    split = training.read_split(album, "test")
    run_boxes = {index: split.padded_boxes(min(index, 2))[0] for index in range(4)}
    monkeypatch.setattr(training.Detector, "detect", surely_seen)
    records = {}
    for place, there in (("at once", True), ("later", False)):
        monkeypatch.setattr(training, "can_score", lambda there=there: there)
        out = ["--out", str(tmp_path / place)]
        assert cli.main(["train", "bccd", "--row", "rotation", *common, *out]) == 0
        (path,) = (tmp_path / place).rglob("*.json")
        if not there:
            assert "ap" not in json.loads(path.read_text())
            assert cli.main(["table", path.parent.name, *out]) == 0
            assert "| rotation | 1 | – | 38.2 | – | 56.2 | – | 41.0 |\n" in capsys.readouterr().out
            score = ["score", path.parent.name, *out, "--data", str(album), "--picture", str(tmp_path / "figures")]
            path.with_name(f"._{path.name}").write_text("left by a system, and no record")
            assert cli.main(score) == 0
            printed = capsys.readouterr().out
            assert f"{path}: ap " in printed
            assert (tmp_path / "figures" / f"detections_{path.parent.name}.svg").is_file()
            changed = path.stat().st_mtime_ns
            assert cli.main(score) == 0
            assert path.stat().st_mtime_ns == changed, "it is scored once"
        records[place] = json.loads(path.read_text())
    once, later = (records[place] for place in ("at once", "later"))
    assert once["ap"] == later["ap"] > 20
    assert (once["ap50"], once["ap75"]) == (later["ap50"], later["ap75"])
    assert once["config"] == later["config"]
    assert list(later)[-1] == "config"
    path.with_suffix(scoring.SUFFIX).unlink()
    assert cli.main([*score, "--again"]) == 1
    assert "the detections of a run must be beside its record" in capsys.readouterr().err


def test_a_test_is_without_noise_and_leaves_the_network_as_it_is(album: Path) -> None:
    run = run_of(config("rotation"), album)
    run.advance()
    run.losses = [1.0]
    assert assert_tests_in_eval_mode(run)["test_loss_curve"] > 0


def test_scores_of_before_are_not_those_of_the_last_test(album: Path, monkeypatch: Any) -> None:
    """A run that goes on where pycocotools is absent."""
    run = run_of(config("none", steps=6), album)
    monkeypatch.setattr(training, "can_score", lambda: True)
    monkeypatch.setattr(training, "average_precision", lambda *_: {"ap": 1.0, "ap50": 2.0, "ap75": 3.0})
    for _ in range(3):
        run.advance()
    assert run.result["ap50"] == 2
    monkeypatch.setattr(training, "can_score", lambda: False)
    finish(run)
    assert list(run.result) == ["test_loss"]
    assert "for AP run `rotationout score bccd`" in run.summary


def test_what_is_left_out_is_in_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A bad box, and an image that is found to be cut off in the middle of an epoch, which goes on."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    root = write_album(tmp_path / "album", {"train": 12, "test": 11})
    edit(root, "train", lambda content: content["annotations"][4].update(bbox=[5, 5, 0, 9]))
    for name in ("train_3.png", "test_0.png"):
        path = root / "images" / name
        path.write_bytes(path.read_bytes()[:2000])
    found = {}
    for held in (True, False):
        settings = config("none", held=held, steps=6, seed=int(held))
        assert sweep.sweep([settings], maker(root, CPU), folder=tmp_path, checkpoints=tmp_path / "c") == []
        found[held] = json.loads(results.record_path(tmp_path, settings).read_text())
    for record in found.values():
        expected = {"train": {"box without size": 1, "damaged image": 1}, "test": {"damaged image": 1}}
        assert record["skipped"] == expected
        assert "train/train_3.png: damaged image" in record["skipped_names"]
        assert (record["train_images"], record["test_images"]) == (11, 10)
        assert (record["train_boxes"], record["test_boxes"]) == (21, 20), "two an image, less the bad one"
    said = capsys.readouterr().err
    assert "train, train_2.png, box 4: width and height of bbox must be positive, got [5, 5, 0, 9]" in said
    assert said.count("train, train_3.png is damaged or cut off") == 2, "once for each run"


@pytest.mark.parametrize("held", [True, False])
def test_pictures_show_images_that_could_be_read(held: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """The first test image would be shown, if it were not cut off."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    root = write_album(tmp_path / "album", {"train": 4, "test": 11})
    path = root / "images" / "test_0.png"
    path.write_bytes(path.read_bytes()[:2000])
    settings = config("none", held=held, steps=2)
    assert sweep.sweep([settings], maker(root, CPU), folder=tmp_path, checkpoints=tmp_path / "c") == []
    record = json.loads(results.record_path(tmp_path, settings).read_text())
    assert [image["name"] for image in record["shown"]] == [f"test_{number}.png" for number in (1, 3, 5, 7)]


def test_pictures_of_images_in_grey_that_are_damaged_or_without_any_box(tmp_path: Path) -> None:
    records = [record("none", 0, 50.0), record("rotation", 0, 51.0)]
    for made in records:
        for shown, name in zip(made["shown"], ("grey.png", "cut.png"), strict=True):
            shown.update(name=name, size=[8, 6], true=[], seen=[])
    (tmp_path / "images").mkdir()
    grey = torch.arange(48, dtype=torch.uint8).view(1, 8, 6)
    write_png(grey, str(tmp_path / "images" / "grey.png"))
    content = (tmp_path / "images" / "grey.png").read_bytes()
    (tmp_path / "images" / "cut.png").write_bytes(content[: len(content) // 2])
    drawing = seen_boxes("bccd", records, tmp_path)
    figure = drawing.draw(drawing.compute())
    assert len(figure.axes) == 3 * 2
    whole_image, cut_off = figure.axes[:2]
    (image,) = whole_image.get_images()
    assert torch.equal(torch.tensor(image.get_array()), grey[0].unsqueeze(-1).expand(-1, -1, 3)), "not in false colours"
    assert not cut_off.get_images()
    assert [text.get_text() for text in cut_off.texts] == ["damaged image"]
    write([drawing], tmp_path / "figures")


def test_an_image_that_cannot_be_read_counts_for_nothing(album: Path) -> None:
    run = run_of(config("none"), album)
    run.begin_epoch()
    run.take_batch(0)
    images, boxes, labels, usable = run.train_source.batch()
    assert usable.tolist() == [True, True]
    run.network.eval()
    with torch.no_grad():
        each = run._losses(*run.network(images), boxes, labels)
        for counted in ([True, True], [True, False], [False, False]):
            usable = torch.tensor(counted)
            run.train_source.batch = lambda usable=usable: (images, boxes, labels, usable)  # type: ignore[method-assign]
            torch.testing.assert_close(run.batch_loss(), (each * usable).mean())


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides it, but not from those who make it an error
def test_compiled_runs_have_noises_of_their_own(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a row differ from those that were compiled for another in nothing but hooks, where noise is."""
    compile_ = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda *args, **options: compile_(*args, backend="eager", **options))
    found: dict[bool, list[float]] = {}
    for compiled in (False, True):
        torch.compiler.reset()
        for row in ("none", "rotation", "dropout keep 0.9", "none"):
            run = maker(album, CPU, compiled=compiled)(config(row, steps=1))
            run.advance()
            found.setdefault(compiled, []).append(run.losses[0])
    assert found[True] == pytest.approx(found[False], rel=1e-4)
    assert len({round(loss, 5) for loss in found[True]}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop": 100}, "crop must be a multiple of 128, got 100"),
        ({"scales": (700, 600)}, "scales must be a smallest and a largest number of pixels"),
        ({"alpha": 2.0}, "alpha must lie between 0 and 1"),
        ({"backbone": "vgg"}, "backbone must be one of 'resnet18', 'resnet50'"),
        ({"initialization": "coco"}, "initialization must be one of 'random', 'imagenet'"),
        ({"block_sizes": (7,)}, "block_sizes must have one size for each of the last 2 stages"),
    ],
)
def test_configs_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_data_that_do_not_fit_are_refused(album: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are 7 training images, fewer than a batch of 8"):
        run_of(config(batch=8), album)
    with pytest.raises(FileNotFoundError, match=r"resnet18\.pth does not exist"):
        run_of(config(initialization="imagenet"), album)
    other = write_album(tmp_path / "album", {"train": 4, "test": 2})
    edit(other, "test", lambda content: content["categories"][0].update(name="green"))
    with pytest.raises(ValueError, match=r"instances_test\.json must have the categories of instances_train\.json"):
        run_of(config(), other)


def record(row: str, seed: int, ap: float) -> dict[str, Any]:
    found = {c.row: c for c in TABLES["bccd"]()}[row].replace(seed=seed)
    seen = [["RBC", 10, 12, 58, 60, 0.9], ["WBC", 200, 100, 380, 290, 0.7]]
    shown = [{"name": f"{k}.jpg", "size": [480, 640], "true": [["RBC", 11, 11, 60, 60]], "seen": seen} for k in (1, 2)]
    counted = {"train_images": 205, "test_images": 72, "train_boxes": 2804, "test_boxes": 945, "skipped": {}}
    scores = {"ap": ap, "ap50": ap + 20, "ap75": ap + 2}
    measured = {**scores, **counted, "shown": shown, "epochs": 60, "train_loss": [1.0, 0.5], "device": "a GPU"}
    return {"recipe": "bccd", "row": row, "seed": seed, **measured, "config": dataclasses.asdict(found)}


def test_a_table_and_a_picture_from_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"none": [50.0, 50.2, 50.4], "dropout keep 0.9": [49.0, 49.5, 49.4], "rotation": [52.0, 52.3, 52.1]}
    records = [record(row, seed, ap) for row, values in scores.items() for seed, ap in enumerate(values)]
    (tmp_path / "bccd").mkdir()
    for made in records:
        (tmp_path / "bccd" / f"{made['row']}_{made['seed']}.json").write_text(json.dumps(made))
    assert cli.main(["table", "bccd", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| none | 3 | 50.20 ± 0.20 | 36.8 | 70.20 ± 0.20 | 54.6 | 52.20 ± 0.20 | 39.4 | – | – |"
    assert lines[4].startswith(
        "| rotation | 3 | 52.13 ± 0.15 | 38.2 | 72.13 ± 0.15 | 56.2 | 54.13 ± 0.15 | 41.0 | < 0.001 | < 0.001 |"
    )
    drawing = seen_boxes("bccd", records)
    columns = drawing.compute()
    assert columns["by"] == ["true", "true", *["none"] * 4, *["rotation"] * 4]
    write([drawing], tmp_path / "figures")
    drawn = (tmp_path / "figures" / "detections_bccd.svg").read_text()
    assert all(f">{label}<" in drawn for label in ("what is there", "no noise", "rotation", "RBC", "WBC"))
    for shown in records[0]["shown"]:
        shown["seen"] = []
    figure = (blind := seen_boxes("bccd", records)).draw(blind.compute())
    assert len(figure.axes) == 3 * 2, "who sees nothing has a line too"
    titles = {part.title: part for part in whole.sections(tmp_path, figures=False)}
    part = titles["The rows of Table 3 on BCCD’s blood cells"]
    assert part.figure.startswith("<svg")
    assert [caption.partition(":")[0] for _, caption in part.more] == ["Test images"]
    assert "205 images with 2,804 boxes" in part.prose[0]
    assert "Table 3: RetinaNet on COCO" in titles["What is reproduced, and what is not"].finding
