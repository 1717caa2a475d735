"""Detection: annotations and what is wrong with them, images, and windows on them with their boxes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.detection_album import BCCD, BLUE, RED, edit, needs_bccd, painted, some_of_bccd, write_album
from torch.nn import functional as F

from rotationout.experiments import problems, streamed
from rotationout.experiments.detection import crops
from rotationout.experiments.detection.annotations import corners, ground_truth, read_split
from rotationout.experiments.detection.sources import HeldWindows, LoadedSplit, LoadedWindows, hold, read_image
from rotationout.experiments.problems import UnusableError
from rotationout.experiments.sources import NO_IMAGE

CPU = torch.device("cpu")


@pytest.fixture
def album(tmp_path: Path) -> Path:
    return write_album(tmp_path / "album", {"train": 12, "test": 3})


def test_a_split_is_read_as_it_is(album: Path) -> None:
    split = read_split(album, "train")
    assert (len(split), split.max_boxes, split.problems) == (12, 2, [])
    assert split.categories == {3: "red", 8: "blue"}
    assert split.sizes.tolist() == [[96, 128]] * 12
    assert split.ids[:2] == [100, 99]
    boxes, labels = split.boxes_of(1)
    assert labels.tolist() == [0, 1]
    pixels, converted = read_image(split, 1)
    assert not converted
    for box, colour in zip(boxes.int().tolist(), (RED, BLUE), strict=True):
        left, top, right, bottom = box
        assert (pixels[:, top:bottom, left:right] == torch.tensor(colour).view(3, 1, 1)).all()


@needs_bccd
def test_bccd_is_read_whole() -> None:
    counts = {"train": (205, 2804), "val": (87, 1137), "test": (72, 945)}
    for name, (images, boxes) in counts.items():
        split = read_split(BCCD, name)
        assert (len(split), len(split.boxes), len(split.problems)) == (images, boxes, 0)
        assert list(split.categories.values()) == ["WBC", "RBC", "Platelets"]


@needs_bccd
def test_cocos_layout_has_a_folder_for_each_split(tmp_path: Path) -> None:
    root = some_of_bccd(tmp_path, names=("train2017", "val2017"))
    split = read_split(root, "val2017")
    assert len(split) == 3
    assert split.paths[0].parent == root / "val2017"


@pytest.mark.parametrize(
    ("bbox", "reason"),
    [
        ([10, 10, 0, 5], "box without size"),
        ([10, 10, 5, -3], "box without size"),
        ([200, 10, 5, 5], "box outside its image"),
        ([-20, 10, 20, 5], "box outside its image"),
        ([10, 96, 5, 5], "box outside its image"),
        ([10, 10, 5], "malformed box"),
        ([10, 10, 5, float("nan")], "malformed box"),
        ([10, 10, 5, "5"], "malformed box"),
        ([10**400, 10, 5, 5], "malformed box"),
        ([10, -(10**400), 5, 5], "malformed box"),
        (None, "malformed box"),
    ],
)
def test_a_bad_box_is_left_out_by_name(bbox: Any, reason: str, album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][5]["bbox"] = bbox

    edit(album, "train", spoil)
    split = read_split(album, "train")
    assert problems.facts(split.problems) == {
        "skipped": {"train": {reason: 1}},
        "skipped_names": [f"train/train_2.png, box 5: {reason}"],
    }
    assert "train_2.png, box 5: " in capsys.readouterr().err
    assert len(split) == 12
    boxes, labels = split.padded_boxes(2)
    assert labels.tolist() == [0, -1]
    assert boxes[1].count_nonzero() == 0
    assert torch.equal(boxes[:1], split.boxes_of(2)[0])
    assert len(ground_truth(split.source)["annotations"]) == 23, "nor is it scored against"


def test_a_box_that_sticks_out_is_clipped(album: Path) -> None:
    assert corners([-5, -5, 20, 200], 128, 96) == (0, 0, 15, 96)
    assert corners([100, 20, 30, 10], 128, 96) == (100, 20, 128, 30)
    edit(album, "train", lambda content: content["annotations"][0].update(bbox=[100, 20, 30, 10], area=None))
    split = read_split(album, "train")
    assert split.boxes[0].tolist() == [100, 20, 128, 30]
    scored = ground_truth(split.source)["annotations"][0]
    assert (scored["bbox"], scored["area"]) == ([100, 20, 28, 10], 280), "what is learnt is what is scored against"


@pytest.mark.parametrize(
    ("field", "value", "reason", "where"),
    [
        ("image_id", 7, "annotation without image", "instances_train.json"),
        ("image_id", [98], "annotation without image", "instances_train.json"),
        ("category_id", 4, "unknown category", "train_2.png"),
        ("category_id", {}, "unknown category", "train_2.png"),
    ],
)
def test_annotations_of_what_is_not_there(field: str, value: object, reason: str, where: str, album: Path) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][4][field] = value

    edit(album, "train", spoil)
    split = read_split(album, "train")
    assert [(problem.reason, problem.name) for problem in split.problems] == [(reason, f"{where}, box 4")]
    assert len(split.boxes) == len(ground_truth(split.source)["annotations"]) == 23


def test_crowds_are_not_learnt_but_scored(album: Path) -> None:
    edit(album, "train", lambda content: content["annotations"][0].update(iscrowd=1))
    split = read_split(album, "train")
    assert (len(split.boxes), split.problems) == (23, [])
    assert sum(annotation["iscrowd"] for annotation in ground_truth(split.source)["annotations"]) == 1
    edit(album, "train", lambda content: content["annotations"][1].update(area=None, iscrowd=None))
    _, second, *_ = ground_truth(split.source)["annotations"]
    assert second["iscrowd"] == 0
    assert second["area"] == second["bbox"][2] * second["bbox"][3], "pycocotools compares it with numbers"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_size(path: Path) -> None:
    from torchvision.io import write_png

    write_png(painted(64, 128, []), str(path))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "missing image"),
        (cut_off, "damaged image"),
        (lambda path: path.write_bytes(b""), "empty file"),
        (lambda path: path.write_text("not an image"), "no image"),
        (of_another_size, "image of another size"),
    ],
)
def test_a_bad_image_is_left_out_by_name(
    spoil: Callable[[Path], None],
    reason: str,
    album: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether it is held or read on the way, where it counts for nothing in its batch."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    before = read_split(album, "train")
    spoil(album / "images" / "train_3.png")
    held = hold(read_split(album, "train"), 128, CPU)
    assert [(problem.name, problem.reason) for problem in held.split.problems] == [("train_3.png", reason)]
    assert "train, train_3.png " in capsys.readouterr().err
    assert (len(held), len(held.pixels), len(held.boxes)) == (11, 11, 11)
    assert held.split.ids[3] == 96
    torch.testing.assert_close(held.boxes, torch.stack([held.split.padded_boxes(i)[0] for i in range(11)]))
    source = LoadedSplit(before, 128).source(2, CPU, (100, 160))  # that was read when the image was still there
    source.begin(source.fixed_plan()[2:4].unsqueeze(0))
    source.take(0)
    _, boxes, labels, usable = source.batch()
    assert usable.tolist() == [True, False]
    assert labels.tolist() == [[0, 1], [-1, -1]]
    assert boxes[1].count_nonzero() == 0
    assert [(problem.name, problem.reason) for problem in source.problems] == [("train_3.png", reason)]


@needs_bccd
def test_a_jpeg_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    root = some_of_bccd(tmp_path, train=1, test=1)
    split = read_split(root, "train")
    assert read_image(split, 0)[0].shape == (3, 480, 640)
    cut_off(split.paths[0])
    with pytest.raises(UnusableError, match=r"^BloodImage_\d+\.jpg is damaged or cut off"):
        read_image(split, 0)


def test_an_image_without_a_usable_box_is_left_out(album: Path) -> None:
    def spoil(content: dict[str, Any]) -> None:
        for annotation in content["annotations"][4:6]:
            annotation["bbox"] = [0, 0, 0, 0]

    edit(album, "train", spoil)
    split = read_split(album, "train")
    assert problems.counts(split.problems) == {"box without size": 2, "no usable box": 1}
    assert len(split) == 11
    assert 98 not in split.ids


def test_an_image_without_any_box_stays(album: Path) -> None:
    def empty(content: dict[str, Any]) -> None:
        content["annotations"] = content["annotations"][2:]

    edit(album, "train", empty)
    split = read_split(album, "train")
    assert (len(split), split.problems) == (12, [])
    assert split.padded_boxes(0)[1].tolist() == [-1, -1]


def lose(content: dict[str, Any], count: int) -> None:
    for annotation in content["annotations"][:count]:
        annotation["bbox"] = [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: lose(content, 3), "3 of 24 boxes of 'train' cannot be used, more than one in ten"),
        (lambda content: content.pop("images"), "not an annotation file in COCO's format"),
        (lambda content: content["images"][0].pop("width"), "a file_name, a width and a height"),
        (lambda content: content["images"][0].update(id=99), "an id of its own"),
        (lambda content: content["images"][0].update(id="100"), "ids are integers"),
        (lambda content: content["images"][0].update(height="96"), "a width and a height"),
        (lambda content: content["images"][0].update(width=0), "a width and a height"),
        (lambda content: content["categories"][0].update(id=3.5), "ids are integers"),
        (lambda content: content["annotations"].append(None), "not an annotation file in COCO's format"),
        (lambda content: content["images"].append(7), "not an annotation file in COCO's format"),
        (lambda content: content.update(categories=[]), "12 images and 0 categories"),
        (lambda content: content.update(annotations=[]), "has no box to learn or to find: a split needs at least one"),
        (lambda content: [box.update(iscrowd=1) for box in content["annotations"]], "is not of a crowd"),
    ],
)
def test_files_that_are_wrong_are_refused(change: Any, message: str, album: Path) -> None:
    edit(album, "train", change)
    with pytest.raises(ValueError, match=message):
        read_split(album, "train")


def test_paths_that_are_wrong_are_refused(album: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"instances_val\.json does not exist; it has test, train"):
        read_split(album, "val")
    (album / "annotations" / "instances_test.json").write_text("{")
    with pytest.raises(ValueError, match="not an annotation file"):
        read_split(album, "test")
    for place in range(2):
        (album / "images" / f"train_{place}.png").unlink()
    with pytest.raises(ValueError, match="2 of 12 images of 'train' cannot be used"):
        read_split(album, "train")
    (album / "images").rename(album / "pictures")
    with pytest.raises(FileNotFoundError, match="they must be in train/, images/train/ or images/"):
        read_split(album, "train")


def test_images_that_are_missing_and_damaged_ones_count_together(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of twelve is less than a tenth, two are more, wherever they are noticed."""
    monkeypatch.setattr(streamed, "workers", lambda: 0)
    (album / "images" / "train_3.png").unlink()
    split = read_split(album, "train")
    cut_off(album / "images" / "train_7.png")
    together = "2 of 12 images of 'train' cannot be used, more than one in ten .missing image: 1, damaged image: 1"
    with pytest.raises(ValueError, match=together):
        hold(split, 128, CPU)
    source = LoadedSplit(split, 128).source(11, CPU, (100, 160))
    source.begin(source.fixed_plan().unsqueeze(0))
    with pytest.raises(ValueError, match=together):
        source.take(0)


