"""Call a model with the input that a user shows, and put its modes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["ModelFailedError", "arguments", "call", "modes_kept", "no_tensor", "uncompiled"]


class ModelFailedError(RuntimeError):
    """The model itself failed on the input that it was shown."""


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with: a tensor or packed sequence, a tuple of arguments, or a mapping of them by name.

    >>> arguments(("x", "mask")), arguments({"x": 1})
    ((('x', 'mask'), {}), ((), {'x': 1}))
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    several = isinstance(inputs, tuple | list) and not isinstance(inputs, PackedSequence)
    return (tuple(inputs) if several else (inputs,)), {}


def call(model: nn.Module, example_inputs: Any) -> Any:
    """Call a model with its `arguments`; an error of any type becomes a `ModelFailedError`."""
    args, kwargs = arguments(example_inputs)
    try:
        return model(*args, **kwargs)
    except Exception as error:
        values, hint = [*args, *kwargs.values()], ""
        if len(args) > 1:
            alone = "give the inputs alone, without targets, e.g. batch[0]"
            hint = f"; a tuple or list is passed as several arguments: {alone}"
        elif not any(isinstance(value, Tensor | Sequence | Mapping) for value in values):
            hint = f"; {no_tensor(values)}"
        why = f"the model failed on example_inputs with {type(error).__name__}: {error}{hint}"
        raise ModelFailedError(why) from error


def no_tensor(values: Iterable[Any]) -> str:
    """What is wrong with the arguments of a model if none of them is a tensor.

    >>> no_tensor([3.0])
    'there must be at least one tensor, got float; give one batch of a DataLoader at a time, and convert arrays and
        packed sequences first, torch.from_numpy(x), pad_packed_sequence(x)'
    """
    kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
    return (
        f"there must be at least one tensor, got {kinds}; give one batch of a DataLoader at a time, and convert arrays "
        "and packed sequences first, torch.from_numpy(x), pad_packed_sequence(x)"
    )


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """A context after which every module of a model is in the mode that it was in, even after an error."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """A context in which compiled parts of a model run as plain Python, so that hooks run."""
    if any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules()):
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield
