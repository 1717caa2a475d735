"""Repairs of the variance shift before BatchNorm (section 3.2): `correct_batchnorm_` and `recalibrate_batchnorm_`.

The first removes the effect of a noise directly before a layer from its running variance, by a closed form. The second
measures the running statistics again with the noise off, wherever the noise is. Both set ``num_batches_tracked`` to
zero: no batch of training is in the statistics any more. As that is part of the state_dict, a second correction is
refused even after the model was saved, loaded or copied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import strength
from ..placing._running import call
from ..placing._slot import check_attached
from . import _closed, _passes
from ._flow import Flow, observe
from ._passes import Forward
from ._trace import trace

__all__ = ["Repair", "Repaired", "correct_batchnorm_", "recalibrate_batchnorm_"]


class Repaired(NamedTuple):
    """A BatchNorm layer whose running variance was changed.

    Attributes:
        name: the name of the layer.
        why: what was done, in words.
        before: its running variance before.
        after: its running variance now.
        floored: how many channels are at the floor.

    >>> print(Repaired("bn", "recalibrated", torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0])))
    bn: recalibrated; running variance × 0.25 to 0.5
    """

    name: str
    why: str
    before: Tensor
    after: Tensor
    floored: int = 0

    def __str__(self) -> str:
        factor = torch.where(self.after == self.before, 1.0, self.after / self.before)  # zero for a dead channel
        low, high = f"{factor.min():.3g}", f"{factor.max():.3g}"
        times = low if low == high else f"{low} to {high}"
        floor = f", {self.floored} of {factor.numel()} channels at the floor" if self.floored else ""
        return f"{self.name or 'the model'}: {self.why}; running variance × {times}{floor}"


@dataclass(frozen=True)
class Repair:
    """What was repaired; ``print`` it.

    Attributes:
        layers: the layers that were changed.
        left: layers that were not changed, and why.

    >>> print(Repair((), ("bn: it was not called with these batches",)))
    0 repaired
    1 left alone
      bn: it was not called with these batches
    """

    layers: tuple[Repaired, ...]
    left: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} repaired", *(f"  {layer}" for layer in self.layers)]
        if self.left:
            lines += [f"{len(self.left)} left alone", *(f"  {why}" for why in self.left)]
        return "\n".join(lines)


def correct_batchnorm_(
    model: nn.Module,
    batches: Iterable[Any] | None = None,
    *,
    example_inputs: Any = None,
    floor: float = 0.01,
    forward: Forward | None = None,
    limit: int | None = None,
    show_progress: bool = True,
) -> Repair:
    """Remove the effect of noise directly before BatchNorm layers from their running variances, in place.

    A noise about the mean (``center="batch"`` or ``"running"``) of strength λ = p / (1 − p) turns a variance v into

    - (1 + λ)·v if it is elementwise, as `CentredDropout`: so v is the running variance times the keep rate 1 − p;
    - v + λ / (D − 1)·(T − v), T = Σv, for `RotationOut` on D features (label eq145), which is solved for v. With blocks
      λ is multiplied by their coverage.

    Both hold up to a relative error of 1/n, with n the values of a channel in a batch, and only if p is now what it was
    in training. Solving for v amplifies errors, so for rotations the statistics must be averaged over all of
    ``batches``, in training mode, and the result is floored.

    A ValueError with all reasons is raised, and nothing changed, where the closed form would be wrong: for noise that
    reaches a BatchNorm layer through other operations (through a weight layer, the paper's Dropout-b, it shifts each
    channel by a factor of its own), noise about the origin, noise on other features than the layer's channels, two
    noises, a layer that is called several times, and statistics that are corrected already. `recalibrate_batchnorm_`
    repairs all of these.

    Two effects are left as they are. Noise that arrives through another BatchNorm layer is ignored, as it is in the
    paper. And a repaired layer passes on more of its features than in training, which shifts the layers after it: where
    several layers one behind the other need repair, use `recalibrate_batchnorm_`.

    Args:
        model: changed in place: the running statistics and ``num_batches_tracked`` of BatchNorm layers, no more.
        batches: as for `rotationout.analysis.variance_shift`. If given, running statistics are first taken anew from
            them, with the noise on, as a cumulative average. If not, the present ones are corrected, which is possible
            for elementwise noise, or if the layer has averaged all batches of its training (``momentum=None``).
        example_inputs: an input of the model, for a run that shows what is directly before each layer: a tensor, a
            tuple of arguments, or a mapping of keyword arguments. Without it and without batches torch.fx traces the
            model, if it can.
        floor: the smallest corrected variance, as a share of that in training.
        forward: calls the model with a batch, as for `variance_shift`.
        limit: the most batches.
        show_progress: a bar on a terminal, if rich is installed.

    >>> from rotationout.nn import CentredDropout
    >>> model = nn.Sequential(nn.Linear(8, 4), CentredDropout(0.5, dim=1), nn.BatchNorm1d(4))
    >>> _ = model(torch.randn(100, 8))  # stands for training
    >>> print(correct_batchnorm_(model, [torch.randn(100, 8) for _ in range(9)]))
    1 repaired
      2: CentredDropout(p=0.5, center=batch, dim=1) directly before it; running variance × 0.5
    """
    _passes.check_model(model)
    check_attached(model)
    limit = _passes.check_limit(limit)
    share = strength.check_number("floor", floor)
    if not 0.0 < share < 1.0:
        raise ValueError(f"floor is a share of the variance in training and must be between 0 and 1, got {share!r}")
    if batches is not None:
        _passes.check_batches(batches)
    layers = _not_frozen(model)
    flow = _flow(model, batches, example_inputs, forward)
    noises = _closed.noises_before(flow, layers, averaged=batches is not None)
    taken = {name: layers[name] for name in noises}
    if batches is None:
        averages = {name: _Statistics.of(layer) for name, layer in taken.items()}
    else:
        averages = _average(model, taken, batches, True, forward, limit, show_progress)
    repaired = []
    for name, noise in noises.items():
        if name not in averages:
            raise ValueError(f"BatchNorm layer {name!r} was not called with these batches: there is nothing to correct")
        mean, noisy = averages[name]
        least = share * noisy
        clean = _closed.without(noise, noisy.double()).to(noisy)
        after = torch.maximum(clean, least)
        why = f"{noise!r} directly before it"
        repaired.append((Repaired(name, why, noisy, after, int((clean < least).sum())), _Statistics(mean, after)))
    for one, statistics in repaired:
        _store(layers[one.name], statistics)
    return Repair(tuple(one for one, _ in repaired))


def recalibrate_batchnorm_(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Forward | None = None,
    limit: int | None = None,
    show_progress: bool = True,
) -> Repair:
    """Take the running statistics of all BatchNorm layers again, with the noise off, in place.

    BatchNorm layers are put in training mode and average over the batches; everything else is in testing mode. So the
    statistics are those of testing mode, whatever noise the model has and wherever it is.
    (`torch.optim.swa_utils.update_bn` runs the whole model in training mode, with its noise on.) Afterwards modes,
    momenta and torch's generators are as before, and after an error the statistics are too. Use the data pipeline of
    training, and batches as large as there; all batches have equal weight.

    Frozen layers, in testing mode while the model is in training mode, stay as they are. A ValueError is raised if a
    BatchNorm layer draws random numbers itself in training mode: that noise cannot be off.

    Args:
        model: changed in place: the running statistics and ``num_batches_tracked`` of BatchNorm layers, no more.
        batches: as for `rotationout.analysis.variance_shift`.
        forward: calls the model with a batch, as for `variance_shift`.
        limit: the most batches.
        show_progress: a bar on a terminal, if rich is installed.

    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4), nn.BatchNorm1d(4))
    >>> len(recalibrate_batchnorm_(model, [torch.randn(100, 8) for _ in range(9)]))
    1
    """
    _passes.check_model(model)
    check_attached(model)
    _passes.check_batches(batches)
    limit = _passes.check_limit(limit)
    layers = _not_frozen(model)
    tracked = {name: layer for name, layer in layers.items() if layer.running_var is not None}
    if not tracked:
        raise ValueError("no BatchNorm layer of the model keeps running statistics (track_running_stats=False)")
    _check_quiet(model, tracked, batches, forward)
    averages = _average(model, tracked, batches, False, forward, limit, show_progress)
    if not averages:
        raise ValueError("no BatchNorm layer was called with these batches")
    repaired = []
    for name, statistics in averages.items():
        before = cast(Tensor, layers[name].running_var).clone()
        repaired.append(Repaired(name, "recalibrated with the noise off", before, statistics.variance))
        _store(layers[name], statistics)
    untracked = [f"{name}: it keeps no running statistics" for name in layers.keys() - tracked.keys()]
    uncalled = [f"{name}: it was not called with these batches" for name in tracked.keys() - averages.keys()]
    return Repair(tuple(repaired), tuple(sorted(untracked + uncalled)))


class _Statistics(NamedTuple):
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, layer: _BatchNorm) -> _Statistics:
        return cls(cast(Tensor, layer.running_mean).clone(), cast(Tensor, layer.running_var).clone())


def _flow(model: nn.Module, batches: Iterable[Any] | None, example_inputs: Any, forward: Forward | None) -> Flow:
    """Which noise reaches which layer: from a run if there is an input, else from the code of the model."""
    kept = _passes.frozen(model)
    with _passes.untouched(model):
        _passes.set_mode(model, True, kept)
        if example_inputs is not None:
            return observe(model, lambda: call(model, example_inputs))
        if batches is not None:
            return _observed(model, batches, forward)
        return trace(model)


def _not_frozen(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that are not frozen, at least one."""
    kept = _passes.frozen(model)
    layers = {name: layer for name, layer in _passes.batchnorms(model).items() if layer not in kept}
    if not layers:
        raise ValueError(
            "all BatchNorm layers are frozen, in testing mode while the model is in training mode: call model.eval()"
        )
    return layers


