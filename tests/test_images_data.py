"""Folders of images: what is read, left out and refused, how it is packed, held and cropped, and read on the way."""

import io
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from rotationout import cli
from rotationout.experiments import streamed
from rotationout.experiments.images.crops import centre_boxes, draw_boxes, resample
from rotationout.experiments.images.files import check_classes, open_split, pack
from rotationout.experiments.images.held import HeldImages, fit, hold
from rotationout.experiments.images.loaded import LoadedImages, LoadedSource
from rotationout.experiments.pixels import MEAN, STD, Normalize
from rotationout.experiments.problems import counts
from rotationout.experiments.sources import NO_IMAGE, Source

WOOF = Path(__file__).parents[2] / "shared" / "data" / "imagewoof"
needs_woof = pytest.mark.skipif(not WOOF.is_dir(), reason=f"Imagewoof is not at {WOOF}")
CPU = torch.device("cpu")


def picture(seed: int, size: tuple[int, int] = (20, 16), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    bands = {"RGB": 3, "L": 1, "CMYK": 4, "P": 1, "RGBA": 4}[mode]
    source = torch.Generator().manual_seed(seed)
    content = torch.randint(256, (size[0] * size[1] * bands,), dtype=torch.uint8, generator=source)
    file = io.BytesIO()
    Image.frombytes(mode, size, bytes(content.tolist())).save(file, kind)
    return file.getvalue()


def data_set(root: Path, classes: int = 2, train: int = 12, val: int = 4) -> Path:
    """Of random images, with something beside them that is none."""
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            folder = root / split / f"n{label}"
            folder.mkdir(parents=True)
            (folder / "Thumbs.db").write_bytes(b"no image")
            for number in range(count):
                shape = (16 + number % 5, 16) if number % 2 else (16, 16 + number % 5)
                (folder / f"{number:02}.JPEG").write_bytes(picture(100 * label + number + len(split), shape))
    return root


def test_folders_are_read_as_torchvision_reads_them(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    files, theirs = open_split(data_set(tmp_path), "train"), ImageFolder(str(tmp_path / "train"))
    assert files.classes == theirs.classes
    assert [(str(tmp_path / "train" / name), label) for name, label in zip(files.names, files.labels, strict=True)] == (
        theirs.samples
    )
    check_classes(files, open_split(tmp_path, "val"))


def test_packed_files_are_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = data_set(tmp_path / "data")
    assert cli.main(["images", str(root), str(tmp_path / "packed")]) == 0
    assert "train.pt: 0.0 MB" in capsys.readouterr().out
    for split in ("train", "val"):
        files, packed = open_split(root, split), open_split(tmp_path / "packed", split)
        assert (files.split, files.classes, files.names, files.labels) == (
            packed.split,
            packed.classes,
            packed.names,
            packed.labels,
        )
        assert [files.read(i) for i in range(len(files))] == [packed.read(i) for i in range(len(packed))]
    whole = (tmp_path / "packed" / "val.pt").read_bytes()
    (tmp_path / "packed" / "val.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="does not hold packed images, or is damaged"):
        open_split(tmp_path / "packed", "val")
    (tmp_path / "packed" / "train.pt").rename(tmp_path / "packed" / "val.pt")
    with pytest.raises(ValueError, match="does not hold the images of 'val'"):
        open_split(tmp_path / "packed", "val")


def test_what_cannot_be_read_is_packed_as_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So training leaves out the same images from folders and from packed files."""
    root = data_set(tmp_path / "data", train=15)
    for label, what in enumerate(("a broken link", "a folder")):
        path = root / "train" / f"n{label}" / "03.JPEG"
        path.unlink()
        path.mkdir() if what == "a folder" else path.symlink_to(tmp_path / "nowhere.jpg")
    assert cli.main(["images", str(root), str(tmp_path / "packed")]) == 0
    told = capsys.readouterr().err
    assert "train, n0/03.JPEG is missing; it is packed as an empty file, which is left out" in told
    assert "train, n1/03.JPEG cannot be read: " in told
    found = {}
    for place in ("data", "packed"):
        images = hold(open_split(tmp_path / place, "train"), 16, 16, CPU)
        found[place] = images.pixels
        assert [problem.name for problem in images.problems] == ["n0/03.JPEG", "n1/03.JPEG"]
    assert torch.equal(found["data"], found["packed"])
    for number in range(2):
        (root / "train" / "n0" / f"{number:02}.JPEG").unlink()
        (root / "train" / "n0" / f"{number:02}.JPEG").mkdir()
    assert cli.main(["images", str(root), str(tmp_path / "again")]) == 1
    assert "4 of 30 images of 'train' cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "again" / "train.pt").exists()


def test_folders_that_are_wrong_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match="the path must be that of a folder with train/<class>/<image>"):
        open_split(tmp_path, "train")
    root = data_set(tmp_path)
    (root / "val" / "n7").mkdir()
    with pytest.raises(ValueError, match="n7 has no images"):
        open_split(root, "val")
    (root / "val" / "n7" / "a.png").write_bytes(picture(0, kind="PNG"))
    with pytest.raises(ValueError, match="1 classes of 'val' are not in 'train': n7; both must have the same folders"):
        check_classes(open_split(root, "train"), open_split(root, "val"))
    (root / "train" / "n7").mkdir()
    (root / "train" / "n8").mkdir()
    for name in ("n7", "n8"):
        (root / "train" / name / "a.png").write_bytes(picture(0, kind="PNG"))
    with pytest.raises(ValueError, match="1 classes of 'train' are not in 'val': n8"):
        check_classes(open_split(root, "train"), open_split(root, "val"))
    (tmp_path / "empty").mkdir()
    assert cli.main(["images", str(tmp_path / "empty"), str(tmp_path / "p")]) == 1
    assert "has no folder for each class" in capsys.readouterr().err


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "damaged image": lambda content: content[: len(content) // 2],
    "empty file": lambda content: b"",
    "no image": lambda content: b"GIF, or so it says",
}


def spoil(path: Path, how: str) -> None:
    path.write_bytes(SPOILT[how](path.read_bytes()))


def test_bad_images_are_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = data_set(tmp_path, train=40) / "train" / "n1"
    for number, how in enumerate(SPOILT):
        spoil(folder / f"{number:02}.JPEG", how)
    (folder / "03.JPEG").unlink()
    (folder / "03.JPEG").mkdir()  # what cannot be read
    images = hold(open_split(tmp_path, "train"), 16, 16, CPU)
    assert len(images) == 80 - 4
    assert counts(images.problems) == {**dict.fromkeys(SPOILT, 1), "unreadable file": 1}
    told = capsys.readouterr().err
    for number in range(4):
        assert f"train, n1/{number:02}.JPEG " in told
    assert images.labels.tolist() == [0] * 40 + [1] * 36


def test_too_many_bad_images_are_refused(tmp_path: Path) -> None:
    root = data_set(tmp_path)
    for number in range(3):
        spoil(root / "train" / "n0" / f"{number:02}.JPEG", "empty file")
    with pytest.raises(ValueError, match=r"3 of 24 images of 'train' cannot be used, .*: n0/00.JPEG is empty"):
        hold(open_split(root, "train"), 16, 16, CPU)
    lonely = root / "train" / "n2"
    lonely.mkdir()
    (lonely / "a.jpg").write_bytes(b"")
    for number in range(3):
        (root / "train" / "n0" / f"{number:02}.JPEG").unlink()
    with pytest.raises(ValueError, match="no image of train/n2 can be used"):
        hold(open_split(root, "train"), 16, 16, CPU)


@pytest.mark.parametrize(("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG")])
def test_other_colours_become_rgb(mode: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "train" / "a"
    folder.mkdir(parents=True)
    content = picture(3, (16, 16), mode, kind)
    (folder / "a.png").write_bytes(content)
    (folder / "b.png").write_bytes(picture(4, (16, 16), kind="PNG"))
    images = hold(open_split(tmp_path, "train"), 16, 16, CPU)
    assert images.converted == 1
    assert not images.problems
    expected = V.pil_to_tensor(Image.open(io.BytesIO(content)).convert("RGB"))
    assert torch.equal(images.pixels[0], expected)


def test_pixels_are_normalised_as_torchvision_does() -> None:
    """With the same numbers, red first."""
    preset = ResNet50_Weights.IMAGENET1K_V1.transforms()
    image = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = V.normalize(V.to_dtype(image, scale=True), preset.mean, preset.std)
    torch.testing.assert_close(Normalize(torch.device("cpu"))(image), expected)


def test_images_that_are_large_are_made_small() -> None:
    wide = Image.frombytes("RGB", (600, 90), bytes(range(256)) * 632 + bytes(208))
    small = fit(wide, 60)
    assert small.size == (80, 60)
    expected = V.resized_crop(V.pil_to_tensor(wide), 0, 240, 90, 120, [60, 80], antialias=True)
    inside = slice(1, -1)  # at the borders Pillow looks at what is beyond them
    assert (V.pil_to_tensor(small).int() - expected.int())[..., inside].abs().max() <= 1
    assert fit(wide.rotate(90, expand=True), 60).size == (60, 80)
    assert fit(Image.new("RGB", (1, 1)), 60).size == (60, 60)


def test_boxes_are_drawn_as_torchvision_draws_them() -> None:
    """Means of area, ratio, place and mirroring, beside those of RandomResizedCrop.

    Six standard errors of the difference: a false alarm in 10⁸ for each of twelve numbers.
    """
    for shape in ((40, 53), (40, 200)):  # of the long one no box may fit
        ours = draw_boxes(torch.tensor([shape] * 4000), torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        crop, blank = v2.RandomResizedCrop(10), torch.zeros(1, *shape)
        drawn = [crop.make_params([blank]) for _ in range(4000)]
        theirs = torch.tensor([[d["top"], d["left"], d["height"], d["width"]] for d in drawn])
        for mine, other in zip(_features(ours), _features(theirs), strict=True):
            error = ((mine.var() + other.var()) / 4000).sqrt()
            assert abs(mine.mean() - other.mean()) <= 6 * error + 1e-9
        assert abs(ours[:, 4].double().mean() - 0.5) < 6 * 0.5 / 4000**0.5
        assert (ours[:, :4] >= torch.tensor([0, 0, 1, 1])).all()
        ends = ours[:, :2] + ours[:, 2:4]
        assert (ends <= torch.tensor(shape)).all()
        for axis in (0, 1):  # also where they need not
            assert ((ends[:, axis] == shape[axis]) & (ours[:, 2 + axis] < shape[axis])).any()


def _features(boxes: torch.Tensor) -> list[torch.Tensor]:
    top, left, height, width = boxes[:, :4].double().unbind(1)
    return [height * width, (width / height).log(), top, left, top.square(), left.square()]


def test_where_no_box_fits_the_largest_in_the_middle_is_taken() -> None:
    boxes = draw_boxes(torch.tensor([[10, 1000], [1000, 10]]), torch.Generator().manual_seed(0))
    assert boxes[:, :4].tolist() == [[0, 493, 10, 13], [493, 0, 13, 10]]


@pytest.mark.parametrize("size", [12, 32, 70])
def test_crops_are_those_of_torchvision(size: int) -> None:
    """Smaller, larger and both, mirrored or not, each of images in one tensor, with rubbish around them."""
    pixels = torch.randint(256, (30, 3, 44, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    boxes = draw_boxes(torch.tensor([[40, 53]] * 30), torch.Generator().manual_seed(1))
    assert 0 < boxes[:, 4].sum() < 30
    with torch.autocast("cpu", torch.bfloat16):
        found = resample(pixels, boxes, size)
    assert found.dtype == torch.float32
    for crop, image, (*box, mirrored) in zip(found, pixels, boxes.tolist(), strict=True):
        expected = V.resized_crop(image.float(), *box, [size, size], antialias=True)
        torch.testing.assert_close(crop, expected.flip(-1) if mirrored else expected, atol=1e-3, rtol=0)


def test_the_middle_is_torchvisions() -> None:
    sizes = torch.tensor([[16, 21], [19, 16], [16, 16], [18, 17]])
    for (height, width), box in zip(sizes.tolist(), centre_boxes(sizes, 16), strict=True):
        image = torch.randint(256, (1, 3, height, width), dtype=torch.uint8)
        assert torch.equal(resample(image, box.unsqueeze(0), 16)[0], V.center_crop(image[0], [16, 16]).float())


def normal(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def held(root: Path, split: str = "train") -> HeldImages:
    return hold(open_split(root, split), 16, 16, CPU)


def test_a_held_batch_is_what_its_plan_says(tmp_path: Path) -> None:
    images = held(data_set(tmp_path))
    source = images.source(4, CPU)
    plan = source.draw(torch.Generator().manual_seed(0))
    assert sorted(plan[:, 0].tolist()) == list(range(24))
    source.begin(plan.unflatten(0, (-1, 4)))
    source.take(2)
    crops, labels = source.batch()
    assert torch.equal(labels, images.labels[plan[8:12, 0]])
    assert crops.is_contiguous(memory_format=torch.channels_last)
    for crop, (number, *box, mirrored) in zip(crops, plan[8:12].tolist(), strict=True):
        height, width = images.sizes[number].tolist()
        whole = images.pixels[number, :, :height, :width].float()
        expected = normal(V.resized_crop(whole, *box, [16, 16], antialias=True))
        torch.testing.assert_close(crop, expected.flip(-1) if mirrored else expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "workers", lambda: 0)


def whole_test(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    plan = source.fixed_plan()
    filled = torch.cat([plan, torch.tensor([[NO_IMAGE, *plan[0, 1:].tolist()]])])
    source.begin(filled.unflatten(0, (-1, source.rows)))
    found = []
    for place in range(len(filled) // source.rows):
        source.take(place)
        found.append([tensor.clone() for tensor in source.batch()])
    return torch.cat([images for images, _ in found]), torch.cat([labels for _, labels in found])


@pytest.mark.usefixtures("_no_workers")
def test_what_is_read_on_the_way_is_what_is_held(tmp_path: Path) -> None:
    """To test on: the same images, and padding fills up the last batch."""
    root = data_set(tmp_path, classes=3, val=5)
    first, labels = whole_test(held(root, "val").source(4, CPU))
    second, others = whole_test(LoadedImages(open_split(root, "val"), 16, 16).source(4, CPU))
    assert labels.tolist() == others.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [NO_IMAGE]
    torch.testing.assert_close(first[:-1], second[:-1])


def read(root: Path, rows: int = 4, size: int = 16) -> LoadedSource:
    return LoadedImages(open_split(root, "train"), size, size + 4).source(rows, CPU)


@pytest.mark.usefixtures("_no_workers")
def test_crops_that_are_read_depend_on_the_plan_alone(tmp_path: Path) -> None:
    root = data_set(tmp_path)
    one, other = read(root), read(root)
    plan = one.draw(torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    for source in (one, other):
        source.begin(plan.unflatten(0, (-1, 4)))
    for place in range(4):
        one.take(place)
    other.take(3)  # as a run does that is resumed
    other.take(3)  # and as one does whose graph was captured meanwhile
    assert torch.equal(torch.get_rng_state(), state), "the noise of a run is drawn from there"
    for mine, theirs in zip(one.batch(), other.batch(), strict=True):
        assert torch.equal(mine, theirs)
    for place in (4, 5):
        one.take(place)
        other.take(place)
    assert torch.equal(one.batch()[0], other.batch()[0])
    number, seed = plan[20].tolist()
    *box, mirrored = draw_boxes(_size(root, number), torch.Generator().manual_seed(seed))[0].tolist()
    image = Image.open(io.BytesIO(open_split(root, "train").read(number)))
    expected = V.pil_to_tensor(V.resized_crop(image, *box, [16, 16]))
    assert torch.equal(one.tensors[0][0], expected.flip(-1) if mirrored else expected)


def _size(root: Path, number: int) -> torch.Tensor:
    files = open_split(root, "train")
    width, height = Image.open(io.BytesIO(files.read(number))).size
    return torch.tensor([[height, width]])


@pytest.mark.usefixtures("_no_workers")
def test_a_bad_image_found_while_reading_is_left_out_of_its_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = data_set(tmp_path)
    spoil(root / "train" / "n0" / "03.JPEG", "damaged image")
    (root / "train" / "n1" / "01.JPEG").write_bytes(picture(0, mode="L"))
    source = read(root)
    plan = source.fixed_plan()
    plan[:, 1] = torch.arange(24)  # to learn from, in order
    for _ in range(2):
        source.begin(plan.unflatten(0, (-1, 4)))
        for place in range(6):
            source.take(place)
            if place == 0:
                assert source.tensors[1].tolist() == [0, 0, 0, NO_IMAGE]
    assert [(p.split, p.name, p.reason) for p in source.problems] == [("train", "n0/03.JPEG", "damaged image")]
    assert source.converted == {"train/n1/01.JPEG"}
    assert capsys.readouterr().err.count("train, n0/03.JPEG is damaged or cut off") == 1
    images, labels = whole_test(LoadedImages(open_split(root, "train"), 16, 20).source(5, CPU))
    assert labels[3] == NO_IMAGE, "in a test it does not count"
    assert len(images) == 25
    for number in range(3):
        spoil(root / "train" / "n0" / f"{number:02}.JPEG", "empty file")
    source = read(root, rows=24)
    source.begin(plan.unsqueeze(0))
    with pytest.raises(ValueError, match="4 of 24 images of 'train' cannot be used"):
        source.take(0)


@needs_woof
def test_real_images_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "workers", lambda: 1)
    before = set(multiprocessing.active_children())
    files = open_split(WOOF, "val")
    source = LoadedImages(files, 64, 72).source(2, CPU)
    plan = source.draw(torch.Generator().manual_seed(0))[:8]
    source.begin(plan.unflatten(0, (-1, 2)))
    for place in (0, 1, 2, 3):
        source.take(place)
        assert source.tensors[1].tolist() == [files.labels[number] for number in plan[2 * place : 2 * place + 2, 0]]
    assert source.batch()[0].std() > 0.5
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 1
    for _ in range(2):  # the second time there is nothing to close
        source.close()
    assert not workers & set(multiprocessing.active_children())


@needs_woof
def test_imagewoof_is_what_its_recipe_says() -> None:
    train, val = open_split(WOOF, "train"), open_split(WOOF, "val")
    check_classes(train, val)
    assert (len(train), len(val), len(train.classes)) == (9025, 3929, 10)


def test_pack_takes_the_splits_that_are_named(tmp_path: Path) -> None:
    (path,) = pack(data_set(tmp_path / "data"), tmp_path / "packed", ["val"])
    assert path == tmp_path / "packed" / "val.pt"
    assert [file.name for file in (tmp_path / "packed").iterdir()] == ["val.pt"]
