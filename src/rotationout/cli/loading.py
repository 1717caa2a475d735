"""A user's own model and data: ``pkg.module:name`` as an object, files as batches, weights into a model.

A wrong argument is a `misuse` that says what would be right; an error in the user's code is reported with the line that
it comes from.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..experiments.results import check_readable
from .trouble import misuse

__all__ = ["batches_of", "checked_call", "load_weights", "model_of", "object_of"]

FILES = (".pt", ".pth", ".npy", ".npz")


def object_of(reference: str, option: str) -> Any:
    """What ``pkg.module:name`` names; modules are also looked for in the working directory.

    >>> object_of("torch.nn:Linear", "MODEL").__name__
    'Linear'
    """
    module_name, _, path = reference.partition(":")
    meant = _module_of_file(module_name)
    instead = f"; write {meant}:{path}" if meant and path else ""
    if not path or not all(part.isidentifier() for part in module_name.split(".")):
        instance = "" if instead else f", for instance {meant or 'my_project.models'}:build_model"
        misuse(f"must be pkg.module:name{instance}, got {reference!r}{instead}", option)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            misuse(f"there is no module {error.name!r} in {Path.cwd()}, and none is installed{instead}", option)
        raise ValueError(f"{module_name} cannot be imported: it needs {error.name}, which is not installed") from error
    except (Exception, SystemExit) as error:  # scripts that look at their arguments end so
        raise ValueError(f"{module_name} cannot be imported: {_told(error)}") from error
    for part in path.split("."):
        if not hasattr(value, part):
            public = [name for name in dir(value) if not name.startswith("_")]
            near = difflib.get_close_matches(part, public, n=1)
            misuse(f"{module_name} has no {path!r}" + (f"; did you mean {near[0]!r}?" if near else ""), option)
        value = getattr(value, part)
    return value


def _module_of_file(name: str) -> str:
    """The module that a file is, seen from the working directory; "" if it is none.

    >>> _module_of_file("my_models.py"), _module_of_file("./src/nets.py"), _module_of_file("my_models")
    ('my_models', 'src.nets', '')
    """
    parts = Path(name.removesuffix(".py")).parts
    return ".".join(parts) if name.endswith(".py") and all(map(str.isidentifier, parts)) else ""


def model_of(reference: str) -> nn.Module:
    """The model that ``pkg.module:name`` is, or that it returns when it is called.

    >>> model_of("torch.nn:Identity")
    Identity()
    """
    found = object_of(reference, "MODEL")
    if not isinstance(found, nn.Module):
        found = _called(found, reference, "MODEL")
    if not isinstance(found, nn.Module):
        misuse(f"{reference} must be or return a torch.nn.Module, got {type(found).__name__}", "MODEL")
    return found


def batches_of(source: str, size: int, limit: int) -> list[Any] | Iterable[Any]:
    """Batches for a model: those of an object ``pkg.module:name``, or a file cut into batches of ``size``.

    An object is an iterable of batches or a function that returns one, a DataLoader for instance. A file (.pt, .npy or
    .npz) holds inputs, examples along the first axis, which are shuffled; a .pt file may also hold (inputs, targets), a
    mapping of keyword arguments, or a list of batches.
    """
    if Path(source).suffix.lower() in FILES:
        path = Path(source)
        if not path.is_file():
            misuse(f"there is no file {source!r}", "--data")
        return _cut(_content(path), size, path)
    if ":" not in source:
        misuse(f"must be a file ({', '.join(FILES)}) or pkg.module:name of batches, got {source!r}", "--data")
    found = object_of(source, "--data")
    if not isinstance(found, Iterable):
        found = _called(found, source, "--data")
    if isinstance(found, Tensor | str | Mapping) or not isinstance(found, Iterable):
        misuse(f"{source} must be or return batches, a DataLoader or a list, got {type(found).__name__}", "--data")
    # What can be gone through only once is kept: several passes need the same batches.
    if isinstance(found, Iterator):
        return list(checked_call(f"{source} failed", lambda: list(itertools.islice(found, limit))))
    return found


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a file with its state_dict, alone or under the name state_dict or model."""
    content = _content(path, "; of a model, save model.state_dict()")
    for name in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} must hold a state_dict, tensors by name, got {type(content).__name__}")
    try:
        model.load_state_dict(content)
    except RuntimeError as error:
        prefix = _shared_prefix(content, model.state_dict())
        if prefix:
            raise ValueError(
                f"{path} is of a model that holds this one: the name of every weight in it begins with {prefix!r}. "
                "Save the state_dict of the model itself, or name a function that builds the whole"
            ) from error
        raise ValueError(f"{path} does not fit the model: {' '.join(str(error).split())}") from error


