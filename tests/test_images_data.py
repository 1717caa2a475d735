"""Folders of images: what is read, left out and refused, and how it is packed and decoded."""

import io
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image
from tests.image_folders import SPOILT, WOOF, data_set, needs_woof, picture, spoil
from torchvision.models import ResNet50_Weights
from torchvision.transforms.v2 import functional as V

from rotationout import cli
from rotationout.experiments.images.files import check_classes, open_split, pack
from rotationout.experiments.images.held import fit, hold
from rotationout.experiments.pixels import Normalize
from rotationout.experiments.problems import counts

CPU = torch.device("cpu")


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


@needs_woof
def test_imagewoof_is_what_its_recipe_says() -> None:
    train, val = open_split(WOOF, "train"), open_split(WOOF, "val")
    check_classes(train, val)
    assert (len(train), len(val), len(train.classes)) == (9025, 3929, 10)


def test_pack_takes_the_splits_that_are_named(tmp_path: Path) -> None:
    (path,) = pack(data_set(tmp_path / "data"), tmp_path / "packed", ["val"])
    assert path == tmp_path / "packed" / "val.pt"
    assert [file.name for file in (tmp_path / "packed").iterdir()] == ["val.pt"]
