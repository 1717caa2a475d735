"""`swap`: replace the Dropout of a model by rotations."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..nn import RotationOut, RotationOut1d, RotationOut2d, RotationOut3d
from ..nn.base import Noise
from ..registry import KINDS, is_noise
from ._layout import dims_of_module, named_attention
from ._probe import Seen, dims_between, watch
from ._report import SINGLE_FEATURE, Change, Left, Report, fold
from ._select import Candidate, candidates, check_model, device_near, holders

__all__ = ["swap"]

_ROTATIONS: tuple[Callable[..., nn.Module], ...] = (RotationOut, RotationOut1d, RotationOut2d, RotationOut3d)
_DIMS = {nn.Dropout: None, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""Torch's layers, and how many axes follow the features, if the type tells."""
_HIDDEN = re.compile(r"resid|proj|out|hidden")
"""Parts of the names (without "dropout") of Dropout on hidden states in a module that has attention weights too."""
_NONE = "it has no Dropout module; insert adds noise, and analysis.lint finds Dropout that is called as a function"
_SINGLE = " (on maps of one position in the run, so without a batch mean)"
_OFF = "it is off: build the model with Dropout, or use insert"


class _LeftAloneError(Exception):
    """A module is to be left alone; the message says why."""


class _UnsureError(_LeftAloneError):
    """A module is to be left alone only because it is not known where its features are."""


def swap(model: nn.Module, example_inputs: Any = None, **choices: Any) -> Report:
    """Replace Dropout by rotations of equal strength λ = p / (1 − p).

    - ``nn.Dropout1d``, ``2d``, ``3d`` become `RotationOut1d`, ``2d``, ``3d``. ``nn.Dropout2d`` takes three axes for a
      batch of sequences (N, C, L), and there becomes `RotationOut1d`. On vectors they are left alone.
    - DropBlock (torchvision's, timm's) with a share c of the map in its blocks becomes a rotation inside blocks of that
      size and coverage c, with λ = 1 / (1 − c) inside them: c / (1 − c) over the whole map, as strong as Dropout
      with p = c.
    - ``nn.Dropout`` on hidden states becomes `RotationOut`, on maps `RotationOut1d`, ``2d`` or ``3d``. A run of the
      model on ``example_inputs`` shows which. Without them it is replaced only where the code leaves no doubt: in a
      ``nn.Sequential`` next to a layer whose axis is known, in torch's transformer layers, and in those parts of
      torchvision, timm and transformers that work on the last axis only.
    - Left alone are Dropout on attention weights and other results of a softmax, noises that drop whole branches,
      noises that are off (p = 0), and layers of `rotationout`.

    A module used in several places is replaced in all of them by one and the same rotation.

    Args:
        model: changed in place; nothing changes if anything fails.
        example_inputs: an input of the model, for one run in eval mode without gradients: a tensor, a tuple of
            arguments, or a mapping of keyword arguments.
        choices: keyword arguments of the rotations, e.g. ``preset="paper"``. With ``center="running"`` the run shows
            the number of features of every place; one that it does not reach is left alone. Maps that have a single
            position in the run are rotated about the origin by default, and the report says so.

    Returns:
        A report of what was replaced, and of what was left alone and why; ``print`` it. If Dropout was left alone only
        because it is not known where its features are, there is a warning too.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    >>> print(swap(model, pairing="permutation"))
    1 placed
      RotationOut(p=0.2, permutation per row, gaussian_tan per row, symmetric, center=None)
        instead of Dropout(p=0.2, inplace=False): 2
    """
    check_model(model)
    known = KINDS["rotation"].options.keys() - {"dims", "block_size", "coverage"}
    unknown = sorted(choices.keys() - known)
    if unknown:
        own = "; every rotation takes the p of the Dropout that it replaces" if "p" in unknown else ""
        right = ", ".join(sorted(known))
        raise TypeError(
            f"swap has no choice {', '.join(unknown)}{own}; it takes example_inputs, and of RotationOut {right}"
        )
    if choices.get("center") == "running" and example_inputs is None and "num_features" not in choices:
        raise ValueError(
            "center='running' needs the number of features of every place: show it an input, "
            "swap(model, example_inputs=batch), or give num_features if it is the same everywhere"
        )
    if is_noise(model):
        raise ValueError(f"the model itself is a {type(model).__name__}; replace it in the module that holds it")
    found = [candidate for candidate in candidates(model) if is_noise(candidate.module)]
    owners = holders(model)
    seen = None
    if example_inputs is not None:
        seen = watch(model, example_inputs, [one.module for one in found])
    around = {dims_of_module(module) for module in model.modules() if not is_noise(module)} - {None}
    changed, left, unsure = [], _arguments(model), []
    for candidate in found:
        module, name = candidate.module, candidate.name
        try:
            rotation = _rotation(candidate, owners[module], None if seen is None else seen[module], around, choices)
        except _LeftAloneError as reason:
            words = type(module).__name__ if module._modules else repr(module)
            left.append(Left(name, words, str(reason)))
            unsure += [name] if isinstance(reason, _UnsureError) else []
            continue
        rotation.to(device_near(model, module)).train(module.training)
        single = not isinstance(rotation, RotationOut) and rotation.center is None and "center" not in choices
        words = repr(module) + (_SINGLE if single else "")
        changed.append((module, Change(name, words, "instead of", rotation, candidate.names[1:])))
    for module, change in changed:
        for owner, key in owners[module]:
            setattr(owner, key, change.noise)
    if not changed and not left:
        left = [Left("", type(model).__name__, _NONE)]
    if unsure:
        why = (
            "The code alone does not say on which axis the features are there; show it an input, "
            "swap(model, example_inputs=batch)"
            if seen is None
            else "The run does not say on which axis the features are there; print what swap returns to see why"
        )
        warnings.warn(
            f"swap left Dropout as it was in {len(unsure)} place{'s' if len(unsure) > 1 else ''}: "
            f"{', '.join(fold(unsure))}. {why}",
            stacklevel=2,
        )
    return Report(tuple(change for _, change in changed), tuple(left))


