"""Noise at test time: the mean and standard deviation of n predictions, each with its own draw.

This is Monte-Carlo dropout (Gal and Ghahramani 2016), with any noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .. import strength
from ..nn import LockedDropout
from ..nn.base import CentredNoise
from ..nn.rotation import _RotationOutNd
from ..registry import is_noise
from ._running import arguments, modes_kept, no_tensor, uncompiled
from ._slot import Slot, check_attached

__all__ = ["Samples", "predict_samples", "sampling"]


class Samples(NamedTuple):
    """The mean of n predictions and their standard deviation (n − 1 in the denominator).

    >>> mean, std = Samples(torch.tensor(2.0), torch.tensor(0.5))
    >>> std
    tensor(0.5000)
    """

    mean: Tensor
    std: Tensor


@contextmanager
def sampling(model: nn.Module) -> Iterator[None]:
    """Turn the noises of a model on and leave the rest in eval mode; afterwards everything is as it was.

    Noises are the modules that `rotationout.registry.is_noise` knows, torch's Dropout among them, and whatever
    `rotationout.insert` has placed. Running statistics do not change, nor do the running means of noises. Dropout that
    is an argument of another module (``nn.LSTM(dropout=…)``, ``nn.MultiheadAttention(dropout=…)``) stays off.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    >>> with sampling(model):
    ...     [module.training for module in model]
    [False, False, True]
    >>> model[2].training
    False
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_attached(model)
    noises = [module for module in model.modules() if is_noise(module)]
    noises += [part for module in model.modules() if isinstance(module, Slot) for part in module.noise.modules()]
    if not noises:
        raise ValueError("the model has no noise to sample: rotationout.insert places some")
    tracking = {noise: noise.tracking for noise in noises if isinstance(noise, CentredNoise)}
    fused = torch.backends.mha.get_fastpath_enabled()
    with modes_kept(model):
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # it skips the noises of a transformer layer in eval mode
            for module in model.modules():
                module.training = False
            for noise in noises:
                noise.training = True
            for noise in tracking:
                noise.tracking = False
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
            for noise, tracked in tracking.items():
                noise.tracking = tracked


