"""Training runs of object detection: SGD on RetinaNet's loss, and what is seen in the test images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...registry import noise as make_noise
from .. import problems, processes
from ..problems import Problem
from ..run import Run
from . import crops
from .annotations import read_split
from .config import DetectionConfig
from .findings import COLUMNS, as_rows, examples
from .loss import detection_loss
from .network import Detector, load_weights
from .scoring import SUFFIX, average_precision, can_score, pack
from .sources import Batch, Held, Source, Streamed, Visit

__all__ = ["Album", "Detection", "load_album"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, per channel, in [0, 1]: what torchvision's networks are given."""


@dataclass(frozen=True)
class Album:
    """What to learn from and what to test on, and weights to start from."""

    train: Source
    test: Source
    weights: dict[str, Tensor] | None = None


def load_album(config: DetectionConfig, data: Path, device: torch.device) -> Album:
    """Read the annotations of a data set in COCO's layout, and its images if they are to be held on the device."""
    train, test = (read_split(data, split) for split in (config.train_split, config.test_split))
    if train.categories != test.categories:
        raise ValueError(
            f"{test.source} must have the categories of {train.source.name}, {train.categories}, got {test.categories}"
        )
    weights = load_weights(data / f"{config.backbone}.pth") if config.initialization == "imagenet" else None
    if config.held:
        return Album(Held(train, config.crop, device), Held(test, config.crop, device), weights)
    pinned = device.type == "cuda"
    return Album(Streamed(train, config.crop, pinned=pinned), Streamed(test, config.crop, pinned=pinned), weights)


