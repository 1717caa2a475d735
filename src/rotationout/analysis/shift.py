"""The variance shift of a model with BatchNorm (section 3.2), measured layer by layer: `variance_shift`.

The paper, after Li et al. (2019), takes three steps: the running variance of every BatchNorm layer in training mode,
the same in testing mode with the same data pipeline, and r = max(train / test, test / train) for every channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..placing._slot import check_attached
from . import _passes
from ._passes import Forward

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LayerShift", "VarianceShift", "variance_shift"]


@dataclass(frozen=True)
class LayerShift:
    """The variances of the input of one BatchNorm layer; all tensors are (channels,), fp64, on the CPU.

    Attributes:
        name: the name of the layer.
        train: the variance of its input in training mode.
        test: the same in testing mode.
        stored: its ``running_var``, by which it divides in testing mode; None if it keeps none.
        calls: how often it was called in the training pass.
        eps: the ε that it adds to variances.

    >>> layer = LayerShift("bn", torch.tensor([2.0, 3.0]), torch.tensor([1.0, 4.0]), None, 1)
    >>> layer.r
    tensor([2.0000, 1.3333])
    """

    name: str
    train: Tensor
    test: Tensor
    stored: Tensor | None
    calls: int
    eps: float = 0.0

    @property
    def r(self) -> Tensor:
        """max(train / test, test / train) of every channel: 1 is no shift.

        It is also 1 if neither variance is more than eps: such a channel is dead, and BatchNorm's ε hides the shift.
        """
        return _ratio(self.train, self.test, self.eps)

    @property
    def stored_r(self) -> Tensor | None:
        """The same ratio of ``stored`` and ``test``: the error of testing mode, also after a repair."""
        return None if self.stored is None else _ratio(self.stored, self.test, self.eps)


@dataclass(frozen=True)
class VarianceShift:
    """The layers in the order of their first call; ``print`` it.

    >>> print(VarianceShift((LayerShift("bn", torch.tensor([2.0, 3.0]), torch.tensor([1.0, 4.0]), None, 1),)))
    layer  channels  r mean  r max  stored r mean  stored r max
    bn            2   1.667      2              –             –
    r = max(train / test, test / train) of the variance of the input; stored r: of running_var / test
    """

    layers: tuple[LayerShift, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> LayerShift:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"no BatchNorm layer {name!r} was called; there are {[layer.name for layer in self.layers]}")

    def __str__(self) -> str:
        rows = self.cells()
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        first, *others = widths
        lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
        note = "r = max(train / test, test / train) of the variance of the input; stored r: of running_var / test"
        return "\n".join([*lines, note])

    def cells(self) -> list[tuple[str, ...]]:
        """The cells of the table as text: the head, then a row for every layer."""
        head = ("layer", "channels", "r mean", "r max", "stored r mean", "stored r max")
        return [head, *map(_cells, self.layers)]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON: per layer the variances of every channel, and mean and maximum of r."""
        return {
            "layers": [
                {
                    "name": layer.name,
                    "calls": layer.calls,
                    "r_mean": layer.r.mean().item(),
                    "r_max": layer.r.max().item(),
                    "r": layer.r.tolist(),
                    "train": layer.train.tolist(),
                    "test": layer.test.tolist(),
                    "stored": None if layer.stored is None else layer.stored.tolist(),
                }
                for layer in self.layers
            ]
        }

    def draw(self) -> Figure:
        """The paper's figure (label addfig1111) for this model: r of every layer, mean and maximum over channels.

        Needs matplotlib. ``shift.draw().savefig("shift.png")`` writes it.
        """
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        from ..report.style import PALETTE, STYLE, finish

        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(6, 3), layout="constrained")
            axes = figure.subplots()
            places = range(1, len(self.layers) + 1)
            for label, colour, value in (("maximum", "orange", Tensor.max), ("mean", "blue", Tensor.mean)):
                ys = [float(value(layer.r)) for layer in self.layers]
                axes.plot(places, ys, marker="o", markersize=4, color=PALETTE[colour], label=f"{label} over channels")
            axes.axhline(1, color=PALETTE["grey"], linewidth=0.8, linestyle=":")
            axes.set_ylabel("variance shift r")
            axes.set_xlabel("BatchNorm layer, in order of call")
            if len(self.layers) <= 12:  # their names have room
                names = [layer.name for layer in self.layers]
                axes.set_xticks(places, names, rotation=30, ha="right", rotation_mode="anchor")
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend()
            finish(axes)
        return figure


