"""Detection: the loss and the network of Table 3 beside torchvision's own, where noise goes, and scores."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision
from tests.detection_album import needs_bccd, needs_pycocotools, some_of_bccd, write_album
from torch import Tensor
from torchvision.models.detection import retinanet
from torchvision.models.detection.image_list import ImageList

from rotationout.experiments.detection.annotations import read_split
from rotationout.experiments.detection.loss import BACKGROUND, IGNORED, detection_loss, match
from rotationout.experiments.detection.network import STRIDES, Detector, load_weights
from rotationout.experiments.detection.scoring import average_precision, pack, unpack
from rotationout.experiments.detection.sources import hold
from rotationout.experiments.resnet import insert_noise
from rotationout.experiments.vision import VisionConfig
from rotationout.nn import RotationOut2d
from rotationout.placing._slot import Slot

SIDE = 256
SMALL: dict[str, Any] = {"layers": (1, 1, 1, 1), "width": 16}


def small(classes: int = 3, **options: Any) -> Detector:
    torch.manual_seed(0)
    return Detector(classes, "resnet18", **SMALL, **options)


def real_batch() -> SimpleNamespace:
    """Four of BCCD's images, cut out at random; the last one is left without boxes."""
    with tempfile.TemporaryDirectory() as folder:
        held = hold(read_split(some_of_bccd(Path(folder), train=1, test=4), "test"), SIDE, torch.device("cpu"))
    source = held.source(4, torch.device("cpu"), (220, 400))
    source.begin(source.draw(torch.Generator().manual_seed(2)).unsqueeze(0))
    source.take(0)
    images, boxes, labels, _ = source.batch()
    labels[3] = -1
    return SimpleNamespace(images=images, boxes=boxes, labels=labels)