def _arguments(model: nn.Module) -> list[Left]:
    """Report Dropout that is an argument of a module and not a module itself."""
    left = []
    for candidate in candidates(model):
        rate = getattr(candidate.module, "dropout", None)
        if not isinstance(rate, float | int) or not rate:
            continue
        if isinstance(candidate.module, nn.MultiheadAttention):
            left.append(Left(candidate.name, f"MultiheadAttention, dropout={rate}", "it is on attention weights"))
        elif isinstance(candidate.module, nn.RNNBase):
            kind = type(candidate.module).__name__
            why = "it is between the layers of one module: see rotationout.nn.NoisyLSTM.from_module"
            left.append(Left(candidate.name, f"{kind}, dropout={rate}", why))
    return left


def _rotation(
    candidate: Candidate,
    owners: list[tuple[nn.Module, str]],
    seen: Seen | None,
    around: set[int | None],
    choices: dict[str, Any],
) -> nn.Module:
    """The rotation that replaces a noise, or a `_LeftAloneError`.

    Args:
        candidate: the noise.
        owners: the modules that have it, and under which name.
        seen: what was seen of it in a run, if there was one.
        around: how many axes follow the features in any module of the model.
        choices: keyword arguments of the rotation.
    """
    module = candidate.module
    if isinstance(module, Noise):
        raise _LeftAloneError("it is a layer of rotationout")
    if module._forward_hooks or module._forward_pre_hooks:
        raise _LeftAloneError("it has hooks, such as those of a noise that was inserted there")
    block = next((base.__name__ for base in type(module).__mro__ if base.__name__.startswith("DropBlock")), None)
    if block is not None:
        return _blocks(module, 3 if block.endswith("3d") else 2, seen, choices)
    if not isinstance(module, _DropoutNd):
        raise _LeftAloneError("it drops whole branches, not features")
    if type(module) not in _DIMS:
        raise _LeftAloneError("it is another kind of noise, without a matching strength")
    if not 0.0 < module.p < 1.0:
        raise _LeftAloneError(_OFF if module.p == 0.0 else "it drops everything: its strength is infinite")
    dims = _DIMS[type(module)]
    dims = _dims(owners, seen) if dims is None else _dims_of_maps(dims, owners, seen, around)
    return _ROTATIONS[dims](module.p, **_options(dims, seen, choices))


def _blocks(module: nn.Module, dims: int, seen: Seen | None, choices: dict[str, Any]) -> nn.Module:
    share = float(cast(float, getattr(module, "p", getattr(module, "drop_prob", 0.0))))
    share *= float(cast(float, getattr(module, "gamma_scale", 1.0)))
    if not 0.0 < share < 1.0:
        raise _LeftAloneError(_OFF if share == 0.0 else "it drops everything: its strength is infinite")
    if getattr(module, "with_noise", False):
        raise _LeftAloneError("it fills its blocks with noise")
    lam = 1 / (1 - share)  # inside the blocks
    options = _options(dims, seen, choices)
    return _ROTATIONS[dims](lam / (1 + lam), block_size=module.block_size, coverage=share, **options)


def _options(dims: int, seen: Seen | None, choices: dict[str, Any]) -> dict[str, Any]:
    """The choices for a rotation, and what it must be told of its place besides, or a `_LeftAloneError`."""
    if seen is not None and any(shape[-1 - dims] == 1 for shape in seen.shapes):
        raise _LeftAloneError(SINGLE_FEATURE)
    options = dict(choices)
    if _single(dims, seen) and {"center", "preset"}.isdisjoint(choices):
        options["center"] = None
    if choices.get("center") == "running":
        options["num_features"] = _num_features(dims, seen, choices.get("num_features"))
    return options


