"""Training runs of Table 3: SGD on RetinaNet's loss, and average precision on the test images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from .. import problems, processes
from ..resnet import insert_noise, residual_blocks
from ..sources import Source
from ..vision import VisionRun, channels_last
from .annotations import read_split
from .config import DetectionConfig
from .findings import COLUMNS, as_rows, examples
from .loss import detection_loss
from .network import Detector, load_weights
from .scoring import SUFFIX, average_precision, can_score, pack
from .sources import HeldSplit, LoadedSplit, hold

__all__ = ["Detection", "DetectionData", "load_detection_data"]

Windows = HeldSplit | LoadedSplit


@dataclass(frozen=True)
class DetectionData:
    """The training images, the test images, and pretrained weights of the backbone, if any."""

    train: Windows
    test: Windows
    weights: dict[str, Tensor] | None = None


def load_detection_data(config: DetectionConfig, data: Path, device: torch.device) -> DetectionData:
    """Read the annotations of a data set in COCO's layout, and its images if they are to be held on the device."""
    train, test = (read_split(data, split) for split in (config.train_split, config.test_split))
    if train.categories != test.categories:
        raise ValueError(
            f"{test.source} must have the categories of {train.source.name}, {train.categories}, got {test.categories}"
        )
    weights = load_weights(data / f"{config.backbone}.pth") if config.initialization == "imagenet" else None
    if config.held:
        return DetectionData(hold(train, config.crop, device), hold(test, config.crop, device), weights)
    return DetectionData(LoadedSplit(train, config.crop), LoadedSplit(test, config.crop), weights)


class Detection(VisionRun[Windows]):
    """A run of object detection.

    Args:
        config: what to run.
        data: the training images and the test images.
        device: the device to train on.
    """

    config: DetectionConfig

    def __init__(self, config: DetectionConfig, data: DetectionData, device: torch.device) -> None:
        self.data = data
        self.test_rows = config.batch // processes.size()  # test crops are as large as those of training
        super().__init__(config, data.train, data.test, device)
        self.levels = [level.to(device) for level in self.detector.anchors(config.crop)]
        self.anchors = torch.cat(self.levels)
        self.found = torch.empty(0, len(COLUMNS), dtype=torch.float64)

    @property
    def detector(self) -> Detector:
        """The network, typed as a `Detector`."""
        return cast(Detector, self.network)

    @property
    def result(self) -> dict[str, float]:
        """The last test: its loss and, if pycocotools is installed, average precision in per cent."""
        tests = len(self.curves.get("test_loss_curve", []))
        # A shorter curve is left out: a run resumed on a machine without pycocotools has no score of the last test.
        return {name.removesuffix("_curve"): v[-1] for name, v in self.curves.items() if len(v) == tests}

    @property
    def facts(self) -> dict[str, Any]:
        """The numbers of images and boxes, what was left out, and the detections in a few test images."""
        train, test = self.data.train.split, self.data.test.split
        read_problems, converted = self.gather_problems()
        bad = {(problem.split, problem.name) for problem in read_problems}
        boxes = {
            split.name: [
                count
                for path, count in zip(split.paths, split.starts.diff().tolist(), strict=True)
                if (split.name, path.name) not in bad
            ]
            for split in (train, test)
        }
        return {
            "train_images": len(boxes[train.name]),
            "test_images": len(boxes[test.name]),
            "train_boxes": sum(boxes[train.name]),
            "test_boxes": sum(boxes[test.name]),
            **problems.facts([*train.problems, *test.problems, *read_problems]),
            "converted": self.data.train.converted + self.data.test.converted + len(converted),
            "shown": examples(test, self.found, {name for split, name in bad if split == test.name}),
        }

    @property
    def files(self) -> dict[str, bytes]:
        """The detections in all test images."""
        return {SUFFIX: pack(self.found)}

    @property
    def status(self) -> str:
        """The last test."""
        result = self.result
        return f"AP {result['ap']:.1f}" if "ap" in result else f"loss {result['test_loss']:.3f}" if result else ""

    @property
    def summary(self) -> str:
        """The last test, in a line."""
        result = self.result
        if "ap" not in result:
            return f"test loss {result['test_loss']:.4f}; for AP run `rotationout score {self.config.recipe}`"
        return f"AP {result['ap']:.2f}, AP50 {result['ap50']:.2f}, AP75 {result['ap75']:.2f}"

    def build_network(self) -> nn.Module:
        """RetinaNet with its noise, in channels_last."""
        config = self.config
        network = Detector(
            len(self.data.train.split.categories),
            config.backbone,
            weights=self.data.weights,
            **config.backbone_options,
        )
        if config.noise != "none":
            insert_noise(network.body, config, last=config.stages, block_sizes=config.block_sizes)
        return channels_last(network)

    def build_source(self, images: Windows, rows: int) -> Source:
        """The source of these images, held on the device or read from the disk."""
        return images.source(rows, self.device, self.config.scales)

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which have the same shapes."""
        return residual_blocks(self.detector.body)

    def batch_loss(self) -> Tensor:
        """RetinaNet's loss, the mean over the batch; an image that could not be read contributes zero."""
        images, boxes, labels, usable = self.train_source.batch()
        logits, deltas = self.network(images)
        return (self._losses(logits.float(), deltas.float(), boxes, labels) * usable).mean()

    def test(self) -> dict[str, float]:
        """The loss and the average precision on the test images, which the processes share."""
        if len(self.losses) % self.config.test_every and not self.finished:
            return {}
        loss, count, found = self._evaluate()
        parts = processes.gather((loss, count, found))
        self.found = torch.cat([part[2] for part in parts])
        self.found = self.found[self.found[:, 0].argsort(stable=True)]
        scores = {"test_loss_curve": sum(part[0] for part in parts) / max(1, sum(part[1] for part in parts))}
        if can_score():
            precision = average_precision(self.data.test.split.source, self.found)
            scores |= {f"{name}_curve": value for name, value in precision.items()}
        return scores

    def state(self) -> dict[str, Any]:
        """The state of `VisionRun`, with the last detections."""
        return {**super().state(), "found": self.found}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        super().restore(state)
        self.found = state["found"]

    def _losses(self, logits: Tensor, deltas: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        config = self.config
        return detection_loss(logits, deltas, self.anchors, boxes, labels, alpha=config.alpha, gamma=config.gamma)

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, int, Tensor]:
        """For this process's part of the test images: the sum of their losses, their number, and the detections."""
        self.network.eval()
        split, side = self.data.test.split, self.config.crop
        losses, count, found = torch.zeros((), device=self.device), 0, [self.found[:0]]
        for rows in self.test_batches():
            images, boxes, labels, usable = self.test_source.batch()
            with self.autocast():
                logits, deltas = (part.float() for part in self.network(images))
            losses += (self._losses(logits, deltas, boxes, labels) * usable).sum()
            count += int(usable.sum())
            seen = self.detector.detect(logits, deltas, self.levels, side)
            each = zip(rows[:, 0].long().tolist(), seen, usable.tolist(), strict=True)
            found += [as_rows(split, index, one, side) for index, one, good in each if good]
        return losses.item(), count, torch.cat(found)