def variance_shift(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    layers: Collection[str] | None = None,
    forward: Forward | None = None,
    limit: int | None = None,
    show_progress: bool = True,
) -> VarianceShift:
    """Measure how far the variance before every BatchNorm layer differs between training and testing mode.

    The model makes two passes over the same batches, in ``model.train()`` and in ``model.eval()``. The variance of a
    layer's input is what BatchNorm records: unbiased within a batch, averaged over batches (weighted by their degrees
    of freedom, so that a short last batch counts for less). Sums are in fp64, and memory does not grow with the data. A
    layer that is called several times in a pass is averaged over its calls. In a distributed run every process measures
    its own batches.

    Afterwards everything is as before, even after an error: parameters, buffers, modes, hooks, and the state of torch's
    generators (of the CPU and of the model's CUDA devices), so the same call gives the same answer. Both passes see the
    same batches, shuffled and augmented alike, if shuffling and augmentation draw from torch's generators in this
    process or in the workers of a DataLoader without a generator of its own. State that a module keeps outside its
    buffers is not restored.

    Args:
        model: a trained model, as testing mode uses its running statistics; in any mode, on any device, with or without
            inserted noises.
        batches: the training data with its augmentation, a DataLoader or a list. A batch is a tensor, a
            tuple or list whose first entry is the input, or a mapping of keyword arguments.
        layers: names of the BatchNorm layers to measure, all if not given.
        forward: calls the model with any other kind of batch: ``lambda model, batch: model(batch["image"])``.
        limit: the most batches of a pass.
        show_progress: a bar on a terminal, if rich is installed.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    >>> shift = variance_shift(model, [torch.randn(500, 8) for _ in range(20)])
    >>> bool((shift["2"].train > 1.9 * shift["2"].test).all())  # the input has almost no mean: r = 1 / (1 − p)
    True
    """
    _passes.check_model(model)
    check_attached(model)
    _passes.check_batches(batches)
    limit = _passes.check_limit(limit)
    chosen = _chosen(_passes.batchnorms(model), layers)
    total = _passes.count(batches, limit)
    with _passes.progress("variance shift", None if total is None else 2 * total, show_progress) as tick:
        train, test = (
            _measure(model, chosen, batches, training, forward=forward, limit=limit, tick=tick)
            for training in (True, False)
        )
    measured = tuple(
        LayerShift(
            name,
            scatter.variance(),
            test[name].variance(),
            None if (stored := chosen[name].running_var) is None else stored.detach().double().cpu(),
            scatter.calls,
            chosen[name].eps,
        )
        for name, scatter in train.items()
        if name in test
    )
    if not measured:
        raise ValueError("no BatchNorm layer was called in both modes: the model may not use them on these batches")
    return VarianceShift(measured)


def _chosen(known: dict[str, _BatchNorm], names: Collection[str] | None) -> dict[str, _BatchNorm]:
    """The layers of these names, or all of them if none are given."""
    if names is None:
        return known
    if isinstance(names, str) or not names:
        raise ValueError(f"layers must be a list of names of BatchNorm layers, or None for all, got {names!r}")
    for name in names:
        if name not in known:
            raise ValueError(f"layers: the model has no BatchNorm layer {name!r}; it has {', '.join(map(repr, known))}")
    return {name: layer for name, layer in known.items() if name in names}


class _Scatter:
    """Sums of squared deviations within batches, channel by channel, on the device of the model."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.freedom = 0
        self.calls = 0

    def add(self, x: Tensor) -> None:
        """Add Σ(x − mean)² over all axes but that of channels; in parts, as all of x in fp64 may be too large."""
        axes = [axis for axis in range(x.ndim) if axis != 1]
        values = x.numel() // x.size(1)
        near = x.mean(axes, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)).double()
        first = second = torch.zeros(x.size(1), dtype=torch.float64, device=x.device)
        for part in x.split(max(1, _PART * x.size(0) // x.numel())):
            off = part.double() - near
            first = first + off.sum(axes)
            second = second + off.square_().sum(axes)
        scatter = second - first.square() / values
        # A channel that varies by less than the last digit of x is constant.
        rounding = values * (torch.finfo(x.dtype).eps * near.flatten()).square()
        self.total = self.total + torch.where(scatter <= rounding, 0.0, scatter)
        self.freedom += values - 1
        self.calls += 1

    def variance(self) -> Tensor:
        return torch.as_tensor(self.total / self.freedom if self.freedom else math.nan).double().cpu()


_PART = 2**22
"""How many elements are converted to fp64 at once."""


def _measure(
    model: nn.Module,
    layers: dict[str, Any],
    batches: Iterable[Any],
    training: bool,
    *,
    forward: Forward | None,
    limit: int | None,
    tick: Callable[[], None],
) -> dict[str, _Scatter]:
    found: dict[str, _Scatter] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            if x.numel():
                found.setdefault(name, _Scatter()).add(x.detach())

        return hook

    # These hooks run after those of inserted noises, and so see their output.
    handles = [layer.register_forward_pre_hook(watch(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        kept = _passes.frozen(model)
        with _passes.untouched(model):
            _passes.set_mode(model, training, kept)
            _passes.run(model, batches, forward=forward, limit=limit, tick=tick)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _ratio(one: Tensor, other: Tensor, eps: float) -> Tensor:
    """max(one / other, other / one), and 1 for a dead channel, where both are at most the ε of BatchNorm."""
    r = torch.maximum(one / other, other / one)
    return torch.where(torch.maximum(one, other) <= eps, 1.0, r)


def _cells(layer: LayerShift) -> tuple[str, ...]:
    stored = layer.stored_r
    numbers = [layer.r.mean(), layer.r.max(), *([] if stored is None else [stored.mean(), stored.max()])]
    cells = [f"{float(number):.4g}" for number in numbers]
    return (layer.name or "the model", str(layer.train.numel()), *cells, *["–"] * (4 - len(cells)))