def predict_samples(
    model: nn.Module,
    x: Any,
    n: int,
    *,
    batch_size: int | None = None,
    output: Callable[[Any], Tensor] | None = None,
) -> Samples:
    """Run a model n times with noise; without gradients, and repeatable by ``torch.manual_seed``.

    Args:
        model: in any mode, see `sampling`.
        x: the input of the model: a tensor, a tuple of arguments, or a mapping of keyword arguments. The first axis of
            every tensor is that of examples.
        n: how many samples, at least 2.
        batch_size: the most examples in a call, all of ``x`` if not given. If ``x`` fits into it more than once, a
            call makes several samples, provided that all noises draw for every example separately. Noise about a
            batch mean takes the mean of the examples in a call.
        output: picks a tensor (examples, …) from what the model returns: ``lambda out: out.logits.softmax(-1)``.

    Returns:
        Mean and standard deviation over the samples, in float32 at least.

    >>> model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    >>> mean, std = predict_samples(model, torch.randn(10, 4), 50, batch_size=100)
    >>> mean.shape, bool((std > 0).all())
    (torch.Size([10, 3]), True)
    """
    n = strength.check_integer("n", n, 2)
    if batch_size is not None:
        batch_size = strength.check_integer("batch_size", batch_size, 1, also="None")
    args, kwargs = arguments(x)
    examples = _examples([*args, *kwargs.values()])
    most = examples if batch_size is None else batch_size
    with torch.no_grad(), sampling(model):
        together = max(most // examples, 1) if all(map(_own_draws, model.modules())) else 1
        if together > 1 and not _draws_follow_examples(model, args, kwargs):
            together = 1
        parts = [
            _moments(model, args, kwargs, range(start, min(start + most, examples)), n, min(together, n), output)
            for start in range(0, examples, most)
        ]
    return Samples(torch.cat([mean for mean, _ in parts]), torch.cat([std for _, std in parts]))


def _moments(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: range,
    n: int,
    together: int,
    output: Callable[[Any], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation for some examples, in one pass over the samples (Welford 1962)."""
    mean = squares = torch.zeros(())
    for done in range(0, n, together):
        copies = min(together, n - done)
        answer = _call(model, args, kwargs, rows, copies)
        answers = _check_output(answer if output is None else output(answer), len(rows) * copies)
        for k, sample in enumerate(answers.unflatten(0, (copies, len(rows))), start=done + 1):
            difference = sample - mean
            mean = mean + difference / k
            squares = squares + difference * (sample - mean)
    return mean, (squares / (n - 1)).sqrt()


def _call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: range, copies: int) -> Any:
    """Call a model with copies of some examples, one after the other."""

    def repeated(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        part = value[rows.start : rows.stop]
        return part.repeat(copies, *[1] * (part.ndim - 1)) if copies > 1 else part

    return model(*map(repeated, args), **{name: repeated(value) for name, value in kwargs.items()})


def _examples(values: list[Any]) -> int:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError(f"x must be the input of the model for one batch: {no_tensor(values)}")
    shapes = {tuple(tensor.shape[:1]) for tensor in tensors}
    if len(shapes) != 1 or shapes & {(), (0,)}:
        raise ValueError(
            "x must hold tensors whose first axis is that of examples, of one size in all and at least 1, got "
            + ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        )
    return int(shapes.pop()[0])


def _check_output(output: Any, rows: int) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim == 0 or output.size(0) != rows or output.is_complex():
        found = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise TypeError(
            f"the model must return a real tensor with a row for each of its {rows} examples, got {found}; "
            "pick it with output, e.g. output=lambda out: out.logits"
        )
    return output if output.dtype in (torch.float32, torch.float64) else output.float()


def _own_draws(module: nn.Module) -> bool:
    """Whether a module draws noise for every example separately; True if it is no noise.

    An inserted module that is no noise of the registry may share its draw: False.
    """
    if isinstance(module, Slot):
        return is_noise(module.noise)
    if not is_noise(module):
        return True
    if isinstance(module, _RotationOutNd):
        return module.center != "batch" and "batch" not in (module.draw.pairing_per, module.draw.angle_per)
    if isinstance(module, CentredNoise):
        return module.center != "batch"
    return isinstance(module, LockedDropout | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)


def _draws_follow_examples(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether noises that draw once for an entry of some axis draw twice as often for two copies of the examples.

    They do not if that axis is another one, e.g. time where a model has moved the batch to the second axis.
    """
    noises = [module for module in model.modules() if _is_per_example(module)]
    if not noises:
        return True
    counts: list[tuple[nn.Module, int]] = []

    def count(noise: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        counts.append((noise, _count_draws(noise, args[0] if args else kwargs["input"])))

    few = range(min(2, _examples([*args, *kwargs.values()])))
    hooks = [noise.register_forward_hook(count, with_kwargs=True) for noise in noises]
    try:
        with uncompiled(model):  # so that the hooks run
            _call(model, args, kwargs, few, 1)
            single = [(noise, 2 * draws) for noise, draws in counts]
            counts.clear()
            _call(model, args, kwargs, few, 2)
    finally:
        for hook in hooks:
            hook.remove()
    return counts == single


def _is_per_example(module: nn.Module) -> bool:
    if isinstance(module, _RotationOutNd):
        return "example" in (module.draw.pairing_per, module.draw.angle_per)
    return isinstance(module, LockedDropout)


def _count_draws(noise: Any, x: Any) -> int:
    """For how many examples a noise draws, given an input that it has taken."""
    if isinstance(x, PackedSequence):
        return int(x.batch_sizes[0])
    if isinstance(noise, LockedDropout):
        axis = None if x.ndim < 3 else 0 if noise.batch_first else 1
    else:
        axis = noise._axes(x)[1]
    return 1 if axis is None else int(x.size(axis))
