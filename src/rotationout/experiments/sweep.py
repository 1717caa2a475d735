"""Several training runs side by side on one device, with checkpoints, records and a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from . import cifar, results
from .cifar import Images
from .classification import Run
from .config import Config

__all__ = ["load_images", "sweep"]

CHECKPOINT_SECONDS = 45.0
"""A kill loses less than a minute."""
HELD_OUT_SEED = 0
"""All runs that hold out images hold out the same ones."""


def load_images(config: Config, data: Path, device: torch.device) -> tuple[Images, Images]:
    """The images to learn from and to test on."""
    train = cifar.load(data, "train")
    if config.held_out:
        train, test = train.split(config.held_out, HELD_OUT_SEED)
    else:
        test = cifar.load(data, "test")
    return train.to(device), test.to(device)


def sweep(
    configs: Sequence[Config],
    images: dict[int, tuple[Images, Images]],
    *,
    folder: Path,
    checkpoints: Path,
    together: int = 1,
    limit_seconds: float = float("inf"),
    out: TextIO | None = None,
) -> list[Config]:
    """Run every config that has no record yet, ``together`` at a time, and return those left when time is up.

    Args:
        configs: what to run.
        images: training and test images, by how many are held out.
        folder: where records go.
        checkpoints: where runs are kept until they end.
        together: how many runs share the device.
        limit_seconds: stop, with checkpoints, after so long.
        out: where progress is printed, stderr if not given.
    """
    out = sys.stderr if out is None else out
    begun = time.monotonic()
    waiting = results.missing(folder, configs)
    if len(waiting) < len(configs):
        print(f"{len(configs) - len(waiting)} of {len(configs)} runs have a record already", file=out)
    active: list[_Task] = []
    saved = shown = begun
    try:
        while waiting or active:
            while waiting and len(active) < together:
                active.append(_Task(waiting.pop(0), images, checkpoints))
            for task in active:
                task.run.advance()
            now = time.monotonic()
            for task in [task for task in active if task.run.finished]:
                task.finish(folder)
                active.remove(task)
                print(f"\r{task.name}: {_percent(task.run.result)}{' ' * 40}", file=out)
            if now - saved > CHECKPOINT_SECONDS:
                saved = now
                for task in active:
                    task.save(out)
            if now - shown > 1.0:
                shown = now
                print(f"\r{_progress(active, len(waiting), now - begun)}", end="", file=out, flush=True)
            if now - begun > limit_seconds:
                break
    except BaseException:
        print(f"\nstopped; {len(active)} unfinished runs are kept in {checkpoints}", file=out)
        raise
    finally:
        for task in active:
            task.save(out)
    return [task.config for task in active] + waiting


class _Task:
    """A run and its clock."""

    def __init__(self, config: Config, images: dict[int, tuple[Images, Images]], checkpoints: Path) -> None:
        self.config = config
        self.name = f"{config.recipe}, {config.row}, seed {config.seed}"
        self.checkpoint = results.record_path(checkpoints, config).with_suffix(".pt")
        self.run = Run(config, *images[config.held_out])
        self.before, self.begun = 0.0, time.monotonic()
        self.first = 0
        if self.checkpoint.exists():
            state, self.before = results.load_checkpoint(self.checkpoint, config)
            self.run.restore(state)
            self.first = self.run.step

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.begun

    def save(self, out: TextIO) -> None:
        """Write a checkpoint; if the disk is full the last one stays, and the run goes on."""
        try:
            results.save_checkpoint(self.checkpoint, self.config, self.run.state(), self.seconds)
        except (OSError, RuntimeError) as error:
            print(f"\n{self.name}: no checkpoint at step {self.run.step}: {error}", file=out)

    def finish(self, folder: Path) -> None:
        """Write the record; the checkpoint is no longer needed."""
        cuda = self.run.chosen.is_cuda
        measured: dict[str, Any] = {
            **self.run.result,
            "epochs": len(self.run.curve),
            "test_curve": [round(value, 5) for value in self.run.curve],
            "train_loss": [round(value, 5) for value in self.run.losses],
            "seconds": round(self.seconds, 1),
            "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        }
        results.write_record(results.record_path(folder, self.config), self.config, measured)
        self.checkpoint.unlink(missing_ok=True)


def _percent(result: dict[str, float]) -> str:
    return f"best {result['best_top1']:.2f} %, mean of the last 10 epochs {result['last10_top1']:.2f} %"


def _progress(active: Iterable[_Task], waiting: int, seconds: float) -> str:
    parts = []
    for task in active:
        run = task.run
        done = run.step - task.first
        left = (run.config.steps - run.step) * (time.monotonic() - task.begun) / max(done, 1)
        accuracy = f" {100 * run.curve[-1]:.1f} %" if run.curve else ""
        parts.append(f"{run.config.row} {run.config.seed}: {run.step}/{run.config.steps}{accuracy} {left / 60:.1f} min")
    return f"[{seconds:.0f} s] {' | '.join(parts)}{f' | {waiting} waiting' if waiting else ''}"