def _observed(model: nn.Module, batches: Iterable[Any], forward: Forward | None) -> Flow:
    """Which noise reaches which layer on the first batch, fetched beforehand: its draws are not the model's."""
    first = list(itertools.islice(batches, 1))
    return observe(model, lambda: _passes.run(model, first, forward=forward))


def _average(
    model: nn.Module,
    layers: dict[str, _BatchNorm],
    batches: Iterable[Any],
    noise: bool,
    forward: Forward | None,
    limit: int | None,
    show_progress: bool,
) -> dict[str, _Statistics]:
    """The running statistics of the layers that are called, taken by BatchNorm itself, averaged over the batches."""
    momenta = {layer: layer.momentum for layer in layers.values()}
    total = _passes.count(batches, limit)
    kept = _passes.frozen(model)
    with _passes.progress("running statistics", total, show_progress) as tick, _passes.untouched(model):
        try:
            _passes.set_mode(model, noise, kept)
            for layer in layers.values():
                layer.training, layer.momentum = True, None
                layer.reset_running_stats()
            _passes.run(model, batches, forward=forward, limit=limit, tick=tick)
        finally:
            for layer, momentum in momenta.items():
                layer.momentum = momentum
        found = {name: _Statistics.of(layer) for name, layer in layers.items() if int(_tracked(layer))}
    for name, (mean, variance) in found.items():
        if not bool((mean.isfinite() & variance.isfinite()).all()):
            raise ValueError(f"the statistics of BatchNorm layer {name!r} on these batches are not finite")
    return found


def _check_quiet(
    model: nn.Module, layers: dict[str, _BatchNorm], batches: Iterable[Any], forward: Forward | None
) -> None:
    """Raise a ValueError if random numbers are drawn because BatchNorm layers are in training mode."""
    draws = []
    for training in (True, False):
        with _passes.untouched(model):
            model.eval()
            for layer in layers.values():
                layer.training = training
            flow = _observed(model, batches, forward)
            draws.append(Counter(flow.draws))
    loud = draws[0] - draws[1]
    if loud:
        where = ", ".join(f"{operation} in {name or 'the model'}" for operation, name in loud)
        raise ValueError(
            f"with BatchNorm in training mode the model draws random numbers that it does not draw in testing mode "
            f"({where}): its noise cannot be off while statistics are measured. Make that noise a module of its own"
        )


def _tracked(layer: _BatchNorm) -> Tensor:
    return cast(Tensor, layer.num_batches_tracked)


@torch.no_grad()
def _store(layer: _BatchNorm, statistics: _Statistics) -> None:
    cast(Tensor, layer.running_mean).copy_(statistics.mean)
    cast(Tensor, layer.running_var).copy_(statistics.variance)
    _tracked(layer).zero_()