def _single(dims: int, seen: Seen | None) -> bool:
    """Whether all maps have one position: as on vectors, a batch of one example would have no batch mean."""
    shapes = seen.shapes if dims and seen is not None else ()
    return bool(shapes) and all(math.prod(shape[-dims:]) == 1 for shape in shapes)


def _num_features(dims: int, seen: Seen | None, given: int | None) -> int | None:
    """The number of features at a place: that of the run if there was one, otherwise the one that was given."""
    if seen is None:
        return given
    widths = {shape[-1 - dims] for shape in seen.shapes}
    others = sorted(widths - {given})
    if given is not None and others:
        raise ValueError(
            f"num_features = {given} does not fit a Dropout on {' and '.join(map(str, others))} features; leave it "
            "out: the run with example_inputs shows the number of features of every place"
        )
    if len(widths) != 1:
        found = f"it is used for {' and '.join(map(str, sorted(widths)))}" if widths else "it was not called"
        raise _LeftAloneError(f"a running mean is for one number of features, but {found}")
    return widths.pop()


def _dims(owners: list[tuple[nn.Module, str]], seen: Seen | None) -> int:
    """How many axes follow the features of a Dropout, or a `_LeftAloneError`."""
    if any(re.search("att(ention|n)", key.lower()) for _, key in owners):
        raise _LeftAloneError("it is on attention weights, by its name")
    if seen is not None and seen.calls:
        return _observed(seen)
    attends = any(_attends(owner, key) for owner, key in owners)
    known = {None} if attends else {_certain(owner, key) for owner, key in owners}
    dims = known.pop() if len(known) == 1 else None
    if dims is not None:  # also of one that was not called in the run, such as an auxiliary head's
        return dims
    if seen is not None:
        raise _LeftAloneError("it was not called: it is not used, or in training mode alone, or only its p is read")
    if attends:
        # Where another module inside attends, as in T5LayerSelfAttention, it is rather on hidden states.
        inside = any(named_attention(part) for owner, _ in owners for part in list(owner.modules())[1:])
        kind = _UnsureError if inside else _LeftAloneError
        raise kind("it may be on attention weights; example_inputs would tell")
    raise _UnsureError("the code does not say on which axis its features are; example_inputs would tell")


def _dims_of_maps(dims: int, owners: list[tuple[nn.Module, str]], seen: Seen | None, around: set[int | None]) -> int:
    """How many axes follow the features of a Dropout1d, 2d or 3d, or a `_LeftAloneError`.

    Torch gives other tensors than their names say to these layers: sequences (N, C, L) to a Dropout2d, and vectors
    (N, C) to all of them, where a rotation would mix examples.
    """
    if seen is not None and seen.calls:
        axes = {len(shape) for shape in seen.shapes}
        if len(axes) > 1 or not axes <= ({3, 4} if dims == 2 else {dims + 2}):
            raise _LeftAloneError(f"it is used for tensors with {' and '.join(map(str, sorted(axes)))} axes")
        return axes.pop() - 2
    known = {_certain(owner, key) for owner, key in owners}
    if 0 in known:
        raise _LeftAloneError("it is for maps, but next to a layer with the features on the last axis")
    if dims == 2 and known in ({1}, {2}):
        return known.pop() or 0
    if dims == 2 and around and (1 in around or 2 not in around):
        raise _UnsureError("it may be on sequences (N, C, L), which torch allows too; example_inputs would tell")
    return dims


def _observed(seen: Seen) -> int:
    if seen.attention:
        raise _LeftAloneError("it is on attention weights, or on values that sum to one like them")
    if len(seen.dims) != 1:
        unknown = "its neighbours do not say on which axis its features are"
        found = "it is used for features on different axes" if seen.dims else unknown
        raise _UnsureError(f"{found}: replace it by hand, or insert noise there")
    return next(iter(seen.dims))


def _attends(owner: nn.Module, key: str) -> bool:
    """Whether a module may use its Dropout on attention weights, like ``attention.self.dropout`` in transformers."""
    called = key.lower().replace("dropout", "")
    return named_attention(owner) and not _HIDDEN.search(called)


def _certain(owner: nn.Module, key: str) -> int | None:
    """How many axes follow the features of a Dropout; None if the code of its owner leaves a doubt."""
    dims = dims_between(owner, key)
    if dims is not None:
        return dims
    if type(owner) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return 0
    if type(owner).__module__.partition(".")[0] not in ("torchvision", "timm", "transformers"):
        return None
    around = {dims_of_module(module) for module in owner.modules() if not is_noise(module)} - {None}
    return 0 if around == {0} else None
