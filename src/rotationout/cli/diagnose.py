"""``rotationout diagnose``: what noise does to a user's own model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, Json
from .output import print_json, show
from .trouble import FAILED, say

if TYPE_CHECKING:
    from torch import nn

    from ..analysis import Coadaptation, VarianceShift
    from ..analysis._rules import View

__all__ = ["diagnose"]

MOST_FEATURES = 4096
"""Co-adaptation needs a covariance of all features of a layer: wider layers are left out."""
LARGE_SHIFT = 1.2
"""A mean r above this is pointed out: lint looks directly before BatchNorm only, but noise shifts later layers too."""
NEW = (
    "no BatchNorm layer has seen data yet, so r and stored r are not those of a trained model; pass --weights or a "
    "trained model"
)
DIRECT = "repair running_var with recalibrate_batchnorm_(model, batches)"
"""What is said of layers that noise is directly before, according to lint."""
NOT_DIRECT = (
    "lint finds no noise directly before it. With noise before a weight layer recalibrating did not help in our runs: "
    "compare accuracy before you keep it"
)
"""What is said of all others; docs/batchnorm.md has the runs."""
ENOUGH_ROWS = 10
"""Rows for each feature; with fewer, features look more co-adapted than they are."""


def diagnose(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="pkg.module:name of a model, or of a function that returns one.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="SOURCE", help="pkg.module:name of the batches, or a .pt, .npy or .npz file of inputs."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", exists=True, dir_okay=False, help="A state_dict to load."),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Use at most this many batches.")] = 32,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Examples per batch, if --data is a file.")
    ] = 64,
    device: Device = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if lint finds something.")] = False,
    json: Json = False,
) -> None:
    """Show what noise does to your own model.

    Prints three things: the variance shift before every BatchNorm layer; the co-adaptation of the outputs of every
    linear and convolutional layer, in testing mode (no noise) and in training mode (with noise); and lint, a list of
    what is probably not intended. The model is not changed. It should be trained, because testing mode uses its running
    statistics.

    --data should be like the training data: a DataLoader, a list of batches, or a function that returns one of these. A
    batch is a tensor, a tuple whose first entry is the input, or a mapping of keyword arguments. A file holds inputs
    with examples along the first axis, which are shuffled. Without --data only lint runs, on the code of the model. The
    working directory is also searched for modules.

    Example:
        rotationout diagnose my_project.models:build --data inputs.npy
        rotationout diagnose my_models:net --data my_data:loader --weights w.pt
    """
    import torch

    from ..analysis import _lint
    from ..experiments import processes
    from .loading import load_weights, model_of

    torch.manual_seed(0)  # the same command gives the same numbers
    with redirect_stdout(sys.stderr):  # what a user's code prints is no data
        network = model_of(model)
        if weights is not None:
            load_weights(network, weights)
        with processes.joined(device) as place:
            network.to(place)
            shift, layers, example = _measure(network, data, batches, batch_size) if data else (None, None, None)
            view, problem = _lint.look(network, example)
            findings = _lint.judge(view, problem)
    advice = None if shift is None else _advice(shift, view)
    if json:
        print_json(
            {
                "model": model,
                "findings": [finding._asdict() for finding in findings],
                "variance_shift": None if shift is None else shift.to_dict()["layers"],
                "advice": advice,
                "coadaptation": layers,
            }
        )
    else:
        _show_shift(shift, advice)
        _show_coadaptation(layers)
        print(f"Lint\n\n{findings}" + ("" if data else "\n\ngive --data for the variance shift and co-adaptation"))
    if strict and findings:
        raise typer.Exit(FAILED)


def _measure(
    network: nn.Module, source: str, limit: int, size: int
) -> tuple[VarianceShift | None, list[dict[str, Any]], Any]:
    """The variance shift, None without BatchNorm; co-adaptation by layer; and the arguments that lint calls it with."""
    from torch.nn.modules.batchnorm import _BatchNorm

    from ..analysis import _passes, variance_shift
    from .loading import batches_of, checked_call

    found = batches_of(source, size, limit)
    first = checked_call(f"{source} gives no batches", lambda: list(islice(found, 1)))
    if not first:
        raise ValueError(f"{source} is empty: there is nothing to measure")
    if any(map(_has_nan, found if isinstance(found, list) else first)):
        raise ValueError(f"{source} has inputs that are not a number (NaN): nothing can be measured with them")
    args, kwargs = _passes.arguments_of(first[0], _passes.device_of(network))
    failed = f"the model cannot be run on the first batch, {_described([*args, *kwargs.values()])}"
    with _passes.untouched(network):
        checked_call(failed, lambda: _passes.run(network.train(), first))
    shift, passes = None, "the model cannot be run on all batches, in training and in testing mode"
    if any(isinstance(module, _BatchNorm) for module in network.modules()):
        shift = checked_call(passes, lambda: variance_shift(network, found, limit=limit))
    else:
        say("the model has no BatchNorm layer, so there is no variance shift to measure")
    layers = checked_call(passes, lambda: _coadaptation(network, found, limit))
    return shift, layers, kwargs or args


def _described(values: Iterable[Any]) -> str:
    """Data types and shapes of the arguments of a model.

    >>> import torch
    >>> _described([torch.zeros(2, 3, dtype=torch.uint8), 1.0])
    'uint8 (2, 3), float'
    """
    return ", ".join(
        f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        if hasattr(value, "dtype")
        else type(value).__name__
        for value in values
    )


def _has_nan(batch: Any) -> bool:
    """Whether an input of the model has a NaN; −∞ is none, which masks have."""
    from torch import Tensor

    if isinstance(batch, Mapping):
        return any(map(_has_nan, batch.values()))
    if isinstance(batch, list | tuple):
        return bool(batch) and _has_nan(batch[0])
    return isinstance(batch, Tensor) and bool(batch.isnan().any())


def _coadaptation(network: nn.Module, batches: Iterable[Any], limit: int) -> list[dict[str, Any]]:
    """co(x) of the outputs of weight layers, in testing mode, and with noise in training mode."""
    from torch.nn import Linear
    from torch.nn.modules.conv import _ConvNd

    from ..analysis import coadaptation_of

    widths = {
        name: module.out_features if isinstance(module, Linear) else module.out_channels
        for name, module in network.named_modules()
        if name and isinstance(module, Linear | _ConvNd)  # a model that is a layer itself has no layers
    }
    wide = [name for name, width in widths.items() if width > MOST_FEATURES]
    if wide:
        say(f"co-adaptation is not measured for layers of more than {MOST_FEATURES} features: {', '.join(wide)}")
    layers = [name for name, width in widths.items() if 1 < width <= MOST_FEATURES]
    if not layers:
        return []
    clean, noisy = (coadaptation_of(network, batches, layers, train=train, limit=limit) for train in (False, True))
    return [
        {
            "layer": name,
            "features": seen.features,
            "rows": seen.rows,
            "test": _value(seen),
            "train": _value(noisy[name]),
        }
        for name, seen in clean.items()
        if seen.rows > 1
    ]


def _value(seen: Coadaptation) -> float | None:
    """None for a layer whose outputs are constant, or that was not called."""
    try:
        return seen.value
    except ValueError:
        return None


def _advice(shift: VarianceShift, view: View) -> str | None:
    """What to do about layers whose input in training, and whose stored variance, differ from the input in testing."""
    if _is_new(view.model):
        return NEW if view.noisy else f"{NEW}\nthe model has no noise"
    if not view.noisy:
        return "the model has no noise: where r is far from 1, its running statistics do not fit these batches"
    large = {
        layer.name: r
        for layer in shift.layers
        if (r := layer.r.mean().item()) > LARGE_SHIFT
        and layer.stored_r is not None
        and layer.stored_r.mean() > LARGE_SHIFT
    }
    direct = {link.target for link in view.before_norms}
    lines = [
        _line({name: r for name, r in large.items() if name in direct}, DIRECT),
        _line({name: r for name, r in large.items() if name not in direct}, NOT_DIRECT),
    ]
    return "\n".join(filter(None, lines)) or None


def _line(large: Mapping[str, float], what: str) -> str:
    """What to do about these layers, with the largest shift among them; "" if there are none."""
    if not large:
        return ""
    name = max(large, key=large.__getitem__)
    others = f" ({len(large) - 1} more above {LARGE_SHIFT:g})" if len(large) > 1 else ""
    return f"{name or 'the model'}: r = {large[name]:.4g}{others}; {what}"


def _is_new(network: nn.Module) -> bool:
    """Whether all running statistics are as they are made. A repair also sets num_batches_tracked to 0."""
    from torch.nn.modules.batchnorm import _BatchNorm

    found = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    made = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in found]
    kept = [(mean, variance, count) for mean, variance, count in made if mean is not None and variance is not None]
    return bool(kept) and not any(mean.any() or (variance != 1).any() or count for mean, variance, count in kept)


def _show_shift(shift: VarianceShift | None, advice: str | None) -> None:
    from ..report.page import Table

    if shift is None:
        return
    head, *rows = map(list, shift.cells())
    show(Table(head, rows), "Variance shift before BatchNorm")
    print("\nr: variance of the input, training / testing or the inverse, whichever is larger; 1 means no shift")
    print("stored r: the same ratio between running_var and the testing variance\n")
    if advice is not None:
        print(f"{advice}\n")


def _show_coadaptation(layers: list[dict[str, Any]] | None) -> None:
    from ..report.page import Table

    if not layers:
        return
    rows, few = [], False
    for layer in layers:
        scarce = layer["rows"] < ENOUGH_ROWS * layer["features"]
        few |= scarce
        cells = ["–" if layer[key] is None else f"{layer[key]:.3g}" for key in ("test", "train")]
        rows.append([layer["layer"], str(layer["features"]), f"{layer['rows']}{'*' * scarce}", *cells])
    show(Table(["layer", "features", "rows", "in testing", "in training"], rows), "Co-adaptation of outputs")
    note = f"\n*: fewer than {ENOUGH_ROWS} rows per feature, so the value is too high; use more data" if few else ""
    print(f"\nsum of |covariances| between features / sum of variances; 0 means no co-adaptation{note}\n")
