"""CIFAR-100: read from its files, which may be damaged or worse, split and augmented."""

from functools import partial
from pathlib import Path

import pytest
import torch
from tests.cifar_images import images, write_cifar

from rotationout.experiments import cifar, networks, tasks
from rotationout.experiments.classification import load_images
from rotationout.recipes.cifar100 import mlp_rows, resnet110

np = pytest.importorskip("numpy")


def test_augmentation_pads_cuts_and_mirrors() -> None:
    data = images(40).pixels
    cuts = cifar.draw_cuts(40, torch.Generator().manual_seed(0))
    cut = cifar.augment(data, cuts)
    for i, (image, (down, right, mirrored)) in enumerate(zip(data, cuts.tolist(), strict=True)):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        expected = padded[:, down : down + 32, right : right + 32]
        assert torch.equal(cut[i], expected.flip(-1) if mirrored else expected)
    assert cut.dtype == torch.uint8


def test_cuts_are_drawn_evenly() -> None:
    """Every value is within five standard deviations of its share: a false alarm in 10⁵ such tests."""
    cuts = cifar.draw_cuts(9000, torch.Generator().manual_seed(1))
    for column, values in zip(cuts.unbind(1), (9, 9, 2), strict=True):
        counts = column.bincount(minlength=values)
        assert len(counts) == values
        share = 1 / values
        assert (counts - 9000 * share).abs().max() < 5 * (9000 * share * (1 - share)) ** 0.5
    assert torch.corrcoef(cuts.T.float()).fill_diagonal_(0).abs().max() < 5 / 9000**0.5


def test_cifar_is_read_from_its_standard_layout(tmp_path: Path) -> None:
    write_cifar(tmp_path, "test")
    for root in (tmp_path, tmp_path / "cifar-100-python", str(tmp_path)):
        data = cifar.load(root, "test")
        assert data.pixels.shape == (10_000, 3, 32, 32)
        assert data.labels.bincount().tolist() == [100] * 100


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not run",)


def test_cifar_that_is_not_what_it_should_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match="give the folder that holds cifar-100-python"):
        cifar.load(tmp_path, "train")
    write_cifar(tmp_path, "test", fine_labels=[0] * 10_000)
    with pytest.raises(ValueError, match="100 images of each of 100 classes"):
        cifar.load(tmp_path, "test")
    write_cifar(tmp_path, "test", data=np.zeros((5, 3072), dtype=np.uint8))
    with pytest.raises(ValueError, match="must hold 10,000 images"):
        cifar.load(tmp_path, "test")
    write_cifar(tmp_path, "test", data=_Evil())
    with pytest.raises(ValueError, match="wants to import"):
        cifar.load(tmp_path, "test")
    assert "this must not run" not in capsys.readouterr().out
    write_cifar(tmp_path, "test", data=np.array(["text"], dtype=object))
    with pytest.raises(ValueError, match="not of bytes"):
        cifar.load(tmp_path, "test")
    write_cifar(tmp_path, "test", fine_labels=[-1] * 10_000)
    with pytest.raises(ValueError, match="is damaged"):
        cifar.load(tmp_path, "test")
    path = write_cifar(tmp_path, "test")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is not a CIFAR-100 file, or is damaged"):
        cifar.load(tmp_path, "test")


def test_held_out_images_are_the_same_for_all_runs() -> None:
    data = images(50)
    kept, held = data.split(10, seed=0)
    again = data.split(10, seed=0)
    assert (len(kept), len(held)) == (40, 10)
    assert torch.equal(held.pixels, again[1].pixels)
    both = torch.cat([kept.pixels, held.pixels]).flatten(1).float().sum(1).sort().values
    assert torch.equal(both, data.pixels.flatten(1).float().sum(1).sort().values)


def test_no_run_is_trained_on_what_it_is_tested_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its seed, the same training images are held out, and the test images, which are not there, not read."""
    monkeypatch.setattr(cifar, "COUNTS", {"train": 400})
    numbered = np.zeros((400, 3072), dtype=np.uint8)
    numbered[:, 0], numbered[:, 1] = np.divmod(np.arange(400), 256)
    write_cifar(tmp_path, "train", data=numbered)
    seen = []
    for seed in (0, 1):
        config = resnet110().replace(held_out=100, seed=seed)
        for part in load_images(config, tmp_path, torch.device("cpu")):
            numbers = 256 * part.pixels[:, 0, 0, 0].long() + part.pixels[:, 0, 0, 1]
            assert torch.equal(part.labels, numbers % 100), "each with its own label"
            seen.append(numbers.tolist())
    train, test, train_again, test_again = seen
    assert (len(train), len(test)) == (300, 100)
    assert sorted(train + test) == list(range(400))
    assert (train_again, test_again) == (train, test)


def test_a_subset_is_of_images_that_are_not_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones in every run, and all test images."""
    monkeypatch.setattr(cifar, "COUNTS", {"train": 400, "test": 200})
    numbered = np.zeros((400, 3072), dtype=np.uint8)
    numbered[:, 0], numbered[:, 1] = np.divmod(np.arange(400), 256)
    write_cifar(tmp_path, "train", data=numbered)
    write_cifar(tmp_path, "test")

    def trained(**changes: int) -> set[int]:
        train, test = load_images(mlp_rows()[0].replace(**changes), tmp_path, torch.device("cpu"))
        assert len(test) == (changes.get("held_out") or 200)
        numbers = 256 * train.pixels[:, 0, 0, 0].long() + train.pixels[:, 0, 0, 1]
        assert torch.equal(train.labels, numbers % 100), "each with its own label"
        assert len(set(numbers.tolist())) == len(train)
        return set(numbers.tolist())

    subset = trained(subset=50)
    assert len(subset) == 50
    assert subset == trained(subset=50, seed=1)
    assert trained(subset=0) == trained(subset=400) == set(range(400))
    assert trained(subset=50, held_out=100) < trained(subset=0, held_out=100)
    with pytest.raises(ValueError, match="subset must be at most 300, the number of training images, got 301"):
        trained(subset=301, held_out=100)


def test_runs_that_hold_out_other_images_do_not_share_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "COUNTS", {"train": 400, "test": 200})
    monkeypatch.setitem(networks.NETWORKS, "resnet110", partial(networks.ResNet, 1))
    for split in cifar.COUNTS:
        write_cifar(tmp_path, split)
    make = tasks.maker(tmp_path, torch.device("cpu"))
    given = ({}, {"held_out": 100}, {"subset": 150}, {})
    runs = [make(resnet110().replace(**changes, precision="fp32")) for changes in given]
    sizes = [(len(run.train_images), len(run.test_images)) for run in runs]
    assert sizes == [(400, 200), (300, 100), (150, 200), (400, 200)]
    assert runs[0].train_images is runs[3].train_images