class Detection(Run):
    """A run of object detection.

    Args:
        config: what to run.
        album: what to learn from and to test on.
        device: where.
    """

    config: DetectionConfig

    def __init__(self, config: DetectionConfig, album: Album, device: torch.device) -> None:
        self.album = album
        train = album.train.split
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training images, fewer than a batch of {config.batch}")
        super().__init__(config, device)
        count, side = self.share.stop - self.share.start, config.crop
        self.levels = [level.to(device) for level in self.detector.anchors(side)]
        self.anchors = torch.cat(self.levels)
        self.mean, self.std = (255 * torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))
        most = max(train.most, album.test.split.most)
        self.pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8, device=device)
        self.boxes = torch.zeros(count, most, 4, device=device)
        self.labels = torch.full((count, most), -1, device=device)
        self.usable = torch.ones(count, device=device)
        self.order, self.plans = torch.empty(0, dtype=torch.int64), torch.empty(0, 4)
        self._feed: Iterator[Batch] | None = None
        self._taken = -1
        self.found = torch.empty(0, len(COLUMNS), dtype=torch.float64)
        self._late: dict[tuple[str, str], Problem] = {}

    @property
    def detector(self) -> Detector:
        """The network by its class."""
        return cast(Detector, self.network)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training images; what is left over waits for another epoch."""
        return len(self.album.train.split) // self.config.batch

    @property
    def result(self) -> dict[str, float]:
        """The last test: its loss and, where pycocotools is there, average precision in per cent."""
        tests = len(self.curves.get("test_loss_curve", []))
        # A run may have gone on where there is no pycocotools: what was scored before is not the last test.
        return {name.removesuffix("_curve"): v[-1] for name, v in self.curves.items() if len(v) == tests}

    @property
    def facts(self) -> dict[str, Any]:
        """What was learnt from and tested on, what was left out of it, and what was seen in a few test images."""
        train, test = self.album.train.split, self.album.test.split
        every = [*train.problems, *test.problems, *self._all_late()]
        return {
            "train_images": len(train),
            "test_images": len(test),
            "train_boxes": len(train.boxes),
            "test_boxes": len(test.boxes),
            **problems.facts(every),
            "shown": examples(self.album.test.split, self.found),
        }

    @property
    def files(self) -> dict[str, bytes]:
        """The detections in the test images."""
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
            return f"test loss {result['test_loss']:.4f}; AP to be had by `rotationout score {self.config.recipe}`"
        return f"AP {result['ap']:.2f}, AP50 {result['ap50']:.2f}, AP75 {result['ap75']:.2f}"

    def build_network(self) -> nn.Module:
        """RetinaNet with its noises, in the layout that convolutions are fastest in."""
        config = self.config
        first = 5 - config.stages  # of the four stages of a ResNet

        def noise(stage: int) -> nn.Module:
            size = {"block_size": config.block_sizes[stage - first]} if config.block_sizes else {}
            return make_noise(config.noise, config.p, **config.noise_options, **size)

        network = Detector(
            len(self.album.train.split.categories),
            config.backbone,
            noise=None if config.noise == "none" else noise,
            stages=config.stages,
            weights=self.album.weights,
            **config.backbone_options,
        )
        return network.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def build_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        config = self.config
        return torch.optim.SGD(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            self.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def regions(self) -> Iterable[nn.Module]:
        """The residual blocks, most of which are alike."""
        body = dict(self.network.get_submodule("backbone.body").named_children())
        return [block for name, stage in body.items() if name.startswith("layer") for block in stage.children()]

    def begin_epoch(self) -> None:
        """A new order of the training images, and for each how it will be scaled, cut out and mirrored."""
        count = len(self.album.train.split)
        self.order = torch.randperm(count, generator=self.shuffler)
        self.plans = crops.draw_plans(count, self.config.scales, self.shuffler)
        self._feed, self._taken = None, -1

    def take_batch(self, place: int) -> None:
        """The next images, unless they are there already."""
        if place == self._taken:
            return
        if self._feed is None or place != self._taken + 1:
            self._feed = self.album.train.batches([self._visit(p) for p in range(place, self.steps_per_epoch)])
        self._put(next(self._feed))
        self._taken = place

    def batch_loss(self) -> Tensor:
        """RetinaNet's loss, the mean of the batch. An image that could not be read counts for nothing."""
        return (self._losses(*self._look()) * self.usable).mean()

    def test(self) -> dict[str, float]:
        """The loss on the test images, and how well they are seen through; every process looks at some of them."""
        if len(self.losses) % self.config.test_every and not self.finished:
            return {}
        loss, count, found = self._see_test_images()
        parts = processes.gather((loss, count, found))
        self.found = torch.cat([part[2] for part in parts])
        self.found = self.found[self.found[:, 0].argsort(stable=True)]
        scores = {"test_loss_curve": sum(part[0] for part in parts) / max(1, sum(part[1] for part in parts))}
        if can_score():
            precision = average_precision(self.album.test.split.source, self.found)
            scores |= {f"{name}_curve": value for name, value in precision.items()}
        return scores

    def state(self) -> dict[str, Any]:
        """With the plans of this epoch, the last detections, and what was found bad on the way."""
        late = [vars(problem) for problem in self._all_late()]
        kept = {"order": self.order, "plans": self.plans, "found": self.found, "late": late}
        return {**super().state(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self.order, self.plans, self.found = state["order"], state["plans"], state["found"]
        self._feed, self._taken = None, -1
        self._late = {(problem["split"], problem["name"]): Problem(**problem) for problem in state["late"]}

    def _visit(self, place: int) -> Visit:
        rows = slice(place * self.config.batch, (place + 1) * self.config.batch)
        return self.order[rows][self.share].tolist(), self.plans[rows][self.share]

    def _put(self, batch: Batch) -> None:
        """A batch, which may be smaller or have fewer boxes, into the tensors that a CUDA graph knows."""
        count, most = batch.labels.shape
        self._note(batch.problems)
        self.labels.fill_(-1)
        self.usable.zero_()
        self.pixels[:count].copy_(batch.pixels, non_blocking=True)
        self.boxes[:count, :most].copy_(batch.boxes, non_blocking=True)
        self.labels[:count, :most].copy_(batch.labels, non_blocking=True)
        self.usable[:count].copy_(batch.usable, non_blocking=True)

    def _note(self, found: Iterable[Problem]) -> None:
        """Images that turned out to be bad when it was their turn, each once."""
        for problem in found:
            if (problem.split, problem.name) not in self._late:
                self._late[problem.split, problem.name] = problem
                problems.report(problem)

    def _all_late(self) -> list[Problem]:
        """Those of all processes, each once, in one order."""
        every = {key: problem for part in processes.gather(self._late) for key, problem in part.items()}
        return [every[key] for key in sorted(every)]

    def _look(self) -> tuple[Tensor, Tensor]:
        """Logits and deltas of the images that were put."""
        images = ((self.pixels.float() - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        logits, deltas = self.network(images)
        return logits.float(), deltas.float()

    def _losses(self, logits: Tensor, deltas: Tensor) -> Tensor:
        config = self.config
        return detection_loss(
            logits, deltas, self.anchors, self.boxes, self.labels, alpha=config.alpha, gamma=config.gamma
        )

    @torch.no_grad()
    def _see_test_images(self) -> tuple[float, int, Tensor]:
        """Of this process's part of the test images: the sum of their losses, how many, and the detections."""
        self.network.eval()
        source, side = self.album.test, self.config.crop
        chunks = torch.arange(len(source.split)).split(len(self.pixels))[processes.rank() :: processes.size()]
        losses, count, found = torch.zeros((), device=self.device), 0, [self.found[:0]]
        for batch in source.batches([(chunk.tolist(), crops.still_plans(len(chunk), side)) for chunk in chunks]):
            self._put(batch)
            with self.autocast():
                logits, deltas = self._look()
            losses += (self._losses(logits, deltas) * self.usable).sum()
            count += int(batch.usable.sum())
            seen = self.detector.detect(logits, deltas, self.levels, side)
            usable = batch.usable.tolist()
            pairs = zip(batch.indices, seen, usable, strict=False)
            found += [as_rows(source.split, index, one, side) for index, one, good in pairs if good]
        self._taken = -1  # what was put is no training batch
        return losses.item(), count, torch.cat(found)
