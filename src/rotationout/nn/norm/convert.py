"""Replace the BatchNorm layers of a model by the layers of this package, and back."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...strength import check_choice
from .cross import CrossNorm1d, CrossNorm2d, CrossNorm3d
from .ghost import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from .poly import PolyBatchNorm1d, PolyBatchNorm2d, PolyBatchNorm3d

__all__ = ["FAMILIES", "convert_batchnorm", "to_batchnorm"]

Model = TypeVar("Model", bound=nn.Module)

PLAIN: tuple[type[_BatchNorm], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
FAMILIES: dict[str, tuple[type[_BatchNorm], ...]] = {
    "cross": (CrossNorm1d, CrossNorm2d, CrossNorm3d),
    "ghost": (GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d),
    "poly": (PolyBatchNorm1d, PolyBatchNorm2d, PolyBatchNorm3d),
}
"""The layers that `convert_batchnorm` knows by a name, for one, two and three dimensions."""


def convert_batchnorm(model: Model, to: str | type[_BatchNorm], **options: Any) -> Model:
    """Replace the BatchNorm layers of a model by layers of this package.

    The new layers share the parameters and running statistics of the old ones, the same tensors, so that an optimiser
    goes on; momentum, mode and hooks stay too. The evaluation output of a model trained with BatchNorm does not change,
    except for ``"poly"``. ``nn.BatchNorm1d``, ``2d`` and ``3d`` and the layers of this package are replaced, but not
    ``nn.SyncBatchNorm`` or other subclasses.

    Args:
        model: changed in place.
        to: ``"cross"``, ``"ghost"`` or ``"poly"`` for all; or a class, e.g. `CrossNorm2d`, for those of its dimension.
        options: ``ghost_batch``, and ``batch_size`` for ``"poly"``.

    Returns:
        The model, or the new layer where the model is itself a BatchNorm.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> convert_batchnorm(model, to="poly", batch_size=8)[1]  # doctest: +ELLIPSIS
    PolyBatchNorm1d(8, eps=1e-05, ..., batch_size=8)
    """
    if isinstance(to, str):
        wanted = FAMILIES[check_choice("to", to, FAMILIES)]
    elif any(to in family for family in FAMILIES.values()):
        wanted = (to,)
    else:
        raise TypeError(f"to must be a layer of rotationout.nn.norm or one of {', '.join(FAMILIES)}, got {to!r}")
    return _replace(model, wanted, options)


def to_batchnorm(model: Model) -> Model:
    """Replace the layers of this package by ``nn.BatchNorm``, as `convert_batchnorm` does the reverse.

    The evaluation output stays as it was, except where f_poly was applied.

    >>> to_batchnorm(CrossNorm2d(8))  # doctest: +ELLIPSIS
    BatchNorm2d(8, eps=1e-05, ...)
    """
    return _replace(model, PLAIN, {}, only_ours=True)


def _replace(
    model: Model, wanted: tuple[type[_BatchNorm], ...], options: dict[str, Any], *, only_ours: bool = False
) -> Model:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    ours = {layer for family in FAMILIES.values() for layer in family}
    convertible = ours if only_ours else ours.union(PLAIN)
    by_dimension = {plain: layer for plain in PLAIN for layer in wanted if issubclass(layer, plain)}
    made: dict[nn.Module, nn.Module] = {}  # a module may be in several places
    for module in model.modules():
        layer = next((by_dimension[plain] for plain in by_dimension if isinstance(module, plain)), None)
        if layer is not None and type(module) in convertible:
            made[module] = _rebuild(cast(_BatchNorm, module), layer, options)
    if not made and not only_ours:
        left = sorted({type(module).__name__ for module in model.modules() if isinstance(module, _BatchNorm)})
        there = f"its normalisation is {', '.join(left)}" if left else "it has no BatchNorm layer at all"
        raise ValueError(
            f"the model has no layer that {', '.join(layer.__name__ for layer in wanted)} can replace: {there}"
        )
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in made:
                parent._modules[name] = made[child]
    return cast(Model, made.get(model, model))


def _rebuild(old: _BatchNorm, layer: type[_BatchNorm], options: dict[str, Any]) -> _BatchNorm:
    """A new layer with the state of ``old``: every attribute of a BatchNorm, hooks included."""
    new = layer(old.num_features, device="meta", **options)
    for name in vars(nn.BatchNorm1d(1, device="meta")):
        new.__dict__[name] = old.__dict__[name]
    return new