def as_targets(batch: SimpleNamespace, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    pairs = zip(batch.boxes.to(dtype), batch.labels, strict=True)
    return [{"boxes": boxes[labels >= 0], "labels": labels[labels >= 0]} for boxes, labels in pairs]


@needs_bccd
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.4, 1.5)])
def test_the_loss_is_torchvisions_on_real_images(
    dtype: torch.dtype, alpha: float, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and the gradients of logits and deltas; torchvision has α = 0.25 and γ = 2 unless it is told otherwise."""
    told = {"alpha": alpha, "gamma": gamma}
    theirs_focal = retinanet.sigmoid_focal_loss
    monkeypatch.setattr(retinanet, "sigmoid_focal_loss", lambda *a, **k: theirs_focal(*a, **k, **told))
    batch, model = real_batch(), small()
    anchors = torch.cat(model.anchors(SIDE)).to(dtype)
    source = torch.Generator().manual_seed(0)
    outputs = [torch.randn(4, len(anchors), k, generator=source).to(dtype).requires_grad_() for k in (3, 4)]
    mine = detection_loss(*outputs, anchors, batch.boxes.to(dtype), batch.labels, **told).mean()
    named = dict(zip(("cls_logits", "bbox_regression"), outputs, strict=True))
    theirs = sum(model.compute_loss(as_targets(batch, dtype), named, [anchors] * 4).values())
    torch.testing.assert_close(mine, theirs)
    assert mine > 1
    for ours, expected in zip(torch.autograd.grad(mine, outputs), torch.autograd.grad(theirs, outputs), strict=True):
        torch.testing.assert_close(ours, expected)
        assert ours.isfinite().all()


@needs_bccd
def test_anchors_are_matched_as_torchvision_does() -> None:
    """Some because a box has no better one, on which torchvision's matcher agrees."""
    batch, model = real_batch(), small()
    anchors = torch.cat(model.anchors(SIDE))
    found = match(batch.boxes, batch.labels, anchors)
    assert (found[3] == BACKGROUND).all()
    low = 0
    for boxes, labels, mine in zip(batch.boxes[:3], batch.labels[:3], found[:3], strict=True):
        overlaps = torchvision.ops.box_iou(boxes[labels >= 0], anchors)
        kept = torch.arange(len(labels))[labels >= 0]
        expected = model.proposal_matcher(overlaps)
        expected = torch.where(expected >= 0, kept[expected.clamp(min=0)], expected)
        assert torch.equal(mine, expected)
        low += int(((overlaps.amax(0) < 0.5) & (mine >= 0)).sum())
        assert set(mine[mine >= 0].tolist()) == set(kept.tolist()), "every box has an anchor"
    assert low > 0
    assert (found == IGNORED).any()


def test_the_mean_of_a_batch_is_the_mean_of_its_parts() -> None:
    """However differently many anchors they match: what processes that share a batch rely on."""
    torch.manual_seed(0)
    anchors = torch.cat(small().anchors(128))
    boxes = torch.tensor([[[0.0, 0, 120, 120], [5, 5, 40, 40]], [[60, 60, 80, 90], [0, 0, 0, 0]]])
    labels = torch.tensor([[0, 1], [1, -1]])
    logits, deltas = torch.randn(2, len(anchors), 2), torch.randn(2, len(anchors), 4)
    counts = (match(boxes, labels, anchors) >= 0).sum(1)
    assert counts[0] != counts[1]
    whole = detection_loss(logits, deltas, anchors, boxes, labels).mean()
    parts = [
        detection_loss(logits[i : i + 1], deltas[i : i + 1], anchors, boxes[i : i + 1], labels[i : i + 1]).mean()
        for i in (0, 1)
    ]
    torch.testing.assert_close(whole, sum(parts) / 2)


def test_anchors_are_torchvisions() -> None:
    model = small()
    maps = [torch.zeros(1, 16, SIDE // stride, SIDE // stride) for stride in STRIDES]
    (expected,) = model.anchor_generator(ImageList(torch.zeros(1, 3, SIDE, SIDE), [(SIDE, SIDE)]), maps)
    torch.testing.assert_close(torch.cat(model.anchors(SIDE)), expected)
    features = model.backbone(torch.zeros(2, 3, SIDE, SIDE))
    assert [tuple(f.shape[2:]) for f in features.values()] == [tuple(m.shape[2:]) for m in maps]


def test_the_network_is_torchvisions() -> None:
    """Its parameters by name and size, BatchNorm that learns instead of the frozen, and outputs."""
    mine = Detector(90, head_norm=False)
    theirs = retinanet.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=90)
    ours, expected = mine.state_dict(), theirs.state_dict()
    learnt = {name: value.shape for name, value in ours.items() if "num_batches" not in name}
    assert learnt == {name: value.shape for name, value in expected.items() if "num_batches" not in name}
    assert all(parameter.requires_grad for parameter in mine.parameters())
    theirs.load_state_dict(ours, strict=False)
    images = torch.rand(1, 3, 128, 128)
    mine.eval()
    theirs.eval()
    with torch.no_grad():
        outputs = theirs.head(list(theirs.backbone(images).values()))
        logits, deltas = mine(images)
    torch.testing.assert_close(logits, outputs["cls_logits"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(deltas, outputs["bbox_regression"], rtol=1e-3, atol=1e-4)


def test_detections_are_torchvisions() -> None:
    model = small(classes=2).eval()
    with torch.no_grad():
        for parameter in model.head.classification_head.cls_logits.parameters():
            parameter.mul_(0).add_(0.1 * torch.randn_like(parameter))  # else nothing is sure enough
        images = torch.rand(2, 3, 128, 128)
        model.transform.image_mean, model.transform.image_std = [0.0] * 3, [1.0] * 3
        model.transform.min_size, model.transform.max_size = (128,), 128
        expected = retinanet.RetinaNet.forward(model, list(images))
        found = model.detect(*model(images), model.anchors(128), 128)
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine["boxes"]) == 100
        for name in ("boxes", "scores", "labels"):
            torch.testing.assert_close(mine[name], theirs[name])


def test_noise_is_before_the_convolutions_of_the_last_stages() -> None:
    model = Detector(2, "resnet50", layers=(1, 1, 2, 1), width=16)
    settings = VisionConfig(recipe="a", row="b", noise="rotation", p=0.2, noise_options={"dims": 2})
    insert_noise(model.body, settings, last=2, block_sizes=(7, 3))
    placed = {
        module.place: module.noise.block_size
        for module in model.modules()
        if isinstance(module, Slot) and isinstance(module.noise, RotationOut2d)
    }
    convolutions = ["conv1", "conv2", "conv3"]
    expected = {f"layer3.{block}.{name}": 7 for block in (0, 1) for name in convolutions}
    assert placed == expected | {f"layer4.0.{name}": 3 for name in convolutions}
    images = torch.rand(2, 3, 128, 128)
    assert not torch.equal(model(images)[0], model(images)[0])
    model.eval()
    assert torch.equal(model(images)[0], model(images)[0])


def test_weights_are_read_from_a_file_of_torchvisions(tmp_path: Path) -> None:
    body = torchvision.models.resnet18(weights=None)
    torch.save(body.state_dict(), tmp_path / "resnet18.pth")
    model = Detector(2, "resnet18", weights=load_weights(tmp_path / "resnet18.pth"))
    assert torch.equal(model.backbone.body.layer4[1].conv2.weight, body.layer4[1].conv2.weight)
    with pytest.raises(ValueError, match="weights do not fit the backbone 'resnet50'"):
        Detector(2, "resnet50", weights=load_weights(tmp_path / "resnet18.pth"))
    with pytest.raises(FileNotFoundError, match=r"resnet50\.pth does not exist; initialization = 'imagenet'"):
        load_weights(tmp_path / "resnet50.pth")
    torch.save({"weight": torch.ones(1)}, tmp_path / "resnet50.pth")
    with pytest.raises(ValueError, match="does not hold weights of torchvision's ResNet"):
        load_weights(tmp_path / "resnet50.pth")


@needs_pycocotools
def test_scores(tmp_path: Path) -> None:
    """All found is 100; half of the objects of each class, 50; boxes too narrow, right at low overlaps only."""
    root = write_album(tmp_path / "a", {"test": 2})
    source = root / "annotations" / "instances_test.json"
    annotations = json.loads(source.read_text())["annotations"]
    rows = [[a["image_id"], a["category_id"], *a["bbox"], 0.9] for a in annotations]
    assert average_precision(source, torch.tensor(rows)) == {"ap": 100, "ap50": 100, "ap75": 100}
    half = average_precision(source, torch.tensor(rows[:2]))  # recall is looked at in steps of 1 %
    assert half == pytest.approx(dict.fromkeys(("ap", "ap50", "ap75"), 100 * 51 / 101), abs=1e-3)
    narrow = [[i, c, x, y, 0.63 * w, h, s] for i, c, x, y, w, h, s in rows]
    expected = {"ap": 30, "ap50": 100, "ap75": 0}  # right at 0.5, 0.55 and 0.6 of the ten overlaps
    assert average_precision(source, torch.tensor(narrow)) == pytest.approx(expected, abs=1e-3)
    assert average_precision(source, torch.empty(0, 7)) == {"ap": 0, "ap50": 0, "ap75": 0}
    assert average_precision(source, unpack(pack(torch.tensor(rows))))["ap"] == 100