WINDOW = 128


def colour_of(pixels: torch.Tensor, colour: tuple[int, ...]) -> torch.Tensor:
    """Where an image has a colour, about."""
    return ((pixels.float() - torch.tensor(colour).view(3, 1, 1)).abs() < 50).all(0)


@pytest.mark.parametrize("seed", range(12))
def test_boxes_stay_on_their_objects(seed: int) -> None:
    """A rectangle is painted; after random scales, crops and mirrors the box is where its colour is."""
    source = torch.Generator().manual_seed(seed)
    box = (1, 30, 40, 110, 90)
    pixels = painted(120, 160, [box], seed).unsqueeze(0).expand(8, -1, -1, -1)
    sizes, plans = torch.tensor([[120, 160]] * 8), crops.draw_plans(8, (100, 280), source)
    boxes, labels = torch.tensor([[box[1:]]]).float().expand(8, -1, -1), torch.ones(8, 1, dtype=torch.int64)
    seen = crops.cut(pixels, sizes, plans, WINDOW)
    moved, left = crops.move(boxes, labels, sizes, plans, WINDOW)
    assert (left >= 0).sum() >= 3
    for image, found, label, plan in zip(seen, moved[:, 0], left[:, 0].tolist(), plans, strict=True):
        blue = colour_of(image, BLUE)
        if label < 0:  # there is little to be seen of it: a fourth, and half a pixel around
            assert found.tolist() == [0, 0, 0, 0]
            assert blue.sum() < 0.25 * 80 * 50 * (plan[0] / 160) ** 2 + 130
            continue
        rows, columns = blue.any(1).nonzero(), blue.any(0).nonzero()
        where = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert found.tolist() == pytest.approx([float(edge) for edge in where], abs=1.01)


