"""Find out in a run of a model which noise reaches which normalisation layer, and through which operations.

Names, types and order of registration do not tell what a model does; a run does. For every storage the watcher keeps
the noises whose output went into it, and the operations since. It forgets them at a BatchNorm layer, whose output is
normalised anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..nn import WeightDrop
from ..nn.base import CentredNoise
from ..placing._attention import Weights, name_of
from ..placing._slot import Slot
from ..registry import is_noise

__all__ = [
    "ON_WEIGHTS",
    "Flow",
    "Link",
    "Paths",
    "acts",
    "disturbed",
    "has_strength",
    "is_norm",
    "noises_of",
    "observe",
    "passed",
]

ON_WEIGHTS = "dropout of attention weights"
"""What Dropout as a function is called if it acts on the result of a softmax."""

Paths = dict[str, tuple[str, ...]]
"""The noises in a value, by name, with the operations since, each once."""


@dataclass(frozen=True)
class Link:
    """A noise and the normalisation layer, or the noise, that it reaches.

    Attributes:
        source: the name of the noise; if it is no module, the operation and the module that calls it.
        noise: the noise, if it is a module.
        target: the name of the layer that it reaches.
        module: that layer.
        between: the operations on the way; empty if the noise is directly before the layer.
        aligned: whether the features of the noise are the channels of the layer; None if that is not known.
    """

    source: str
    noise: nn.Module | None
    target: str
    module: nn.Module
    between: tuple[str, ...]
    aligned: bool | None = None


@dataclass
class Flow:
    """What a run of a model, or its code, shows.

    Attributes:
        links: each once, in order: all links to BatchNorm layers; to other layers and to noises only those with nothing
            between.
        shapes: the shapes of the inputs of each noise, by name.
        calls: how often each module was called, by name; from the code only for noises and normalisation layers.
        draws: random operations outside of noises, each with the name of the module that calls it.
        causal: modules that were called with ``is_causal=True``, as torch's transformers are, by name.
    """

    links: dict[Link, None] = field(default_factory=dict)
    shapes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    draws: list[tuple[str, str]] = field(default_factory=list)
    causal: dict[str, None] = field(default_factory=dict)

    def add(self, link: Link) -> None:
        """Keep a link, if it is one of those that `links` describes."""
        if not link.between or isinstance(link.module, _BatchNorm):
            self.links[link] = None


def is_norm(module: nn.Module) -> bool:
    """Whether a module divides features by their own deviation, over a batch or over an example."""
    return isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)


def noises_of(model: nn.Module) -> dict[str, nn.Module]:
    """The noises of a model by name, including everything that was inserted."""
    found = {}
    for name, module in model.named_modules():
        if is_noise(module):
            found[name] = module
        elif isinstance(module, Slot) and not any(map(is_noise, module.noise.modules())):
            found[f"{name}.noise"] = module.noise
    return found


def has_strength(noise: nn.Module) -> bool:
    """Whether a noise does something in training mode: its rate, if it has one, is not 0."""
    rate = getattr(noise, "p", getattr(noise, "drop_prob", 1.0))
    return not (isinstance(rate, float | int) and rate == 0)


def acts(noise: nn.Module) -> bool:
    """Whether a noise is on: in training mode, and with a rate other than 0."""
    return noise.training and has_strength(noise)


def passed(given: Iterable[Paths], operation: str) -> Paths:
    """The paths of the result of an operation on values with these paths."""
    return {
        source: path if operation in path else (*path, operation) for paths in given for source, path in paths.items()
    }


def disturbed(name: str, noise: nn.Module, paths: Paths) -> Paths:
    """The paths of the output of a noise; one that is off is the identity.

    Noise on weights does not count as directly before what follows; on or off, it runs the module that it holds.
    """
    kind = type(noise).__name__
    if not acts(noise):
        return passed([paths], kind) if isinstance(noise, WeightDrop) else paths
    return {**passed([paths], kind), name: (kind,) if isinstance(noise, WeightDrop) else ()}


def observe(model: nn.Module, run: Callable[[], object], flow: Flow | None = None) -> Flow:
    """Watch a run of a model, in whatever mode it is; inside `_passes.untouched`, without gradients.

    Args:
        model: the model.
        run: calls it.
        flow: where to record what is seen, so that the caller has it even if the run fails.
    """
    watcher = _Watcher(model, Flow() if flow is None else flow)
    try:
        with watcher, _Attention(watcher):
            run()
    finally:
        for handle in watcher.handles:
            handle.remove()
    return watcher.flow


class _Attention(TorchFunctionMode):
    """Tells a watcher when weights of attention are dropped, inside a function for attention or after a softmax."""

    def __init__(self, watcher: _Watcher) -> None:
        super().__init__()
        self.watcher = watcher
        self.weights = Weights()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        if name == "dropout" and args and args[0] in self.weights:
            name = ON_WEIGHTS
        self.watcher.attention = name if "attention" in name else ""
        try:
            output = func(*args, **(kwargs or {}))
        finally:
            self.watcher.attention = ""
        self.weights.record(name, args, output)
        return output


class _Watcher(TorchDispatchMode):
    def __init__(self, model: nn.Module, flow: Flow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = flow
        self.noises = noises_of(model)
        self.carried: dict[int, tuple[torch.UntypedStorage, Paths]] = {}  # storages are kept: no address is reused
        self.layout: dict[str, tuple[int, int, int] | None] = {}
        self.stack: list[str] = []
        self.within = 0  # how deep inside noises
        self.attention = ""  # what is going on, if weights of attention are dropped
        self.incoming: list[Paths] = []
        self.handles = []
        for name, module in model.named_modules():
            enter, leave = self._hooks(name, module)
            # Run after the hooks of noises before a module, and before those of noises after it.
            self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            self.handles.append(module.register_forward_hook(leave, prepend=True))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.within or any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            return output  # a view is in the same storage
        operation = func.overloadpacket.__name__.rstrip("_")
        if operation == "_to_copy" and output.stride() == args[0].stride():  # a cast, e.g. by autocast
            self._carry(output, self._paths(args[0]))
            return output
        paths = passed(map(self._paths, _tensors((args, kwargs))), operation)
        if _draws(func, args, kwargs):
            operation = self.attention or operation
            where = self.stack[-1] if self.stack else ""
            self.flow.draws.append((operation, where))
            paths[f"{operation} in {where or 'the model'}"] = ()
        if paths:
            self._carry(output, paths)
        return output

    def _hooks(self, name: str, module: nn.Module) -> tuple[Callable[..., None], Callable[..., None]]:
        noise = name in self.noises

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.flow.calls[name] += 1
            self.stack.append(name)
            if kwargs.get("is_causal") is True or kwargs.get("tgt_is_causal") is True:
                self.flow.causal[name] = None
            if not noise and not is_norm(module):
                return
            given = list(_tensors((args, kwargs)))
            for tensor in given[:1] if is_norm(module) else given:
                self._link(name, module, tensor)
            if noise:
                self.flow.shapes.setdefault(name, []).extend(tuple(tensor.shape) for tensor in given[:1])
                self.incoming.append({s: p for tensor in given for s, p in self._paths(tensor).items()})
                self.within += 1

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.stack.pop()
            if noise:
                self.within -= 1
                self._carry(output, disturbed(name, module, self.incoming.pop()))
                if acts(module):
                    self.layout[name] = _feature_layout(module, output)
            elif isinstance(module, _BatchNorm):
                self._carry(output, {})

        return enter, leave

    def _link(self, name: str, module: nn.Module, tensor: Tensor) -> None:
        for source, path in self._paths(tensor).items():
            aligned = None
            if isinstance(module, _BatchNorm) and not path and (layout := self.layout.get(source)) is not None:
                aligned = layout[:2] == (tensor.numel(), tensor.size(1)) and layout[2] in (tensor.stride(1), 0)
            self.flow.add(Link(source, self.noises.get(source), name, module, path, aligned))

    def _paths(self, tensor: Tensor) -> Paths:
        key = _key(tensor)
        return {} if key is None else self.carried.get(key, (None, {}))[1]

    def _carry(self, output: Any, paths: Paths) -> None:
        for tensor in _tensors(output):
            key = _key(tensor)
            if key is not None:
                self.carried[key] = tensor.untyped_storage(), paths


def _key(tensor: Tensor) -> int | None:
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.untyped_storage().data_ptr() or None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _tensors(entry)


def _feature_layout(noise: nn.Module, output: Any) -> tuple[int, int, int] | None:
    """The number of elements and features of a noise's output, and the stride of the features (0 if there is one)."""
    if not isinstance(noise, CentredNoise) or not isinstance(output, Tensor):
        return None
    axis, _ = noise._axes(output)
    return output.numel(), output.size(axis), output.stride(axis) if output.size(axis) > 1 else 0


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers; attention and recurrent operations only do with dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    names = {argument.name: argument.default_value for argument in func._schema.arguments}
    off = {"dropout_p": 0, "dropout": 0, "train": False, "training": False}
    return not any(name in names and given.get(name, names[name]) == value for name, value in off.items())
