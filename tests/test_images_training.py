"""Training runs of Table 2 on a handful of Imagewoof's images: every row, records, going on, what is left out."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from tests.command_line import said
from tests.image_folders import WOOF, data_set, needs_woof, picture, spoil
from tests.training_runs import _one_thread as _one_thread  # a fixture
from tests.training_runs import assert_resumes, carry_over, finish
from torch import nn

import rotationout as ro
from rotationout import cli
from rotationout.experiments import processes, results, streamed, sweep
from rotationout.experiments.images.config import ImagesConfig
from rotationout.experiments.images.network import build_network
from rotationout.experiments.images.training import ImageClassification, load_image_data
from rotationout.experiments.sources import NO_IMAGE
from rotationout.experiments.tasks import maker
from rotationout.recipes import TABLES
from rotationout.report.table2 import PAPER, section
from rotationout.report.table2 import table as table2

CPU = torch.device("cpu")
ROWS = [row.row for row in TABLES["imagewoof"]()]
TINY = {"layers": [1, 1, 1, 1], "width_per_group": 4}
SMALL: dict[str, Any] = {
    "network_options": TINY,
    "size": 72,  # the smallest whose last maps have room for a block of 3 × 3
    "short_side": 72,
    "batch": 4,
    "steps": 2,
    "milestones": (1,),
    "warmup": 0,
    "precision": "fp32",
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, _one_thread: None) -> None:
    """In this process alone."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)


