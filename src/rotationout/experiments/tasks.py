"""The list of tasks: for every class of configs, how to load its data, make its runs and show its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .classification import Classification, ClassificationConfig, load_images
from .config import Config
from .detection.config import DetectionConfig
from .images.config import ImagesConfig
from .images.training import ImageClassification, load_image_data
from .run import Run
from .speech.recognition import Recognition, SpeechConfig, load_speech

if TYPE_CHECKING:
    from ..report.page import Table

__all__ = ["TASKS", "Task", "maker"]


@dataclass(frozen=True)
class Task:
    """A task that can be trained.

    Args:
        title: its name in help and reports.
        data: what the path to its data must point to, for help.
        load: reads the data, given a config, that path and a device.
        run: makes a run, given a config, the data from ``load`` and a device.
        table: makes a table of the records of a recipe.
        data_fields: fields of the config that ``load`` depends on; runs that agree in them share their data.
        prose: paragraphs that explain the table, given the records.
        verdict: the findings in words, given the records.
        notes: further findings in Markdown, given the records.
    """

    title: str
    data: str
    load: Callable[[Any, Path, torch.device], Any]
    run: Callable[[Any, Any, torch.device], Run]
    table: Callable[[Sequence[dict[str, Any]]], Table]
    data_fields: tuple[str, ...] = ()
    prose: Callable[[Sequence[dict[str, Any]]], list[str]] = lambda records: []
    verdict: Callable[[Sequence[dict[str, Any]]], str] = lambda records: ""
    notes: Callable[[Sequence[dict[str, Any]]], str] = lambda records: ""


def _later(path: str) -> Callable[..., Any]:
    """A function that imports ``module:name`` when it is called, and calls it.

    Reports import the recipes, which import this package; and torchvision is slow to import, and may be absent.
    """
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
        table=_later("..report.cifar100:table"),
        prose=_later("..report.cifar100:prose"),
        verdict=_later("..report.cifar100:verdict"),
        data_fields=("held_out", "subset"),
    ),
    ImagesConfig: Task(
        title="image folders",
        data="a folder with train/<class>/ and val/<class>/, or what `rotationout images` wrote",
        load=load_image_data,
        run=ImageClassification,
        table=_later("..report.table2:table2"),
        prose=_later("..report.table2:prose"),
        verdict=_later("..report.table2:verdict"),
        data_fields=("size", "short_side", "held", "train_split", "test_split"),
    ),
    DetectionConfig: Task(
        title="object detection",
        data="a folder in COCO's layout, with annotations/instances_<split>.json and images",
        load=_later(".detection.training:load_detection_data"),
        run=_later(".detection.training:Detection"),
        table=_later("..report.table3:table3"),
        prose=_later("..report.table3:prose"),
        verdict=_later("..report.table3:verdict"),
        data_fields=("train_split", "test_split", "crop", "held", "initialization", "backbone"),
    ),
    SpeechConfig: Task(
        title="speech recognition",
        data="a corpus with a manifest.tsv, Kaldi's data directories, or what `rotationout features` wrote",
        load=load_speech,
        run=Recognition,
        table=_later("..report.table4:table4"),
        prose=_later("..report.table4:prose"),
        verdict=_later("..report.table4:verdict"),
        notes=_later("..report.table4:notes"),
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