@pytest.mark.parametrize("longer", [100, 128, 200, 280])
def test_the_window_lies_on_the_image_or_the_image_in_the_window(longer: int) -> None:
    """Along each side: no fill where the image is longer than the window, all of it where it is shorter."""
    pixels, sizes = torch.full((64, 3, 90, 160), 255, dtype=torch.uint8), torch.tensor([[90, 160]] * 64)
    plans = crops.draw_plans(64, (longer, longer), torch.Generator().manual_seed(0))
    white = (crops.cut(pixels, sizes, plans, WINDOW) == 255).all(1)
    for shown, side in ((white.any(1).sum(1), 160), (white.any(2).sum(1), 90)):
        expected = min(WINDOW, side * longer / 160)
        assert (shown - expected).abs().max() <= 1
    if longer == 100:
        first = white.any(1).int().argmax(1)
        assert len(first.unique()) > 10, "it lies anywhere"


def test_what_is_hardly_seen_is_dropped() -> None:
    """A box of 40 pixels at the left border of an image of 256; the window lies so far to the right."""
    size, labels = torch.tensor([[128, 256]]), torch.zeros(1, 1, dtype=torch.int64)
    box = torch.tensor([[[0.0, 10, 40, 50]]])
    for hidden, kept in ((0, True), (29, True), (31, False), (45, False)):
        plan = torch.tensor([[256, hidden / 128, 0, 0]])
        moved, left = crops.move(box, labels, size, plan, 128)
        assert (left.item() == 0) is kept
        assert moved[0, 0].tolist() == ([0, 10, 40 - hidden, 50] if kept else [0] * 4)
        mirrored, _ = crops.move(box, labels, size, plan + torch.tensor([[0, 0, 0, 1]]), 128)
        if kept:
            assert mirrored[0, 0].tolist() == [128 - (40 - hidden), 10, 128, 50]


