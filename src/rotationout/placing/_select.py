"""Select modules of a model by type, by name pattern, by the part that they are in, or by a predicate."""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ._slot import Slot

__all__ = [
    "Candidate",
    "Predicate",
    "Selection",
    "as_list",
    "candidates",
    "check_model",
    "device_near",
    "holders",
    "near",
    "select",
]

Predicate = Callable[[str, nn.Module], bool]
Selection = type[nn.Module] | str | Sequence[type[nn.Module] | str]


@dataclass(frozen=True)
class Candidate:
    """A module of a model with all its names, in order of registration."""

    module: nn.Module
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first name, which stands for the module in messages and reports."""
        return self.names[0]


def check_model(model: nn.Module) -> None:
    """Raise an error if a model cannot be changed, because it is scripted or compiled."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        which = f"{name!r} in the model" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{which} is a {type(module).__name__}, whose code is fixed: change the model that it was made from"
            )
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise ValueError(
                f"{which} is compiled already, and a change would not reach it: change the model first, then compile it"
            )


def device_near(model: nn.Module, module: nn.Module) -> torch.device | None:
    """The device of a module's tensors, or of the closest module before it, or else after it; None if there are none.

    >>> model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.ReLU(), nn.Linear(2, 2))
    >>> device_near(model, model[1]), device_near(model, model[2]), device_near(model[1], model[1])
    (device(type='meta'), device(type='cpu'), None)
    """
    parts = list(model.modules())
    place = parts.index(module)
    for part in (module, *parts[:place][::-1], *parts[place:]):
        for tensor in (*part.parameters(recurse=part is module), *part.buffers(recurse=part is module)):
            return tensor.device
    return None


def candidates(model: nn.Module) -> list[Candidate]:
    """All modules of a model except inserted noises, each once."""
    names: dict[nn.Module, list[str]] = {}
    hidden: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Slot):
            hidden.append(f"{name}.")
        elif not hidden or not name.startswith(hidden[-1]):
            names.setdefault(module, []).append(name)
    return [Candidate(module, tuple(found)) for module, found in names.items()]


def holders(model: nn.Module) -> dict[nn.Module, list[tuple[nn.Module, str]]]:
    """For every module, the modules that hold it and the names under which they do."""
    found: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for owner in model.modules():
        for key, child in owner._modules.items():  # named_children() skips second names
            if child is not None:
                found.setdefault(child, []).append((owner, key))
    return found


def select(
    found: Iterable[Candidate],
    argument: str,
    selection: Selection,
    within: str | Sequence[str] | None,
    where: Predicate | None,
) -> list[Candidate]:
    """The selected candidates, at least one, or an error that says what the model has instead.

    Args:
        found: all candidates.
        argument: the name of the argument that held ``selection``, for messages.
        selection: types and name patterns.
        within: names or patterns of parts of the model.
        where: a predicate (name, module).
    """
    everything = list(found)
    wanted = _check_selection(argument, selection)
    names = [name for candidate in everything for name in candidate.names if name]
    for pattern in wanted:
        if isinstance(pattern, str) and not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"{argument}={pattern!r} matches no module name; {near(pattern, names)}")
    parts = [] if within is None else as_list(within)
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"within must be names of parts of the model, got {type(part).__name__} {part!r}")
        if not any(_inside(name, part) for name in names):
            raise ValueError(f"within={part!r} is no part of the model; {near(part, names)}")
    if where is not None and not callable(where):
        raise TypeError(f"where must be a function of (name, module), got {type(where).__name__}")
    matching = [candidate for candidate in everything if _matches(candidate, wanted)]
    if not matching:
        there = Counter(type(candidate.module).__name__ for candidate in everything)
        kinds = ", ".join(t.__name__ for t in wanted if not isinstance(t, str))
        raise ValueError(
            f"{argument}={kinds} matches no module; the model has "
            + ", ".join(f"{count} {kind}" for kind, count in there.most_common(12))
        )
    chosen = [
        candidate
        for candidate in matching
        if (not parts or any(_inside(name, part) for name in candidate.names for part in parts))
        and (where is None or where(candidate.name, candidate.module))
    ]
    if chosen:
        return chosen
    narrowed = " and ".join(
        [*([f"within={within!r}"] if parts else []), *(["the predicate where"] if where is not None else [])]
    )
    raise ValueError(
        f"{argument} matches {len(matching)} modules, but {narrowed} leaves none of them: "
        + ", ".join(repr(candidate.name) for candidate in matching[:8])
        + (", …" if len(matching) > 8 else "")
    )


def near(wanted: str, names: Iterable[str]) -> str:
    """The names nearest to a pattern, for an error message."""
    known = [name for name in dict.fromkeys(names) if name]
    if not known:
        return "the model has no parts with names: choose it by its type"
    plain = wanted.replace("*", "")
    close = difflib.get_close_matches(plain, known, n=3, cutoff=0.6)
    if not close:  # perhaps only the end of the name was given
        ends = {name.rpartition(".")[2]: name for name in reversed(known)}
        close = [ends[end] for end in difflib.get_close_matches(plain.rpartition(".")[2], ends, n=3, cutoff=0.6)]
    if close:
        return f"the nearest are {', '.join(map(repr, close))}; a * stands for anything"
    return f"there are {', '.join(map(repr, known[:8]))}{', …' if len(known) > 8 else ''}"


def as_list(value: Any) -> list[Any]:
    """One thing, or several in a sequence, as a list; text is one thing."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _check_selection(argument: str, selection: Selection) -> list[type[nn.Module] | str]:
    wanted = as_list(selection)
    for one in wanted:
        if not isinstance(one, str) and not (inspect.isclass(one) and issubclass(one, nn.Module)):
            kind = "an instance" if isinstance(one, nn.Module) else type(one).__name__
            raise TypeError(
                f"{argument} must be types of modules or patterns of their names, e.g. nn.Conv2d or 'layer4.*.conv1', "
                f"got {kind} {one!r}"
            )
    if not wanted:
        raise ValueError(f"{argument} is empty; give a type or a pattern of names")
    return wanted


def _matches(candidate: Candidate, wanted: list[type[nn.Module] | str]) -> bool:
    return any(
        any(name and fnmatchcase(name, one) for name in candidate.names)
        if isinstance(one, str)
        else isinstance(candidate.module, one)
        for one in wanted
    )


def _inside(name: str, part: str) -> bool:
    return bool(name) and (fnmatchcase(name, part) or fnmatchcase(name, f"{part}.*"))
