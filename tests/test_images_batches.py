"""Batches of images: how they are cropped, and that those held and those read on the way are what their plan says."""

import io
import multiprocessing
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image
from tests.image_folders import WOOF, data_set, needs_woof, picture, spoil
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from rotationout.experiments import streamed
from rotationout.experiments.images.crops import centre_boxes, draw_boxes, resample
from rotationout.experiments.images.files import open_split
from rotationout.experiments.images.held import HeldImages, hold
from rotationout.experiments.images.loaded import LoadedImages, LoadedSource
from rotationout.experiments.pixels import MEAN, STD
from rotationout.experiments.sources import NO_IMAGE, Source

CPU = torch.device("cpu")


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
