"""The closed form that takes a noise out of a running variance (label eq145), and the check of where it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..kinds import listed
from ..nn.base import CentredNoise, _AxisNoise
from ..nn.norm import CrossNorm1d, CrossNorm2d, CrossNorm3d
from ..nn.rotation import _RotationOutNd
from ._flow import Flow, Link
from .law import layer_law

__all__ = ["noises_before", "without"]

_WEIGHTS = frozenset(["convolution", "addmm", "mm", "bmm", "linear", "Linear", "Conv1d", "Conv2d", "Conv3d"])
"""The names of weight layers, as operations and as modules."""

_FORGOTTEN = 0.01
"""The largest share of its initial value that a running statistic may still have."""


def noises_before(flow: Flow, layers: Mapping[str, _BatchNorm], *, averaged: bool) -> dict[str, CentredNoise]:
    """The noise directly before each BatchNorm layer that noise reaches; an error with all reasons if one does not fit.

    Args:
        flow: which noises reach which layers.
        layers: the BatchNorm layers by name.
        averaged: whether statistics will be measured anew, as an average over batches.
    """
    reasons, found = [], {}
    for name, layer in layers.items():
        links = [link for link in flow.links if link.target == name]
        if not links:
            continue
        why = _misfit(layer, links, flow.calls[name], averaged)
        if why is None:
            found[name] = cast(CentredNoise, links[0].noise)
        else:
            reasons.append(f"  {name or 'the model'} ({type(layer).__name__}): {why}")
    if reasons:
        raise ValueError(
            "these BatchNorm layers cannot be corrected by a closed form, and nothing was changed; "
            "recalibrate_batchnorm_(model, batches) recalibrates them with the noise off\n" + "\n".join(reasons)
        )
    if not found:
        raise ValueError("no noise reaches a BatchNorm layer (noises with p = 0 do nothing): nothing to correct")
    return found


def without(noise: CentredNoise, variance: Tensor) -> Tensor:
    """The variances of features before a noise about their mean, given those after it (label eq145 with c = 0)."""
    law = layer_law(noise)
    if law.source == "itself":
        return variance / (1 + law.lam)
    share = law.lam / (variance.numel() - 1)
    return (variance - share * variance.sum() / (1 + law.lam)) / (1 - share)


def _misfit(layer: _BatchNorm, links: list[Link], calls: int, averaged: bool) -> str | None:
    """Why the closed form does not hold for a layer; None if it does."""
    for link in links:
        if link.between:
            return _through(link)
        if link.noise is None:
            return f"{link.source} draws random numbers that reach it, with an unknown effect on its variance"
    if len(links) > 1:
        return f"{len(links)} noises are directly before it: {listed(link.source for link in links)}"
    if calls > 1:
        return f"it is called {calls} times in a pass, and has one running variance for all of them"
    if layer.running_var is None or layer.running_mean is None:
        return "it keeps no running statistics"
    if isinstance(layer, CrossNorm1d | CrossNorm2d | CrossNorm3d):
        return "it stores a mean of inverse deviations instead of the variance"
    return _unknown(layer, links[0]) or _stale(layer, links[0], averaged)


def _through(link: Link) -> str:
    way = listed(dict.fromkeys(link.between))
    if _WEIGHTS.issuperset(link.between):
        return (
            f"{link.source} reaches it through {way}: noise before a weight layer (Dropout-b of section 3.2) shifts "
            "the variance of every channel by a factor of its own"
        )
    return f"{link.source} reaches it through {way}, after which its share of the variance is not known"


def _unknown(layer: _BatchNorm, link: Link) -> str | None:
    """Why the noise directly before a layer has no closed form, or none that can be inverted; None if it has."""
    noise = link.noise
    if isinstance(noise, _RotationOutNd) and noise.keep_zeros:
        return f"{link.source} has keep_zeros=True: the variance that it adds depends on which features are zero"
    if not isinstance(noise, _AxisNoise | _RotationOutNd) or noise.center is None:
        return (
            f"{link.source} ({type(noise).__name__}) is not about the mean of its features: the variance that it adds "
            "depends on their means, channel by channel; use center='batch' or 'running'"
        )
    if link.aligned is None:
        return (
            f"whether the features of {link.source} are its channels cannot be read off the code: give example_inputs"
        )
    if not link.aligned:
        return f"{link.source} ({type(noise).__name__}) has its features on another axis than the channels"
    if noise._mixes and (lam := layer_law(noise).lam) >= layer.num_features - 1:
        return (
            f"{link.source} has λ = {lam:.4g}, with D = {layer.num_features} features: at λ = D − 1 all "
            "channels get the same variance, from which the variances before the noise cannot be recovered"
        )
    return None


def _stale(layer: _BatchNorm, link: Link, averaged: bool) -> str | None:
    """Why the statistics of a layer are not those of training with the noise; None if they are."""
    count = 0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked)
    if count == 0:
        return (
            "no batch of training is in its statistics (num_batches_tracked is 0): it has seen none, or it was "
            "corrected or recalibrated already"
        )
    if averaged or layer.momentum is None:
        return None
    if isinstance(link.noise, CentredNoise) and link.noise._mixes:
        return (
            f"{link.source} mixes features, so that undoing it amplifies errors of the statistics: give batches, "
            f"to average over; with momentum = {layer.momentum:g} the statistics cover the last batches only"
        )
    left = (1 - layer.momentum) ** count
    if left > _FORGOTTEN:
        enough = math.ceil(math.log(_FORGOTTEN) / math.log1p(-layer.momentum)) if layer.momentum > 0 else math.inf
        return (
            f"it has seen {count} batches since it started or was repaired, and with momentum = {layer.momentum:g} "
            f"needs {enough} to forget its initial statistics; give batches, to average over"
        )
    return None
