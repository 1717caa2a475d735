"""Run data through a model and leave the model, its modes and torch's generators as they were."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from .. import strength
from ..placing._running import arguments, modes_kept, uncompiled

__all__ = [
    "Forward",
    "arguments_of",
    "batchnorms",
    "call",
    "check_batches",
    "check_limit",
    "check_model",
    "count",
    "device_of",
    "frozen",
    "progress",
    "run",
    "set_mode",
    "untouched",
]

Forward = Callable[[nn.Module, Any], Any]
"""A function that calls a model with a batch."""


def check_model(model: nn.Module) -> None:
    """Raise an error if a model is scripted, so that it cannot be watched, or if a part of it is still lazy."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{name or 'the model'} is scripted, and cannot be watched: pass the model it was made of")
        if any(is_lazy(t) for t in (*module._parameters.values(), *module._buffers.values()) if t is not None):
            raise ValueError(f"{name or 'the model'} is lazy and has no size yet: call the model once with an input")


def batchnorms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers of a model by name, including SyncBatchNorm; a ValueError if there are none."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if not found:
        raise ValueError("the model has no BatchNorm layer (torch.nn.BatchNorm1d, 2d, 3d or SyncBatchNorm)")
    return found


def frozen(model: nn.Module) -> set[_BatchNorm]:
    """The BatchNorm layers in testing mode of a model in training mode: these are frozen on purpose."""
    if not model.training:
        return set()
    return {module for module in model.modules() if isinstance(module, _BatchNorm) and not module.training}


def set_mode(model: nn.Module, training: bool, kept: set[_BatchNorm]) -> None:
    """``model.train(training)``, except that the layers ``kept`` stay in testing mode."""
    model.train(training)
    for layer in kept:
        layer.training = False


def check_batches(batches: Iterable[Any], *, once: bool = False) -> None:
    """Raise a TypeError unless ``batches`` can be iterated, and more than once if not ``once``."""
    if isinstance(batches, Tensor | str | Mapping) or not isinstance(batches, Iterable):
        raise TypeError(
            "batches must be an iterable of batches, a DataLoader or a list of tensors, got "
            f"{type(batches).__name__}; for a single batch pass [batch]"
        )
    if not once and isinstance(batches, Iterator):  # not by calling iter: that of a DataLoader draws random numbers
        raise TypeError(
            f"batches is a {type(batches).__name__}, which can be gone through only once; pass the DataLoader itself, "
            "or list(batches)"
        )


def check_limit(limit: int | None) -> int | None:
    """``limit`` as an int, or an error unless it is a positive integer or None."""
    return None if limit is None else strength.check_integer("limit, the most batches,", limit, 1, also="None")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model, the CPU if it has no tensors."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def untouched(model: nn.Module, *, random: bool = True) -> Iterator[Callable[[], None]]:
    """A context after which the model and torch's generators are as they were before, even after an error.

    Modes are put back. Inside, buffers (running statistics, running means of noises, …) are copies, so the originals
    are never written to, and an autograd graph from before stays valid. With ``random`` the generators of the CPU and
    of the model's CUDA devices are put back. Gradients are off, and compiled parts run as plain Python, so that hooks
    run.

    Yields:
        A function that sets the buffers back at once.
    """
    modules = list(model.modules())
    buffers = [dict(module._buffers) for module in modules]
    copies: dict[int, Tensor] = {}

    def set_back() -> None:
        for module, kept in zip(modules, buffers, strict=True):
            for name, buffer in kept.items():
                if buffer is not None:
                    module._buffers[name] = copies[id(buffer)].copy_(buffer)

    with modes_kept(model), ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(_cuda_devices(model), enabled=random))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(uncompiled(model))
        try:
            for module in modules:
                for name, buffer in module._buffers.items():
                    if buffer is not None:  # a buffer that two modules share stays shared
                        module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())
            yield set_back
        finally:
            for module, kept in zip(modules, buffers, strict=True):
                module._buffers.clear()
                module._buffers.update(kept)


def run(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Forward | None = None,
    limit: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Call a model, in its current mode, with every batch; return the number of batches, at least one.

    Call it inside `untouched`: then every pass sees the same batches, whatever the model itself draws, as far as
    shuffling and augmentation draw from torch's generators.
    """
    device = device_of(model)
    done = 0
    for batch in _each(batches, limit, _cuda_devices(model)):
        call(model, batch, device, forward)
        done += 1
        tick()
    if not done:
        raise ValueError("batches is empty: there is nothing to measure")
    return done


def call(model: nn.Module, batch: Any, device: torch.device, forward: Forward | None) -> Any:
    """Call a model with a batch: with its `arguments_of`, unless ``forward`` says otherwise."""
    if forward is not None:
        return forward(model, _moved(batch, device))
    args, kwargs = arguments_of(batch, device)
    return model(*args, **kwargs)


def arguments_of(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with: the first entry of a batch, or the entries of a mapping as keyword arguments.

    >>> arguments_of((torch.zeros(2), "a target"), torch.device("cpu"))
    ((tensor([0., 0.]),), {})
    >>> arguments_of({"x": torch.zeros(2)}, torch.device("cpu"))
    ((), {'x': tensor([0., 0.])})
    """
    args, kwargs = arguments(batch)
    return _moved(args[:1], device), _moved(kwargs, device)


@contextmanager
def progress(text: str, total: int | None, show: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, if rich is installed. Yields the function that advances it."""
    if not show or not sys.stderr.isatty():
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


def count(batches: Iterable[Any], limit: int | None) -> int | None:
    """The number of batches; None if it is not known."""
    try:
        length = len(batches)  # type: ignore[arg-type]
    except TypeError:  # a loader of an iterable dataset has no length
        return limit
    return length if limit is None else min(length, limit)


def _each(batches: Iterable[Any], limit: int | None, devices: list[torch.device]) -> Iterator[Any]:
    """The batches, drawn from a random state of their own, which the model's draws in between do not change."""
    data = _random_state(devices)
    seed = int(torch.randint(2**62, ()))
    torch.default_generator.manual_seed(seed)
    for device in devices:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    model = _random_state(devices)
    _set_random_state(devices, data)
    iterator = iter(batches)
    for _ in itertools.count() if limit is None else range(limit):
        try:
            batch = next(iterator)
        except StopIteration:
            return
        data = _random_state(devices)
        _set_random_state(devices, model)
        yield batch
        model = _random_state(devices)
        _set_random_state(devices, data)


def _cuda_devices(model: nn.Module) -> list[torch.device]:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return sorted({t.device for t in tensors if t.device.type == "cuda"}, key=str)


def _random_state(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _set_random_state(devices: list[torch.device], state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    for device, own in zip(devices, state[1:], strict=True):
        torch.cuda.set_rng_state(own, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, PackedSequence):
        return value.to(device)  # type: ignore[arg-type]  # it takes what Tensor.to takes
    if isinstance(value, Mapping):
        return {key: _moved(entry, device) for key, entry in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_moved(entry, device) for entry in value)
    return value
