"""Co-adaptation of features (section 3.1): measured on data, in any layer of any model, and predicted for noises.

    co(x) = ‖Σ − diag(Σ)‖₁ / trace(Σ),

the sum of the absolute covariances between features over the sum of their variances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .. import strength
from ..functional.inputs import check_features
from ..placing._layout import dims_of_module
from ..placing._select import Selection, candidates, select
from ._passes import Forward, check_batches, check_limit, check_model, count, progress, run, untouched
from .accumulate import MomentAccumulator
from .law import NoiseLaw, noise_law
from .moments import check_covariance, check_single, total_moments

__all__ = ["Coadaptation", "coadaptation", "coadaptation_factor", "coadaptation_of"]

_WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


class Coadaptation:
    """The co-adaptation of features that come in batches, in one pass, with memory for a (D, D) covariance in fp64.

    Few rows make features look co-adapted: with n rows, independent features have co(x) of about (D − 1)·√(2 / πn), not
    0. Give many more rows than features, and compare at equal numbers of rows.

    Args:
        dim: the feature axis; all others count samples. If not given it is 1 for maps, tensors of four or five
            dimensions, and the last one otherwise.

    >>> seen = Coadaptation()
    >>> for batch in torch.randn(1000, 1, generator=torch.Generator().manual_seed(1)).expand(-1, 3).split(100):
    ...     seen.update(batch)
    >>> seen  # three copies of one feature: each covaries fully with two others
    Coadaptation(2, features=3, rows=1000)
    """

    def __init__(self, *, dim: int | None = None) -> None:
        self.dim = dim
        self._seen = MomentAccumulator(errors=False)

    @property
    def rows(self) -> int:
        """How many feature vectors were seen; each position of a map is one."""
        return self._seen.count

    @property
    def features(self) -> int | None:
        """D, None before the first batch."""
        return self._seen.mean.numel() if self.rows else None

    @property
    def value(self) -> float:
        """co(x) of all that was seen."""
        return _ratio(self._seen.covariance).item()

    def update(self, x: Tensor) -> None:
        """Take in a batch of features."""
        usual = 1 if isinstance(x, Tensor) and x.ndim in (4, 5) else -1
        axis = check_features(x, usual if self.dim is None else self.dim)
        self._seen.update(x.detach().movedim(axis, -1).reshape(-1, x.size(axis)))

    def merge(self, other: Coadaptation) -> None:
        """Add the rows that another one has seen, e.g. in another process."""
        self._seen.merge(other._seen)

    def __repr__(self) -> str:
        if self.rows < 2:
            return f"Coadaptation(rows={self.rows})"
        return f"Coadaptation({self.value:.4g}, features={self.features}, rows={self.rows})"


def coadaptation(x: Tensor | Iterable[Tensor], *, dim: int | None = None) -> float:
    """co(x) of features, a tensor or batches of them that need not fit in memory; see `Coadaptation`.

    Args:
        x: features.
        dim: their axis, as in `Coadaptation`.

    >>> coadaptation(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))  # (2 + 2) / (1 + 4)
    0.8
    """
    seen = Coadaptation(dim=dim)
    for batch in [x] if isinstance(x, Tensor) else x:
        seen.update(batch)
    return seen.value


def coadaptation_of(
    model: nn.Module,
    batches: Iterable[Any],
    layers: Selection = _WEIGHT_LAYERS,
    *,
    dim: int | Mapping[str, int] | None = None,
    train: bool | None = False,
    forward: Forward | None = None,
    limit: int | None = None,
    show_progress: bool = True,
) -> dict[str, Coadaptation]:
    """The co-adaptation of the outputs of layers of a model, in one run over some batches.

    It runs without gradients. Modes, running means and hooks of the model, and the state of torch's generators, are as
    before afterwards, even after an error.

    Args:
        model: any.
        batches: inputs of the model: tensors, mappings of keyword arguments, or tuples and lists as from a data loader,
            whose first entry is the input. Tensors are moved to the device of the model.
        layers: types of modules or patterns of their names, all linear and convolutional ones if not given. All calls
            of a layer in a run count. Of a recurrent module's output the sequence is taken.
        dim: the feature axis, for all layers or by their names. If not given, it is the one that the type of a layer
            implies, else as in `Coadaptation`.
        train: the mode of the model in the run: False, features without noise; True, with it; None, as it is.
        forward: calls the model on a batch, ``lambda model, batch: model(batch["image"], batch["mask"])``.
        limit: the most batches to take.
        show_progress: a progress bar, on a terminal.

    Returns:
        A `Coadaptation` for the name of each layer; its `value` is co(x). A layer that was not called has no rows.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    >>> table = coadaptation_of(model, [torch.randn(32, 4) for _ in range(10)], nn.ReLU)
    >>> list(table), table["1"].features, table["1"].rows
    (['1'], 8, 320)
    """
    check_model(model)
    check_batches(batches, once=True)
    limit = check_limit(limit)
    chosen = {candidate.name: candidate.module for candidate in select(candidates(model), "layers", layers, None, None)}
    if isinstance(dim, Mapping) and not set(dim) <= set(chosen):
        raise ValueError(f"dim is for {', '.join(map(repr, dim))}, but the layers are {', '.join(map(repr, chosen))}")
    table = {}
    for name, module in chosen.items():
        given = dim.get(name) if isinstance(dim, Mapping) else dim
        table[name] = Coadaptation(dim=_axis_of(module) if given is None else given)
    handles = [module.register_forward_hook(_recorder(name, table[name])) for name, module in chosen.items()]
    try:
        with untouched(model), progress("co-adaptation", count(batches, limit), show_progress) as tick:
            if train is not None:
                model.train(train)
            run(model, batches, forward=forward, limit=limit, tick=tick)
    finally:
        for handle in handles:
            handle.remove()
    if not any(seen.rows for seen in table.values()):
        raise ValueError("none of the layers was called: the model does not use them on these batches")
    return table


def coadaptation_factor(
    noise: nn.Module | NoiseLaw,
    features: int | None = None,
    *,
    covariance: Tensor | None = None,
    mean: Tensor | None = None,
) -> float:
    """co(x̃) / co(x), the share of the co-adaptation that a noise is predicted to leave (section 3.1).

    For features with mean zero it is 1 − p for Dropout and all noises that multiply features one by one, and
    (1 − p) − p / (D − 1) for RotationOut with λ ≤ D − 1. Given a covariance it is computed from label eq145; a mean
    then matters if the noise is about the origin, and with RotationOut the factor may be above 1. It is not finite for
    features without correlations.

    Args:
        noise: a noise layer or its law.
        features: D, for features with mean zero. This or ``covariance``.
        covariance: Σ, (D, D).
        mean: c, (D,); zero if not given.

    >>> import rotationout as ro
    >>> coadaptation_factor(ro.noise("dropout", 0.25), 64), round(coadaptation_factor(ro.RotationOut(0.25), 64), 4)
    (0.75, 0.746)
    """
    if (features is None) == (covariance is None):
        raise ValueError("give either features, their number if they have mean zero, or their covariance")
    law = noise_law(noise)
    if covariance is None:
        features = strength.check_integer("features", features, 2)
        if mean is not None:
            raise ValueError("with a mean the factor depends on the covariance too: give that instead of features")
        left = {"itself": 1.0, "others": abs(1 - law.lam / (features - 1)), "whole": 1 + law.lam}
        return left[law.source] / (1 + law.lam)
    c, sigma = check_covariance(covariance, mean)
    check_single(c, sigma)
    return (_ratio(total_moments(law, c, sigma).covariance) / _ratio(sigma)).item()


def _ratio(covariance: Tensor) -> Tensor:
    variance = covariance.diagonal()
    total = variance.sum()
    if not bool((total > 0) & total.isfinite()):
        raise ValueError(f"the features must vary and be finite, but their variances sum to {total.item():g}")
    return (covariance - torch.diag(variance)).abs().sum() / total


def _axis_of(module: nn.Module) -> int | None:
    """The feature axis of the output of a module; None if its type does not tell."""
    dims = dims_of_module(module)
    return None if dims is None else -1 - dims


def _recorder(name: str, seen: Coadaptation) -> Callable[[nn.Module, Any, Any], None]:
    def record(module: nn.Module, args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) and output else output
        tensor = tensor.data if isinstance(tensor, PackedSequence) else tensor
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise TypeError(f"layer {name!r} must return a floating-point tensor, got {type(output).__name__}")
        try:
            seen.update(tensor)
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from error

    return record
