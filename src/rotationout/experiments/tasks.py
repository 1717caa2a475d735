"""The list of tasks: for every class of configs, how to load its data and make its runs, and what shows its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .classification import Classification, ClassificationConfig, load_images
from .config import Config
from .detection.config import DetectionConfig
from .images.config import ImagesConfig
from .images.training import ImageClassification, load_image_data
from .run import Run
from .speech.recognition import Recognition, SpeechConfig, load_speech

__all__ = ["TASKS", "Task", "maker"]


@dataclass(frozen=True)
class Task:
    """A task that can be trained.

    Args:
        title: its name in help and reports.
        data: what the path to its data must point to, for help.
        load: reads the data, given a config, that path and a device.
        run: makes a run, given a config, the data from ``load`` and a device.
        report: the module of `rotationout.report` that shows its records, see `rotationout.report.modules`.
        data_fields: fields of the config that ``load`` depends on; runs that agree in them share their data.
    """

    title: str
    data: str
    load: Callable[[Any, Path, torch.device], Any]
    run: Callable[[Any, Any, torch.device], Run]
    report: str
    data_fields: tuple[str, ...] = ()


def _later(path: str) -> Callable[..., Any]:
    """A function that imports ``module:name`` when it is called: torchvision is slow to import, and may be absent."""
    module, _, name = path.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module, __package__), name)(*arguments)

    return call


TASKS: dict[type[Config], Task] = {
    ClassificationConfig: Task(
        title="CIFAR-100",
        data="the folder that holds cifar-100-python/",
        load=load_images,
        run=Classification,
        report="table1",
        data_fields=("held_out", "subset"),
    ),
    ImagesConfig: Task(
        title="image folders",
        data="a folder with train/<class>/ and val/<class>/, or what `rotationout images` wrote",
        load=load_image_data,
        run=ImageClassification,
        report="table2",
        data_fields=("size", "short_side", "held", "train_split", "test_split"),
    ),
    DetectionConfig: Task(
        title="object detection",
        data="a folder in COCO's layout, with annotations/instances_<split>.json and images",
        load=_later(".detection.training:load_detection_data"),
        run=_later(".detection.training:Detection"),
        report="table3",
        data_fields=("train_split", "test_split", "crop", "held", "initialization", "backbone"),
    ),
    SpeechConfig: Task(
        title="speech recognition",
        data="a corpus with a manifest.tsv, Kaldi's data directories, or what `rotationout features` wrote",
        load=load_speech,
        run=Recognition,
        report="table4",
        data_fields=("train_split", "test_split", "held_out", "alphabet"),
    ),
}
"""The tasks by the class of their configs."""


def maker(path: Path, device: torch.device, *, compiled: bool = False) -> Callable[[Config], Run]:
    """A function that makes the run of a config, with the data at ``path``. Runs that can share data load them once."""
    loaded: dict[tuple[Any, ...], Any] = {}

    def make(config: Config) -> Run:
        task = TASKS[type(config)]
        key = (type(config), *(getattr(config, name) for name in task.data_fields))
        if key not in loaded:
            loaded[key] = task.load(config, path, device)
        run = task.run(config, loaded[key], device)
        if compiled:
            run.compile()
        return run

    return make
