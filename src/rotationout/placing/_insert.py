"""Place noise before or after modules of a model, and take it away again."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import strength
from ..nn import NoisyGRU, NoisyLSTM, ShakeShake, WeightDrop
from ..nn.stack_noise import noise_for
from ._layout import dims_of_module, dims_of_noise, takes_axis, width_of_module
from ._probe import called, read_only
from ._report import SINGLE_FEATURE, Change, Left, Report, named
from ._select import Candidate, Predicate, Selection, as_list, candidates, check_model, device_near, holders, select
from ._slot import After, Before, Slot, attach, detach, slots

__all__ = ["insert", "place", "plan", "remove"]

_SEQUENCES = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    WeightDrop,
    NoisyLSTM,
    NoisyGRU,
)
"""Modules on sequences, where ``batch_first`` says whether time or the batch is the first axis."""

Noises = nn.Module | Callable[[str, nn.Module], nn.Module]
Plan = tuple[list[tuple[Candidate, Slot]], list[Left]]


def insert(
    model: nn.Module,
    noise: Noises,
    *,
    before: Selection | None = None,
    after: Selection | None = None,
    within: str | Sequence[str] | None = None,
    where: Predicate | None = None,
    dim: int | None = None,
    example_inputs: Any = None,
) -> Report:
    """Place a copy of ``noise`` before or after every selected module.

    Parameters, the keys of the state_dict and outputs in eval mode do not change (except that a running mean of the
    noise adds a key), and `remove` undoes it. A module that is called several times draws noise anew at every call; one
    that is used in several places has noise in all of them. Insert first, then wrap, compile or export the model, and
    build a `rotationout.Schedule`.

    After a module that returns a tuple, noise acts on the first entry: for an LSTM the sequence, not the states. Noise
    before or after a `torch.nn.Sequential` is placed at its first or last step.

    Args:
        model: changed in place.
        noise: a noise without parameters, e.g. ``RotationOut2d(0.2)``; or a function of (name, module) that makes one
            for each place, e.g. with running means of different sizes.
        before: types of modules, or patterns of their names, in which a * stands for anything: ``nn.Conv2d``,
            ``"layer4.*.conv1"``, or several in a list.
        after: the same; give one of the two. If only ``where`` is given, noise goes after the modules it selects.
        within: names or patterns of parts of the model: only modules inside them.
        where: a predicate (name, module): only modules for which it is true.
        dim: the feature axis at these places. It is known for convolutions and pools (channels) and for linear,
            recurrent and attention layers, LayerNorm and embeddings (the last axis), but not for an activation or a
            block of your own. If given, it is moved to where the noise looks for features: last for `RotationOut`,
            first after the batch for maps.
        example_inputs: an input of the model, for one run in eval mode without gradients: a tensor, a tuple of
            arguments, or a mapping of keyword arguments. Modules that are not called in it are left alone. Without it
            a module is left alone if the code of its owner reads its weights and may never call it, as that of
            `torch.nn.MultiheadAttention` does.

    Returns:
        A report of what was placed where, and of modules left alone because noise there would never act; ``print`` it.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> import rotationout as ro
    >>> print(ro.insert(model, ro.nn.GaussianDropout(0.2), before=nn.Linear, where=lambda name, m: name != "0"))
    1 placed
      GaussianDropout(p=0.2) before Linear: 2
    """
    return place(
        plan(
            model,
            noise,
            before=before,
            after=after,
            within=within,
            where=where,
            dim=dim,
            example_inputs=example_inputs,
        )
    )


def remove(model: nn.Module) -> Report:
    """Take away everything that `insert` has placed in a model, which is then as it was.

    >>> import rotationout as ro
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
    >>> _ = ro.insert(model, ro.nn.GaussianDropout(0.2), after=nn.Linear)
    >>> print(ro.remove(model))
    2 removed
      GaussianDropout(p=0.2) after Linear: 0, 1
    >>> len(ro.remove(model))
    0
    """
    check_model(model)
    removed = []
    for candidate in candidates(model):
        for slot in slots(candidate.module):
            removed.append(_change(candidate, slot))
            detach(candidate.module, slot)
    return Report(tuple(removed), done="removed")


def plan(
    model: nn.Module,
    noise: Noises,
    *,
    before: Selection | None = None,
    after: Selection | None = None,
    within: str | Sequence[str] | None = None,
    where: Predicate | None = None,
    dim: int | None = None,
    example_inputs: Any = None,
) -> Plan:
    """What `insert` would do: slots with their noises, and modules to leave alone. The model does not change."""
    check_model(model)
    if before is not None and after is not None:
        raise ValueError("give before or after, not both; insert twice to have noise on both sides")
    if before is None and after is None and where is None:
        raise ValueError("say where: before=… or after=…, a type or a pattern of names, or where=…, a predicate")
    if dim is not None:
        dim = strength.check_integer("dim", dim, also="None")
    side, selection = ("before", before) if before is not None else ("after", nn.Module if after is None else after)
    found = candidates(model)
    argument = side if before is not None or after is not None else "where"
    by_module = {candidate.module: candidate for candidate in found}
    owners = holders(model)
    ran = None if example_inputs is None else called(model, example_inputs)
    planned: dict[nn.Module, tuple[Candidate, Slot]] = {}
    left = []
    for chosen in select(found, argument, selection, within, where):
        target = by_module[_step(chosen.name, chosen.module, side)]
        _check_shared(chosen, target, side)
        why = _uncalled(target.module, owners.get(target.module, []), ran)
        if why:
            left.append(Left(target.name, type(target.module).__name__, why))
            continue
        if target.module in planned:
            continue
        slot = _slot(target, noise, side, dim, model)
        if dim is None and _alone(slot.noise, width_of_module(target.module, side)):
            left.append(Left(target.name, type(target.module).__name__, SINGLE_FEATURE))
        else:
            planned[target.module] = target, slot
    if not planned:
        raise ValueError(f"nothing to place noise {side}: " + "; ".join(map(str, left)))
    _warn_of_nesting(side, selection, [candidate.name for candidate, _ in planned.values()])
    return list(planned.values()), left


def _warn_of_nesting(side: str, selection: Selection, names: list[str]) -> None:
    """Warn of a pattern that selects modules together with modules inside them, as its * stands for dots too."""
    for pattern in (one for one in as_list(selection) if isinstance(one, str)):
        chosen = {name for name in names if fnmatchcase(name, pattern)}
        inside = [name for name in names if name in chosen and any(name.startswith(f"{outer}.") for outer in chosen)]
        if inside:
            warnings.warn(
                f"{side}={pattern!r} places noise at {len(inside)} module{'s' if len(inside) > 1 else ''} inside "
                f"others that get noise too, e.g. at {inside[0]!r}: a * stands for dots as well. To have the outer "
                "modules only, give their type, or where=…",
                stacklevel=4,
            )


def place(planned: Plan) -> Report:
    """Carry out a plan: all of it or, if a module refuses its hook, nothing."""
    places, left = planned
    done: list[tuple[nn.Module, Slot]] = []
    try:
        for candidate, slot in places:
            attach(candidate.module, slot)
            done.append((candidate.module, slot))
    except BaseException:
        for module, slot in done:
            detach(module, slot)
        raise
    return Report(tuple(_change(*one) for one in places), tuple(left))


def _change(candidate: Candidate, slot: Slot) -> Change:
    side = "before" if isinstance(slot, Before) else "after"
    return Change(candidate.name, type(candidate.module).__name__, side, slot.noise, candidate.names[1:])


def _alone(noise: nn.Module, width: int | None) -> bool:
    """Whether a noise that mixes features would find a single one."""
    return width == 1 and any(getattr(part, "_mixes", False) for part in noise.modules())


def _uncalled(module: nn.Module, owners: list[tuple[nn.Module, str]], ran: set[nn.Module] | None) -> str | None:
    """Why a hook at a module would never run; None if it would."""
    if ran is not None:
        return None if module in ran else "it was not called in a run of the model"
    if owners and all(key in read_only(cast(Any, type(owner))) for owner, key in owners):
        kind = type(owners[0][0]).__name__
        return (
            f"{kind} reads its weights and may never call it, so that noise there would not act; place it at the "
            f"{kind}, or give example_inputs to find out"
        )
    return None


def _step(name: str, module: nn.Module, side: str) -> nn.Module:
    """The module to place noise at: ``module`` itself, or the first or last step of a nn.Sequential."""
    while isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            raise ValueError(
                f"{named(name)} is a {type(module).__name__}, a nn.Sequential with a forward of its own, which might "
                "run a noise as one of its steps: choose a module inside"
            )
        if not len(module):
            raise ValueError(f"{named(name)} is an empty nn.Sequential: there is nothing to place noise {side}")
        module = module[0 if side == "before" else len(module) - 1]
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        raise ValueError(f"{named(name)} is a {type(module).__name__}, a container: choose the modules in it")
    return module


def _check_shared(chosen: Candidate, target: Candidate, side: str) -> None:
    """Refuse a step of a nn.Sequential that the model also has elsewhere: noise at it would act there too."""
    inside = tuple(f"{name}." if name else "" for name in chosen.names)
    elsewhere = [name for name in target.names if name not in chosen.names and not name.startswith(inside)]
    if elsewhere:
        raise ValueError(
            f"the {'first' if side == 'before' else 'last'} step of {named(chosen.name)} is also at "
            f"{named(elsewhere[0])}, where the noise would act too: give each place a {type(target.module).__name__} "
            "of its own, or choose other modules"
        )


def _slot(target: Candidate, noise: Noises, side: str, dim: int | None, model: nn.Module) -> Slot:
    """A slot with a copy of the noise for this place, or an error if the noise does not fit."""
    name, module = target.name, target.module
    kind = Before if side == "before" else After
    if hasattr(module, kind.key):
        raise ValueError(
            f"there is a noise {side} {named(name)} already; rotationout.remove(model) takes all of them away"
        )
    if side == "before" and isinstance(module, nn.Embedding | nn.EmbeddingBag):
        raise ValueError(f"{named(name)} is an {type(module).__name__}, which takes indices: place noise after it")
    if side == "after" and isinstance(module, nn.RNNCellBase):
        raise ValueError(
            f"the output of {named(name)}, a {type(module).__name__}, is its state too, which noise would disturb from "
            "step to step: place noise before it, or before a module that uses its output"
        )
    _check_made(noise)
    made = noise if isinstance(noise, nn.Module) else noise(name, module) if callable(noise) else noise
    own = _copy(made, name, module)
    if isinstance(model, DistributedDataParallel) and getattr(own, "running_mean", None) is not None:
        raise ValueError(
            f"DistributedDataParallel keeps buffers equal in all processes, but would not know of the running mean of "
            f"{type(own).__name__} at {named(name)}: insert first, then wrap"
        )
    axis = _axis(own, name, module, side, dim)
    own.to(device_near(model, module)).train(module.training)
    argument = next(iter(inspect.signature(module.forward).parameters), "input")
    slot = kind(own, place=name, dim=axis, dims=dims_of_noise(own) or 0, argument=argument)
    return slot.train(module.training)


def _check_made(noise: object) -> None:
    """Refuse a class of noises: it is callable, but not with (name, module)."""
    if isinstance(noise, type) and issubclass(noise, nn.Module):
        raise TypeError(f"noise must be a module, got the class {noise.__name__}; make one, e.g. {noise.__name__}(0.2)")


def _copy(noise: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not isinstance(noise, nn.Module):
        raise TypeError(
            "noise must be a module, e.g. RotationOut(0.2), or a function of (name, module) that makes one, "
            f"got {noise!r}"
        )
    if isinstance(noise, ShakeShake | WeightDrop) or next(noise.parameters(), None) is not None:
        raise TypeError(
            f"noise must take one tensor and have no parameters of its own, got {type(noise).__name__}; "
            "see rotationout.registry.table()"
        )
    if isinstance(module, _SEQUENCES):  # transformers keep batch_first in their attention
        orders = (getattr(part, "batch_first", None) for part in module.modules())
        order = next((order for order in orders if isinstance(order, bool)), False)
        return noise_for(f"noise at {named(name)}", noise, order)
    return copy.deepcopy(noise)


def _axis(noise: nn.Module, name: str, module: nn.Module, side: str, dim: int | None) -> int | None:
    """Check that a noise looks for features where they are; return the axis that its slot must move there, if any."""
    wanted = dims_of_noise(noise)
    if isinstance(noise, nn.Sequential):
        moved = [axis for part in noise if (axis := _axis(part, name, module, side, dim)) is not None]
        if moved and any(takes_axis(part) for part in noise):
            raise ValueError(f"dim cannot serve all noises in {noise!r}: insert them one by one")
        return moved[0] if moved else None
    if wanted is None and not takes_axis(noise):
        return None
    if dim is None:
        _check_fit(noise, name, module, side)
    if not takes_axis(noise):
        return dim
    cast(Any, noise).dim = -1 - (dims_of_module(module) or 0) if dim is None else dim
    return None


def _check_fit(noise: nn.Module, name: str, module: nn.Module, side: str) -> None:
    """Check that the type of a module says where its features are, and that a noise fits them."""
    known = dims_of_module(module)
    if known is None:
        raise ValueError(
            f"the feature axis {side} {named(name)} cannot be known from its type, {type(module).__name__}: give it as "
            "dim, e.g. dim=-1 for vectors and tokens (…, D) or dim=1 for maps (N, C, H, W)"
        )
    if not takes_axis(noise) and dims_of_noise(noise) != known:
        there = "features on the last axis" if known == 0 else f"maps, with {known} axes after the channels"
        right = "RotationOut" if known == 0 else f"RotationOut{known}d"
        raise ValueError(
            f"{type(noise).__name__} does not fit {side} {named(name)}: {type(module).__name__} has {there}; use "
            f"{right} there, or give the feature axis as dim"
        )
    mean = getattr(noise, "running_mean", None)
    width = width_of_module(module, side)
    if mean is not None and width is not None and mean.numel() != width:
        raise ValueError(
            f"num_features = {mean.numel()} of {type(noise).__name__} does not fit {side} {named(name)}, which has "
            f"{width} features; pass a function of (name, module) that makes a noise for each place"
        )