def test_a_still_window_shows_the_image_as_it_is() -> None:
    pixels = torch.stack([painted(96, 128, [], seed) for seed in (0, 1)])
    sizes = torch.tensor([[96, 128], [80, 128]])
    seen = crops.cut(pixels, sizes, crops.fixed_plans(2, 128), 128)
    torch.testing.assert_close(seen[0, :, :96], pixels[0])
    torch.testing.assert_close(seen[1, :, :80], pixels[1, :, :80])
    fill = torch.tensor(crops.FILL, dtype=torch.uint8).view(3, 1, 1)
    assert (seen[0, :, 96:] == fill).all()
    assert (seen[1, :, 80:] == fill).all(), "not what other images have there"
    boxes = torch.tensor([[10.0, 20, 30, 40]])
    torch.testing.assert_close(crops.restore(boxes, torch.tensor([480, 640]), 128), 5 * boxes)


def test_scaling_is_torchs_bilinear() -> None:
    """The whole image made larger, and a crop of it."""
    pixels = painted(128, 128, [(0, 10, 20, 60, 90)]).unsqueeze(0)
    size = torch.tensor([[128, 128]])
    expected = F.interpolate(pixels.float(), size=(192, 192), mode="bilinear", align_corners=False)
    seen = crops.cut(pixels, size, torch.tensor([[192.0, 0.25, 1, 0]]), 128).float()
    torch.testing.assert_close(seen, expected[:, :, 64:, 16:144], atol=0.501, rtol=0)  # it is rounded


def test_held_images_and_those_read_on_the_way_are_the_same(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in another process, from the middle of an epoch on, and where padding fills up a batch."""
    split = read_split(album, "train")
    held = hold(split, 128, CPU).source(3, CPU, (100, 160))
    plan = held.draw(torch.Generator().manual_seed(0))
    assert sorted(plan[:, 0].tolist()) == list(range(12))
    plan[10, 0] = NO_IMAGE
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for workers, places in ((0, [0, 1, 2, 3]), (1, [2, 2, 3])):
        monkeypatch.setattr(streamed, "workers", lambda workers=workers: workers)
        source = LoadedSplit(split, 128).source(3, CPU, (100, 160))
        assert torch.equal(source.draw(torch.Generator().manual_seed(0))[:10], plan[:10])
        assert torch.equal(source.fixed_plan(), held.fixed_plan())
        for one in (held, source):
            one.begin(plan.unflatten(0, (-1, 3)))
        for place in places:
            expected, found = windows(held, place), windows(source, place)
            assert found[3].tolist() == expected[3].tolist() == [True, place < 3, True]
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine[expected[3]], theirs[expected[3]])
    assert torch.equal(torch.get_rng_state(), before), "reading draws no numbers of the run's"


def windows(source: HeldWindows | LoadedWindows, place: int) -> list[torch.Tensor]:
    source.take(place)
    return [tensor.clone() for tensor in source.batch()]
