"""The rules of `rotationout.analysis.lint`: each is a function from a `View` of a model to pairs (layer, message).

To add a rule, write a function with the decorator `rule`: its name, with hyphens, names the rule, and its docstring
explains it. A rule must yield nothing where it cannot be sure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .. import strength
from ..nn import (
    Cutout,
    NoisyGRU,
    NoisyLSTM,
    RotationOutSequence,
    ShakeShake,
    Uout,
    WeightDrop,
)
from ..nn.base import CentredNoise
from ..nn.rotation import _RotationOutMaps, _RotationOutNd
from ..placing._layout import dims_of_noise, takes_axis
from ..placing._probe import Seen, dims_between, rates_read
from ..placing._select import holders
from ..placing._slot import Slot
from ._flow import Flow, Link, has_strength, is_norm

__all__ = ["RULES", "View", "rule"]


@dataclass(frozen=True)
class View:
    """What is known of a model.

    Attributes:
        model: the model.
        noises: its noises by name.
        reached: whether ``model.train()`` puts each in training mode.
        flow: which noise reaches which layer; empty if that is not known.
        seen: what the neighbours of each noise tell, if the model was run.
        ran: whether the model was run to its end.
    """

    model: nn.Module
    noises: dict[str, nn.Module]
    reached: dict[str, bool]
    flow: Flow
    seen: dict[nn.Module, Seen]
    ran: bool

    @property
    def noisy(self) -> bool:
        """Whether the model has noise that acts in training mode, as a module or not."""
        return bool(self.flow.draws) or any(
            self.reached[name] and has_strength(noise) for name, noise in self.noises.items()
        )

    @property
    def before_norms(self) -> list[Link]:
        """The noises, as modules, that are directly before a normalisation layer, each with that layer."""
        return [
            link for link in self.flow.links if link.noise is not None and not link.between and is_norm(link.module)
        ]


Rule = Callable[[View], Iterator[tuple[str, str]]]
RULES: dict[str, Rule] = {}
"""The rules by name."""


def rule(function: Rule) -> Rule:
    """Register a function as a rule."""
    RULES[function.__name__.replace("_", "-")] = function
    return function


@rule
def noise_before_normalisation(view: View) -> Iterator[tuple[str, str]]:
    """Noise directly before a normalisation layer.

    In training the layer divides by the deviation of noisy features, larger by √(1 + λ) or more on the whole. BatchNorm
    records it and uses it for clean features (section 3.2). LayerNorm and its like, and BatchNorm without running
    statistics, divide by the deviation of their input, so the features themselves come out smaller in training than in
    testing.
    """
    for link in view.before_norms:
        kind = f"the {type(link.module).__name__} layer {link.target}"
        if not isinstance(link.module, _BatchNorm) or link.module.running_var is None:
            yield (
                link.source,
                f"directly before {kind}: noise takes up part of its normalised output, so the features come out "
                "smaller in training than in testing; move the noise after it",
            )
            continue
        yield (
            link.source,
            f"directly before {kind}, which records the variance of noisy features and divides clean ones by it; "
            "move the noise after it, or repair the layer with recalibrate_batchnorm_(model, batches)",
        )


@rule
def double_noise(view: View) -> Iterator[tuple[str, str]]:
    """A noise directly after another, such as Dropout after a rotation.

    Together they are stronger than either: 1 + λ is the product (1 + λ₁)(1 + λ₂). Noise on weights, on whole branches
    and on images does not count.
    """
    for link in view.flow.links:
        if link.noise is not None and not link.between and _on_features(link.noise) and _on_features(link.module):
            yield (
                link.target,
                f"directly after the noise {link.source}: together they are stronger than either, as their factors "
                "1 + λ multiply; keep one of them",
            )


@rule
def block_larger_than_map(view: View) -> Iterator[tuple[str, str]]:
    """Blocks that are larger than the feature map.

    They are clipped to it: the noise then covers a whole axis of the map, or nothing. (torchvision's DropBlock raises
    an error if the clipped size is even.)
    """
    for name, noise in view.noises.items():
        block, dims = getattr(noise, "block_size", None), dims_of_noise(noise)
        if not isinstance(block, int) or not dims:
            continue
        for shape in dict.fromkeys(view.flow.shapes.get(name, [])):
            if block > min(shape[-dims:]):
                yield name, f"block_size = {block} is larger than the feature map {shape[-dims:]}; use smaller blocks"


@rule
def mean_of_one_example(view: View) -> Iterator[tuple[str, str]]:
    """Noise about a batch mean, called with a single example.

    On vectors that is an error in training. On maps and sequences the mean is that of one example instead of that of
    the features: the part that all its positions have in common gets no noise.
    """
    for name, noise, shape, (_, examples) in _about_batch_mean(view):
        if examples is None and isinstance(noise, _RotationOutMaps):  # (T, C) may be the rows of packed ones
            fewer = len(shape) - 2  # axes after the features if the first axis is the batch
            right = f"RotationOut{fewer}d, or RotationOut for features on the last axis" if fewer else "RotationOut"
            yield (
                name,
                f"takes its input of shape {shape} for a single example, without a batch axis, and center='batch' for "
                f"the mean of that; if the first axis is the batch, use {right}",
            )
        elif shape[examples or 0] == 1:
            yield (
                name,
                f"center='batch' takes the mean of a single example (input of shape {shape}); use larger batches, or "
                "center='running'",
            )


@rule
def mean_sees_later_steps(view: View) -> Iterator[tuple[str, str]]:
    """Noise about a batch mean on sequences, in a model where a step must not see later steps.

    The mean is over the time steps too, so in training every step contains a part of later ones.
    """
    by_type = (name for name, module in view.model.named_modules() if _causal(module))
    causal = next(itertools.chain(by_type, view.flow.causal), None)
    if causal is None:
        return
    told = set()
    for name, _, shape, (features, _) in _about_batch_mean(view):
        if features == len(shape) - 1 and len(shape) > 2:
            told.add(name)
    told |= {n for n, m in view.noises.items() if isinstance(m, RotationOutSequence) and m.center == "batch"}
    for name in sorted(told):
        yield (
            name,
            f"center='batch' takes the mean over all time steps, later ones included, but {causal or 'the model'} is "
            "causal; use center=None or center='running'",
        )


@rule
def too_strong(view: View) -> Iterator[tuple[str, str]]:
    """A strength at which a noise no longer does what it is meant to do.

    Dropout with p = 1 drops everything. Above p = 0.75 the noise of most layers has more than three times the variance
    of the features, which is rarely meant: p may be a keep probability by mistake. Uout above p = 0.25 (β > 1) flips
    the signs of features. A rotation with λ > D − 1 flips the sign of the correlations of D features instead of
    reducing them (label eq15).
    """
    for name, noise in view.noises.items():
        rate = getattr(noise, "p", None)
        if not isinstance(rate, float | int):
            continue
        if rate >= 1:
            yield name, f"p = {rate:g} drops everything; use a smaller p"
        elif isinstance(noise, Uout) and rate > 0.25:
            beta = strength.convert(rate, "dropout", "uout")
            yield name, f"p = {rate:g} is β = {beta:.3g} > 1, which flips the signs of features; use at most p = 0.25"
        elif rate > 0.75 and _on_features(noise):
            lam = strength.to_lam("dropout", rate)
            yield (
                name,
                f"p = {rate:g} is λ = {lam:.3g}, noise with {lam:.3g} times the variance of the features; if {rate:g} "
                f"is meant as the probability to keep, write p = {1 - rate:.3g}",
            )
        elif isinstance(noise, CentredNoise) and noise._mixes:
            lam = strength.to_lam("dropout", rate)
            given = {shape: _axes(noise, shape) for shape in view.flow.shapes.get(name, [])}
            sizes = {shape[axes[0]] for shape, axes in given.items() if axes is not None}
            for features in sorted(size for size in sizes if 0 < size - 1 < lam):
                yield (
                    name,
                    f"λ = {lam:.3g} is more than D − 1 = {features - 1}: the rotation flips the sign of the "
                    "features' correlations instead of reducing them; use a smaller p",
                )


@rule
def never_in_training(view: View) -> Iterator[tuple[str, str]]:
    """A noise that stays in eval mode when the model is put in training mode, so it never acts.

    That happens if the model overrides ``train`` to keep a part of itself in testing mode.
    """
    for name, reached in view.reached.items():
        if not reached:
            yield (
                name,
                "model.train() leaves it in testing mode, so it never acts; remove it, or fix the model's train()",
            )


@rule
def detached(view: View) -> Iterator[tuple[str, str]]:
    """An inserted noise whose hook is gone, so it never acts.

    SyncBatchNorm.convert_sync_batchnorm causes that, as it rebuilds modules.
    """
    for name, module in view.model.named_modules():
        if isinstance(module, Slot) and not module.attached:
            yield (
                name,
                f"the noise at {module.place!r} no longer acts, because its module was rebuilt; remove the noise, "
                "convert the model, then insert the noise again",
            )


@rule
def never_called(view: View) -> Iterator[tuple[str, str]]:
    """A noise that was not called when the model ran in training mode, so it does nothing.

    A noise that is off does not count. Nor does one whose p is read by its owner, as attention in timm and transformers
    does.
    """
    owners = holders(view.model)
    for name, noise in view.noises.items() if view.ran else ():
        read = any(key in rates_read(owner) for owner, key in owners.get(noise, []))
        if not view.flow.calls[name] and has_strength(noise) and not read:
            yield name, "not called when the model ran in training mode, so it does nothing"


@rule
def noise_without_module(view: View) -> Iterator[tuple[str, str]]:
    """Dropout called as a function in the code of a model.

    It works, but tools that look for modules do not see it: swap, Schedule, sampling. That of attention weights does
    not count, as these tools leave it alone, nor that between the layers of torch's recurrent networks, nor one with
    the p of a module.
    """
    for operation, name in dict.fromkeys(view.flow.draws):
        module = view.model.get_submodule(name)
        argument = isinstance(module, nn.RNNBase | nn.MultiheadAttention)  # dropout=…
        read = not rates_read(module).isdisjoint(module._modules)
        drops = "attention" not in operation and ("dropout" in operation or "bernoulli" in operation)
        if drops and not argument and not read:
            yield (
                name,
                f"drops features in a function call ({operation}), which swap, Schedule and sampling do not see; use a "
                "module",
            )


@rule
def other_axis(view: View) -> Iterator[tuple[str, str]]:
    """A noise that takes a different axis for the features than its neighbours do.

    RotationOut and, by default, CentredDropout expect the features on the last axis, which on maps is the width. On
    vectors (N, C) RotationOut1d takes the batch for the features, and mixes examples.
    """
    owners = holders(view.model)
    for name, noise in view.noises.items():
        dims = -1 - cast(Any, noise).dim if takes_axis(noise) and cast(Any, noise).dim < 0 else dims_of_noise(noise)
        code = (dims_between(*owner) for owner in owners.get(noise, []))
        around = view.seen[noise].dims if noise in view.seen else {known for known in code if known is not None}
        if dims is not None and len(around) == 1 and dims not in around:
            after = next(iter(around))
            there = {0: "on the last axis", 1: "before 1 axis of positions"}.get(
                after, f"before {after} axes of positions"
            )
            kind = "RotationOut" if isinstance(noise, _RotationOutNd) else type(noise).__name__.rstrip("123d")
            right = f"set dim={-1 - after}" if takes_axis(noise) else f"use {kind}{f'{after}d' if after else ''}"
            yield name, f"takes another axis for the features than its neighbours, which have them {there}; {right}"


@rule
def rotation_on_attention(view: View) -> Iterator[tuple[str, str]]:
    """A rotation of attention weights, or of other non-negative values that sum to one.

    They are a distribution over positions, not features: after a rotation some of them are negative.
    """
    for name, noise in view.noises.items():
        if getattr(noise, "_mixes", False) and noise in view.seen and view.seen[noise].attention:
            yield name, "rotates weights that sum to one, such as attention weights; place it on the features instead"


@rule
def shared_batchnorm(view: View) -> Iterator[tuple[str, str]]:
    """A BatchNorm layer that is called several times in one pass.

    In training every call is normalised by its own statistics, in testing all of them by one average.
    """
    for name, module in view.model.named_modules():
        calls = view.flow.calls[name]
        if isinstance(module, _BatchNorm) and module.running_var is not None and calls > 1:
            yield (
                name,
                f"called {calls} times in a pass, but keeps one running average for all calls; use a layer for each",
            )


@rule
def batchnorm_statistics(view: View) -> Iterator[tuple[str, str]]:
    """BatchNorm whose eval mode does not use statistics of the model as it is.

    With ``momentum=None`` they are an average over all of training, early weights included; with ``momentum=0`` they
    never change; with ``track_running_stats=False`` there are none, and an output depends on the rest of its batch.
    """
    for name, module in view.model.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        if module.running_var is None:
            yield name, "keeps no running statistics: in testing an output depends on the rest of its batch"
        elif module.momentum is None:
            yield (
                name,
                "momentum=None averages over all of training, early weights included; after training use "
                "recalibrate_batchnorm_(model, batches)",
            )
        elif module.momentum == 0:
            yield name, "momentum=0 never updates the running statistics; use 0.1, or freeze the layer with eval()"


Axes = tuple[int, int | None]
"""The feature axis and the axis of examples."""


def _about_batch_mean(view: View) -> Iterator[tuple[str, CentredNoise, tuple[int, ...], Axes]]:
    """Noises about a batch mean, with each shape of input that they accept, and its axes."""
    for name, noise in view.noises.items():
        if isinstance(noise, CentredNoise) and noise.center == "batch":
            for shape in dict.fromkeys(view.flow.shapes.get(name, [])):
                axes = _axes(noise, shape)
                if axes is not None:
                    yield name, noise, shape, axes


def _axes(noise: CentredNoise, shape: tuple[int, ...]) -> Axes | None:
    """The axes of features and examples in an input of this shape; None if the noise refuses it."""
    try:
        return noise._axes(torch.empty(shape, device="meta"))
    except (ValueError, IndexError):
        return None


def _on_features(module: nn.Module) -> bool:
    return isinstance(module, _DropoutNd) and not isinstance(module, ShakeShake | WeightDrop | Cutout)


def _causal(module: nn.Module) -> bool:
    """Whether a step of a module's output must not depend on later steps of its input."""
    if isinstance(module, nn.RNNBase | NoisyLSTM | NoisyGRU):
        return not module.bidirectional
    if isinstance(module, nn.RNNCellBase | nn.TransformerDecoder | nn.TransformerDecoderLayer):
        return True
    marks = (getattr(module, "is_causal", None), getattr(module, "causal", None))
    return any(mark is True for mark in marks) or getattr(getattr(module, "config", None), "is_decoder", None) is True