def _shared_prefix(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What the names in a state_dict have in front of those of the model, e.g. DDP's ``module.``; "" if nothing.

    >>> _shared_prefix({"module.weight": 0, "module.bias": 0}, {"weight": 0, "bias": 0})
    'module.'
    >>> _shared_prefix({"weight": 0}, {"weight": 0})
    ''
    """
    first = next(iter(content), "")
    found = [first.removesuffix(name) for name in wanted if first.endswith(name)]
    return next((one for one in found if one and {one + name for name in wanted} == {*content}), "")


def checked_call(what: str, call: Callable[[], Any]) -> Any:
    """The result of a user's code; its errors as a ValueError that says where they come from."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: {_told(error)}") from error


def _called(value: Any, reference: str, option: str) -> Any:
    if not callable(value):
        return value
    try:
        inspect.signature(value).bind()
    except TypeError:
        misuse(f"{reference} needs arguments {inspect.signature(value)}; name a function that needs none", option)
    except ValueError:  # a builtin does not tell
        pass
    return checked_call(f"{reference} failed", value)


def _told(error: BaseException) -> str:
    """An error in a line, with the line of code outside torch that it comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename.replace("\\", "/")]
    own = [
        f for f in frames if Path(__file__).parents[1] not in Path(f.filename).parents and "importlib" not in f.filename
    ]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


def _content(path: Path, instead: str = "") -> Any:
    """What a file holds, as tensors; ``instead`` is advice for one that holds something else."""
    check_readable(path)
    try:
        if path.suffix.lower() in (".npy", ".npz"):
            import numpy as np

            found = np.load(path, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return torch.from_numpy(found)
            return {name: torch.from_numpy(found[name]) for name in found.files}
        return torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # of many types, with messages of a page or of a number
        wanted = "arrays of numbers" if path.suffix.lower() in (".npy", ".npz") else "tensors in plain containers"
        why = f"it is damaged, or holds something other than {wanted}{instead}"
        raise ValueError(f"{path} cannot be read: {why}") from error


def _cut(content: Any, size: int, path: Path) -> list[Any]:
    """Batches of what a file holds."""
    if isinstance(content, list):
        return content
    if isinstance(content, tuple) and content:
        content = content[0]
    if isinstance(content, dict) and path.suffix.lower() == ".npz":
        if len(content) > 1 and "x" not in content:
            raise ValueError(f"{path} must hold one array, or the inputs as x; it holds {', '.join(content)}")
        content = content["x"] if "x" in content else next(iter(content.values()))
    parts = content if isinstance(content, dict) else {"": content}
    if not all(isinstance(value, Tensor) and value.ndim for value in parts.values()):
        got = "a number" if isinstance(content, Tensor) else type(content).__name__
        raise ValueError(f"{path} must hold inputs as tensors, examples along the first axis, got {got}")
    lengths = {len(value) for value in parts.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"{path} must hold equally many examples in every tensor, at least one, got {sorted(lengths)}")
    # Batches as in training: a file may be sorted by class.
    order = torch.randperm(lengths.pop(), generator=torch.Generator().manual_seed(0))
    count = math.ceil(len(order) / size)  # of about the same size: BatchNorm cannot do with a last one of one example
    cut = {name: _as_inputs(value)[order].tensor_split(count) for name, value in parts.items()}
    if isinstance(content, dict):
        return [dict(zip(cut, values, strict=True)) for values in zip(*cut.values(), strict=True)]
    return list(cut[""])


def _as_inputs(value: Tensor) -> Tensor:
    """Floating-point numbers in the type that parameters have; NumPy's are double."""
    return value.to(torch.get_default_dtype()) if value.is_floating_point() else value