@pytest.fixture(scope="module")
def handful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image of every class to learn from, and one to test on."""
    root = tmp_path_factory.mktemp("woof")
    for split in ("train", "val"):
        for folder in sorted((WOOF / split).iterdir()):
            (root / split / folder.name).mkdir(parents=True)
            shutil.copy(min(folder.iterdir()), root / split / folder.name)
    return root


@needs_woof
@pytest.mark.parametrize("table", ["imagenet", "imagewoof"])
def test_every_row_of_every_table_runs(table: str, handful: Path, tmp_path: Path) -> None:
    blocks = {"rotation block": (4, 2), "dropblock keep 0.9": (3, 3)}
    rows = [row.replace(**SMALL, block_sizes=blocks.get(row.row, ())) for row in TABLES[table]()]
    make = maker(handful, CPU)
    assert sweep.sweep(rows, make, folder=tmp_path, checkpoints=tmp_path / "kept", together=len(rows)) == []
    records = results.read_records(tmp_path, table)
    assert {record["row"] for record in records} == set(ROWS)
    for record in records:
        assert record["epochs"] == len(record["test_curve"]) == len(record["top5_curve"]) == 1
        assert 0 <= record["last10_top1"] == record["best_top1"] <= record["best_top5"] <= 100
        assert record["best_top5"] > 0
        assert (record["train_images"], record["test_images"], record["classes"]) == (10, 10, 10)
        assert record["skipped"] == {}
        assert record["converted"] == 0
        assert record["images_per_second"] > 0
    page = section(table, records)
    sizes = "dropblock keep 0.9, 3 and 3; rotation block, 4 and 2"
    assert page.prose[1] == f"Side length of the blocks in the third and fourth stage: {sizes}."
    assert page.table is not None
    assert [line[0] for line in page.table.rows] == ROWS
    assert "rotation block, 4 and 2" in page.prose[1]


def test_a_sweep_closes_the_sources_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = streamed.Streamed.close
    monkeypatch.setattr(streamed.Streamed, "close", lambda self: (closed.append(self.split), close(self)))
    row = TABLES["imagewoof"]()[0].replace(**SMALL, held=False)
    root = data_set(tmp_path / "data")
    assert sweep.sweep([row], maker(root, CPU), folder=tmp_path, checkpoints=tmp_path / "kept") == []
    assert closed == ["train", "val"]


def test_the_tables_are_the_papers() -> None:
    for table, batches, epochs in (("imagenet", 5004, 240), ("imagewoof", 35, 80)):
        rows = {row.row: row for row in TABLES[table]()}
        assert list(rows) == list(PAPER) == ROWS
        keep = [(row.noise, round(1 - row.p, 3)) for row in rows.values()]
        assert keep == [
            ("none", 1),
            ("dropout", 0.7),
            ("droppath", 0.9),
            ("spatial", 0.9),
            ("cutout", 0.75),
            ("dropblock", 0.9),
            ("rotation", 0.8),
            ("rotation", 0.8),
        ]
        assert ro.strength.to_lam("dropout", rows["rotation"].p) == pytest.approx(1 / 4)
        for row in rows.values():
            assert row.recipe == table
            assert row.steps == epochs * batches
            assert (row.batch, row.learning_rate, row.momentum, row.weight_decay) == (256, 0.1, 0.9, 1e-4)
            drops = [round(drop * row.steps / 240) for drop in (120, 190, 230)]
            rates = [row.rate_at(step + late) for step in drops for late in (-1, 1)]
            assert rates == pytest.approx([0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4])
            assert ImagesConfig(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
    assert TABLES["imagenet"]()[-1].block_sizes == (7, 3)
    assert {(row.warmup, *row.network_options) for row in TABLES["imagenet"]()} == {(0,)}
    for row in TABLES["imagewoof"]():
        assert [row.rate_at(step) for step in (34, 174, 175)] == pytest.approx([0.02, 0.1, 0.1])
    assert {(row.size, row.short_side, row.held) for row in TABLES["imagenet"]()} == {(224, 256, False)}
    assert {(row.size, row.short_side, row.held) for row in TABLES["imagewoof"]()} == {(128, 128, True)}


def placed(config: ImagesConfig) -> list[tuple[str, str, object]]:
    """Where the noises of a network are, what they are, and the sides of their blocks."""
    return [
        (change.name, type(change.noise).__name__, getattr(change.noise, "block_size", None))
        for change in ro.remove(build_network(config, 10)).changed
    ]


def test_noise_is_where_the_table_says() -> None:
    rows = {row.row: row for row in TABLES["imagenet"]()}
    theirs = build_network(rows["none"], 10)
    report = ro.insert_blocks(theirs, 0.2, block_sizes=(7, 3))
    assert placed(rows["rotation block"]) == [
        (change.name, type(change.noise).__name__, getattr(change.noise, "block_size", None))
        for change in report.changed
    ]
    names = [f"layer{s}.{k}.conv{c}" for s, blocks in ((3, 6), (4, 3)) for k in range(blocks) for c in (1, 2, 3)]
    for row, on_maps, on_vectors in (
        ("rotation", "RotationOut2d", "RotationOut"),
        ("dropout keep 0.7", "Dropout", "Dropout"),
        ("spatial dropout keep 0.9", "Dropout2d", "Dropout"),
        ("dropblock keep 0.9", "DropBlock2d", "Dropout"),
    ):
        found = placed(rows[row])
        assert [(name, kind) for name, kind, _ in found] == [*((name, on_maps) for name in names), ("fc", on_vectors)]
        assert {size for *_, size in found[:-1]} == {7 if row.startswith("dropblock") else None}
    assert placed(rows["cutout"]) == [("conv1", "Cutout", None)]
    assert placed(rows["none"]) == []
    assert sum(p.numel() for p in build_network(rows["none"], 1000).parameters()) == 25_557_032, "torchvision's"


def test_drop_path_drops_residual_branches_and_survives_synchronised_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in TABLES["imagenet"]() if row.noise == "droppath").replace(p=0.5, network_options=TINY)
    network = build_network(row, 10)
    monkeypatch.setattr(processes, "size", lambda: 2)
    network = processes.synchronized(network, CPU)
    drops = {name for name, module in network.named_modules() if type(module).__name__ == "StochasticDepth"}
    assert drops == {"layer3.0.bn3.1", "layer4.0.bn3.1"}
    block = network.get_submodule("layer4.0").train()
    assert type(block.get_submodule("bn3.0")).__name__ == "_GlobalBatchNorm"
    monkeypatch.setattr(processes, "feature_mean", lambda x, *_, **__: (x.mean((0, 2, 3)), x.numel() // x.size(1)))
    x = torch.randn(64, 1024, 2, 2)
    with torch.no_grad():
        dropped = (block(x) == block.get_submodule("downsample")(x).relu()).flatten(1).all(1)
    assert 16 < int(dropped.sum()) < 48, "half of 64: four standard deviations, a false alarm in 10⁴"


def config(row: str = "rotation block", **changes: Any) -> ImagesConfig:
    (found,) = (found for found in TABLES["imagewoof"]() if found.row == row)
    return found.replace(**{**SMALL, "size": 16, "short_side": 16, "steps": 7, "milestones": (4,), **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_set(tmp_path_factory.mktemp("made"), train=6, val=3)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_run_ends_bit_identical(stop: int, held: bool, made: Path, tmp_path: Path) -> None:
    """Stopped inside an epoch of three steps, at its end, and after the learning rate dropped."""
    settings = config(held=held)
    data = load_image_data(settings, made, CPU)
    whole, _ = assert_resumes(lambda: ImageClassification(settings, data, CPU), stop, tmp_path)
    assert len(whole.losses) == 3


def test_a_run_learns(tmp_path: Path) -> None:
    """Dark and bright images, in bf16; five guesses are always right where there are two classes.

    The last maps are larger than 1 × 1: for these, with a stride of 2, torch's gradient of bf16 weights has memory that
    nothing was written to, on CPUs with AMX.
    """
    from PIL import Image

    for split, count in (("train", 16), ("val", 5)):
        for label in range(2):
            folder = tmp_path / split / f"c{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (18, 16), (number + 200 * label,) * 3).save(folder / f"{number}.png")
    changes = {"steps": 20, "milestones": (16,), "batch": 16, "learning_rate": 0.003, "precision": "bf16"}
    settings = config("rotation", **changes, size=40, short_side=40)
    run = ImageClassification(settings, load_image_data(settings, tmp_path, CPU), CPU)
    finish(run)
    assert run.losses[-1] < 0.4 * run.losses[0]
    assert run.result["best_top1"] == 100
    assert run.curves["top5_curve"] == [1.0] * 10
    assert len(run.curves["test_curve"]) == 10


def test_accuracy_with_five_guesses_is_counted_right(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six images whose logits are known, by fours: the last batch is filled up with padding."""
    settings = config("none")
    monkeypatch.setattr(ImageClassification, "test_rows", 4)
    run = ImageClassification(settings, load_image_data(settings, made, CPU), CPU)
    ranks = iter([1, 5, 6, 1, 4, 2])

    class Known(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            _, labels = run.test_source.batch()
            logits = torch.arange(10.0, 0.0, -1.0).repeat(len(x), 1)
            for row, label in zip(logits, labels.tolist(), strict=True):
                place = next(ranks) - 1 if label != NO_IMAGE else label
                row[[label, place]] = row[[place, label]]
            return logits

    run.network = Known()
    assert run.test() == {"test_curve": 2 / 6, "top5_curve": 5 / 6}


@pytest.mark.parametrize("held", [True, False])
def test_what_is_left_out_is_in_the_record(held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad image to learn from and one to test on, and two in other colours; and the last batch is met whole."""
    root = data_set(tmp_path / "data", train=8, val=6)
    spoil(root / "train" / "n0" / "03.JPEG", "damaged image")
    spoil(root / "val" / "n1" / "05.JPEG", "no image")
    (root / "train" / "n1" / "01.JPEG").write_bytes(picture(0, (16, 16), mode="L"))
    (root / "val" / "n1" / "01.JPEG").write_bytes(picture(0, (16, 16), mode="CMYK"))
    settings = config(held=held, batch=5, steps=6)
    places = {"folder": tmp_path / "r", "checkpoints": tmp_path / "c"}
    assert sweep.sweep([settings], maker(root, CPU), **places) == []
    (record,) = results.read_records(tmp_path / "r", "imagewoof")
    assert record["skipped"] == {"train": {"damaged image": 1}, "val": {"no image": 1}}
    assert record["skipped_names"] == ["train/n0/03.JPEG: damaged image", "val/n1/05.JPEG: no image"]
    assert (record["train_images"], record["test_images"], record["converted"]) == (15, 11, 2)
    assert all(11 * score == pytest.approx(round(11 * score), abs=1e-3) for score in record["test_curve"])
    said = capsys.readouterr().err
    assert said.count("train, n0/03.JPEG is damaged or cut off") == 1
    assert said.count("val, n1/05.JPEG is not an image in a format that Pillow knows; it is left out") == 1


def test_an_image_that_cannot_be_read_counts_for_nothing(made: Path) -> None:
    """In the loss of a batch, also if there is no other in it."""
    settings = config("none")
    run = ImageClassification(settings, load_image_data(settings, made, CPU), CPU)
    run.begin_epoch()
    run.take_batch(0)
    run.network.eval()
    images, labels = run.train_source.batch()
    with torch.no_grad():
        each = nn.functional.cross_entropy(run.network(images), labels, reduction="none")
    for bad in ([], [1, 3], [0, 1, 2, 3]):
        seen = labels.index_fill(0, torch.tensor(bad, dtype=torch.int64), NO_IMAGE)
        run.train_source.batch = lambda seen=seen: (images, seen)  # type: ignore[method-assign]
        good = [place for place in range(4) if place not in bad]
        loss = run.batch_loss()
        loss.backward()
        torch.testing.assert_close(loss.detach(), each[good].mean() if good else torch.tensor(0.0))
    assert all(parameter.grad.isfinite().all() for parameter in run.network.parameters())


def test_what_was_met_on_the_way_is_kept_in_checkpoints(tmp_path: Path) -> None:
    root = data_set(tmp_path / "data", train=8, val=3)
    spoil(root / "train" / "n0" / "03.JPEG", "empty file")
    (root / "train" / "n1" / "01.JPEG").write_bytes(picture(0, (16, 16), mode="L"))
    settings = config(held=False, batch=4, steps=5)
    data = load_image_data(settings, root, CPU)
    first, second = (ImageClassification(settings, data, CPU) for _ in range(2))
    for _ in range(4):
        first.advance()
    carry_over(first, second, tmp_path)
    assert second.facts["skipped"] == {"train": {"empty file": 1}}
    assert second.facts["converted"] == 1
    assert second.facts["images_per_second"] is None, "it has learnt nothing itself"


def test_the_commands(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", str(made), "packed"]) == 0
    options = ["--network-options", json.dumps(TINY), "--size", "16", "--short-side", "16", "--device", "cpu"]
    common = ["--data", "packed", "--out", "r", *options, "--precision", "fp32", "--steps", "2", "--batch", "4"]
    assert cli.main(["train", "imagewoof", "--row", "rotation", *common]) == 0
    (name,) = (path.name for path in Path("r").iterdir())
    capsys.readouterr()
    assert cli.main(["table", name, "--out", "r"]) == 0
    printed = capsys.readouterr().out
    assert "| rotation | 1 | " in printed
    assert " | 77.87 ± 0.34 | " in printed
    for code, wrong, message in (
        (1, ["--batch", "64"], "there are 12 training images, fewer than a batch of 64"),
        (1, ["--test-split", "test"], "has no folder for each class, and there is no test.pt"),
        (2, ["--short-side", "8"], "short_side must be at least size = 16, got 8"),
        (2, ["--last-stages", "5"], "noise can be in the last 4 stages at most, got 5"),
        (2, ["--block-sizes", "3"], "block_sizes must have one size for each of the last 2 stages, got (3,)"),
        (2, ["--stages", "3"], "imagewoof has no such field"),
    ):
        assert cli.main(["train", "imagewoof", *common, *wrong]) == code
        assert message in said(capsys)


def test_a_table_from_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"none": [80.0, 80.2, 80.1], "dropout keep 0.7": [80.5, 80.6, 80.4], "rotation": [82.0, 82.3, 82.1]}
    for row, values in scores.items():
        for seed, value in enumerate(values):
            found = {c.row: c for c in TABLES["imagewoof"]()}[row].replace(seed=seed)
            measured = {"last10_top1": value, "best_top1": value + 1, "last10_top5": value + 10, "classes": 10}
            measured |= {"train_images": 900, "test_images": 90, "epochs": 80, "device": "a GPU", "skipped": {}}
            results.write_record(results.record_path(tmp_path, found), found, measured)
    assert cli.main(["table", "imagewoof", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| row | runs | top-1, % | the paper's, ImageNet | best epoch, % | top-5, % |")
    assert lines[2].startswith("| none | 3 | 80.10 ± 0.10 | 76.51 ± 0.07 | 81.10 ± 0.10 | 90.10 ± 0.10 | 93.20 ± 0.05")
    assert lines[4].startswith("| rotation | 3 | 82.13 ± 0.15 | 77.87 ± 0.34 | 83.13 ± 0.15 | 92.13 ± 0.15 | 93.94")
    assert lines[4].endswith("| < 0.001 | < 0.001 |")
    assert lines[6].startswith("80 epochs on 900 images of 10 classes, crops of 128 pixels, batches of 256; ")
    assert "Side length of the blocks in the third and fourth stage: none." in lines
    assert lines[-1].startswith(
        "Rotation is ahead of no noise (+2.03 points, p-value < 0.001) and dropout keep 0.7 (+1.63 "
    )
    records = results.read_records(tmp_path, "imagewoof")
    assert [line[0] for line in table2(records).rows] == list(scores)
