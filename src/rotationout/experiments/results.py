"""Files of training runs: a small JSON record under ``results/<recipe>/`` and, until the run ends, a checkpoint.

Every file is written under a temporary name and renamed, so that a kill or a full disk never leaves half a file.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .config import Config

__all__ = [
    "amend_record",
    "check_folders",
    "check_readable",
    "delete_checkpoint",
    "load_checkpoint",
    "machine",
    "missing",
    "read_record",
    "read_records",
    "record_files",
    "record_path",
    "refuse_if_recorded",
    "save_checkpoint",
    "write_beside",
    "write_record",
    "write_whole",
]

PACKAGE = Path(__file__).parents[1]
LONGEST_NAME = 200
"""Characters of a file's name in its temporary name: file systems allow 255."""


def record_path(folder: Path, config: Config) -> Path:
    """The path of the record of a run: ``<folder>/<recipe>/<row>_seed<seed>.json``."""
    row = re.sub(r"[^a-z0-9.]+", "-", config.row.lower()).strip("-")
    return folder / config.recipe / f"{row}_seed{config.seed}.json"


def check_folders(*folders: Path, create: bool = True) -> None:
    """Create missing folders; an error if one cannot be created or is not writable.

    Args:
        folders: the folders.
        create: otherwise none is created, and of a missing one the folder that it would be in is checked.
    """
    for folder in folders:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def check_readable(path: Path) -> None:
    """An error that names the file if it cannot be read: it need not be damaged, but is someone else's for example."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_record(path: Path, config: Config, measured: dict[str, Any]) -> None:
    """Write the record of a run: first the fields that identify it, then all that was measured, then its config.

    If another process has written a record there meanwhile, it is left as it is, and this is an error.
    """
    named = {name: getattr(config, name) for name in ("recipe", "row", "seed", "steps", "weight_decay")}
    text = json.dumps({**named, **measured, "config": asdict(config)}, indent=1) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), new=True)


def refuse_if_recorded(path: Path) -> None:
    """An error if another process has written this record meanwhile."""
    if path.exists():
        raise FileExistsError(_meanwhile(path))


def write_beside(record: Path, ending: str, content: bytes) -> None:
    """Write a further file of a run: beside its record, under the same name with ``ending`` instead of ``.json``."""
    write_whole(record.with_suffix(ending), lambda temporary: temporary.write_bytes(content))


def amend_record(path: Path, found: dict[str, Any]) -> None:
    """Add fields that were measured later to a record, in front of its config."""
    record = json.loads(path.read_text(encoding="utf-8"))
    config = record.pop("config")
    text = json.dumps({**record, **found, "config": config}, indent=1) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_records(folder: Path, recipe: str) -> list[dict[str, Any]]:
    """All records of a recipe, ordered by row and seed."""
    records = [read_record(path) for path in record_files(folder / recipe)]
    return sorted(records, key=lambda record: (record["row"], record["seed"]))


def record_files(folder: Path) -> list[Path]:
    """The files of all records in the folder of a recipe. Hidden files, which some systems leave, are ignored."""
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; if the file is not one, an error names it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not the record of a run, or is damaged ({error!r})") from error
    kinds = {"row": str, "seed": int, "config": dict}
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in kinds.items()):
        raise ValueError(f"{path} is not the record of a run: it must have a row, a seed and a config")
    return record


def save_checkpoint(path: Path, config: Config, state: dict[str, Any], history: dict[str, Any]) -> None:
    """Write a checkpoint: the ``state`` that a run continues from, and the ``history`` for its record."""
    content = {"config": asdict(config), "state": state, "history": history}
    write_whole(path, lambda temporary: torch.save(content, temporary))


def load_checkpoint(path: Path, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the history that `save_checkpoint` wrote, if it was for the same config."""
    check_readable(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        kept = type(config)(**content["config"])
        state, history = content["state"], content["history"]
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise
        raise ValueError(
            f"{path} is not a checkpoint of a run, or is damaged, or from another version of this package; delete it "
            "to start anew"
        ) from error
    if kept != config:
        differing = [name for name, value in asdict(config).items() if asdict(kept)[name] != value]
        raise ValueError(
            f"{path} is the checkpoint of a run with other settings ({', '.join(differing)}); delete it, or give "
            "another folder"
        )
    return state, history


def machine(device: torch.device) -> dict[str, str]:
    """The code version and the hardware, for a record."""
    processor = platform.processor() or platform.machine()
    return {
        "commit": os.environ.get("ROTATIONOUT_COMMIT") or _commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
    }


def _commit(package: Path = PACKAGE) -> str:
    """The git commit of a package, with ``-changed`` if files differ from it; empty outside a repository."""
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(package, "status", "--porcelain", "--", ".")
        return _git(package, "rev-parse", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    around = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # do not get in the way of who commits there at this moment
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, env=around
    )
    return done.stdout.strip()


def write_whole(path: Path, write: Callable[[Path], object], *, new: bool = False) -> None:
    """Let ``write`` write a file atomically: whole or not at all; if ``new``, an error where there is one already.

    Args:
        path: the file; missing folders are created.
        write: writes the content to the temporary path that it is given.
        new: do not replace a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_hidden(path)}{secrets.token_hex(4)}")  # machines that share a disk share numbers
    try:
        write(temporary)
        if new:
            _reach_disk(temporary)
            _place_new(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _reach_disk(path: Path) -> None:
    """Wait until a file is on the disk: after a record its checkpoint is deleted, and a power cut must not empty it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _hidden(path: Path) -> str:
    """What the temporary names of a file begin with; they are not longer than names may be."""
    return f".{path.name[:LONGEST_NAME]}."


def delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint that is no longer needed, and what killed processes have left while they wrote it."""
    for file in (path, *(file for file in path.parent.glob(".*") if file.name.startswith(_hidden(path)))):
        file.unlink(missing_ok=True)


def _place_new(temporary: Path, path: Path) -> None:
    """Rename a file to ``path`` atomically; an error if ``path`` exists."""
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: a kill between these two calls leaves an empty file
            path.touch(exist_ok=False)
            os.replace(temporary, path)
    except FileExistsError as error:
        raise FileExistsError(_meanwhile(path)) from error


def _meanwhile(path: Path) -> str:
    return (
        f"{path} exists already, written by another process; it is left as it is, and this run is kept as a "
        "checkpoint: delete one of them"
    )


def missing(folder: Path, configs: Iterable[Config]) -> list[Config]:
    """The configs that have no record yet, without duplicates.

    It is an error if a record with other settings is in the place of one, or if two configs would share one path.
    """
    places: dict[Path, Config] = {}
    for config in configs:
        path = record_path(folder, config)
        other = places.setdefault(path, config)
        if other != config:
            differing = [name for name, value in asdict(config).items() if asdict(other).get(name) != value]
            raise ValueError(
                f"the rows {other.row!r} and {config.row!r} would both be recorded in {path}, but differ in "
                f"{', '.join(differing)}: rename one of them"
            )
    return [config for path, config in places.items() if not _recorded(path, config)]


def _recorded(path: Path, config: Config) -> bool:
    """Whether a run has a record; an error if the record there has other settings."""
    if not path.exists():
        return False
    try:
        kept = type(config)(**json.loads(path.read_text(encoding="utf-8"))["config"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not the record of a run, or is damaged, or from another version of this package ({error!r})"
        ) from error
    if kept != config:
        raise ValueError(f"{path} is the record of a run with other settings; move it away, or give another folder")
    return True
