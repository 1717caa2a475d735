"""Find the feature axis of a Dropout from the layers before and after it, in the code or in a run of the model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..registry import is_noise
from ._attention import KEEPING, Key, Weights, floating, key, may_be_attention, name_of
from ._layout import dims_of_module
from ._running import call, modes_kept

__all__ = ["Seen", "called", "dims_between", "rates_read", "read_only", "watch"]

_SPATIAL = re.compile(r"(?:conv|conv_transpose|(?:adaptive_)?(?:max|avg|lp)_pool)([123])d")
"""Functions with the features before as many axes as their names say."""
_LAST = frozenset({"linear", "embedding"})
"""Functions with the features on the last axis."""


@dataclass
class Seen:
    """What was seen of a Dropout while the model ran.

    Attributes:
        calls: how often it was called.
        shapes: the shapes of the tensors that it was given.
        dims: how many of them follow the features, according to each of its neighbours.
        attention: whether it was given the result of a softmax, such as attention weights, or values that look like it.
    """

    calls: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    dims: set[int] = field(default_factory=set)
    attention: bool = False


def watch(model: nn.Module, example_inputs: Any, dropouts: Iterable[nn.Module]) -> dict[nn.Module, Seen]:
    """Run a model once, in eval mode and without gradients, and record what its Dropouts are given."""
    run = _Run({dropout: Seen() for dropout in dropouts})
    telling = [m for m in model.modules() if m in run.seen or dims_of_module(m) is not None]
    with _Functions(run.record_function):
        _run(model, example_inputs, telling, run.record)
    return run.conclude()


def called(model: nn.Module, example_inputs: Any) -> set[nn.Module]:
    """The modules that are called in a run of a model, in eval mode and without gradients."""
    found: set[nn.Module] = set()
    _run(model, example_inputs, model.modules(), lambda module, *_: found.add(module))
    return found


def rates_read(owner: nn.Module) -> frozenset[str]:
    """The names of the children whose p the code of a module reads, to drop something in a function call.

    >>> class Attention(nn.Module):
    ...     def forward(self, q, k, v):
    ...         return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p)
    >>> rates_read(Attention())
    frozenset({'attn_drop'})
    """
    return frozenset(re.findall(r"\bself\.(\w+)\.p\b", _code(cast(Any, type(owner)))))


@cache
def read_only(owner: type[nn.Module]) -> frozenset[str]:
    """The names of the children whose weights the code of a module reads and which it may never call.

    nn.MultiheadAttention reads ``self.out_proj.weight``, for one, and Swin transformers do the like. Some modules, such
    as BEiT in timm, read or call, depending on their options.

    >>> read_only(nn.MultiheadAttention)
    frozenset({'out_proj'})
    """
    if issubclass(owner, nn.Sequential) and owner.forward is nn.Sequential.forward:
        return frozenset()  # it calls them all
    text = _code(cast(Any, owner))
    read = re.findall(r"\bself\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|size|ndim))", text)
    handed_on = re.findall(r"\bF\.\w+\([^()]*?\bself\.(\w+)\.weight\b", text)
    return frozenset(read) - frozenset(re.findall(r"\bself\.(\w+)\(", text)) | frozenset(handed_on)


@cache
def _code(owner: type[nn.Module]) -> str:
    """The source of the methods of a module, without those that set weights."""
    return "\n".join(
        _source(function)
        for base in owner.__mro__
        if base is not nn.Module and issubclass(base, nn.Module)
        for name, function in vars(base).items()
        if inspect.isfunction(function) and not re.match("_*(init|reset|tie)", name)
    )


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except OSError:  # typed at a prompt, or generated
        return ""


def _run(model: nn.Module, example_inputs: Any, modules: Iterable[nn.Module], record: Callable[..., None]) -> None:
    """Run a model once, with ``record`` as a forward hook of the given modules."""
    handles = [module.register_forward_hook(record, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad(), modes_kept(model):
            model.eval()
            call(model, example_inputs)
    finally:
        for handle in handles:
            handle.remove()


class _Functions(TorchFunctionMode):
    """Hands the name of every function of torch that is called, its arguments and its result to ``record``."""

    def __init__(self, record: Callable[[str, Sequence[Any], Any], None]) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.record(name_of(func), args, result)
        return result


class _Run:
    """Records what modules and functions take and return in a run, and concludes where tensors have their features."""

    def __init__(self, seen: dict[nn.Module, Seen]) -> None:
        self.seen = seen
        self.kept: list[Tensor] = []  # so that no memory is reused for another tensor
        self.known: dict[Key, set[int]] = {}
        self.alike: dict[Key, set[Key]] = {}
        self.given: list[tuple[nn.Module, Tensor]] = []
        self.weights = Weights()

    def record(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note where a module has its features, or what a Dropout is given."""
        value = args[0] if args else next(iter(kwargs.values()), None)
        result = output[0] if isinstance(output, tuple) and output else output
        tensors = floating(value, result)
        dims = dims_of_module(module)
        if module in self.seen:
            self.given += [(module, tensors[0])] if tensors else []
        if dims is not None:
            for tensor in tensors:
                sequences = isinstance(module, nn.Dropout2d) and tensor.ndim == 3  # torch takes them for (N, C, L)
                self._know(tensor, 1 if sequences else dims)

    def record_function(self, name: str, args: Sequence[Any], output: Any) -> None:
        """Note where a function has its features, or that it keeps the axes of its arguments."""
        self.weights.record(name, args, output)
        spatial = _SPATIAL.match(name)
        if spatial or name in _LAST:
            for tensor in floating(*args[:1], output):
                self._know(tensor, int(spatial[1]) if spatial else 0)
        elif KEEPING.fullmatch(name) and isinstance(output, Tensor):
            for tensor in floating(*args):
                if tensor.ndim == output.ndim:
                    self._connect(tensor, output)

    def _know(self, tensor: Tensor, dims: int) -> None:
        self.kept.append(tensor)
        self.known.setdefault(key(tensor), set()).add(dims)

    def _connect(self, before: Tensor, after: Tensor) -> None:
        self.kept += [before, after]
        one, other = key(before), key(after)
        self.alike.setdefault(one, set()).add(other)
        self.alike.setdefault(other, set()).add(one)

    def conclude(self) -> dict[nn.Module, Seen]:
        for dropout, tensor in self.given:
            seen = self.seen[dropout]
            seen.calls += 1
            seen.shapes.add(tuple(tensor.shape))
            seen.attention |= tensor in self.weights or may_be_attention(tensor)
            seen.dims |= {0} if tensor.ndim <= 2 else self._dims(key(tensor))
        return self.seen

    def _dims(self, key: Key) -> set[int]:
        """The answers for a tensor, and for those that are connected with it by functions that keep their axes."""
        reached, todo = {key}, [key]
        while todo:
            new = self.alike.get(todo.pop(), set()) - reached
            reached |= new
            todo += new
        return {dims for one in reached for dims in self.known.get(one, ())}


def dims_between(owner: nn.Module, key: str) -> int | None:
    """How many axes follow the features at a step of a Sequential; None if its neighbours disagree or do not tell.

    It is None too for a child of another module, which may call its children in any order.

    >>> steps = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    >>> dims_between(steps, "2"), dims_between(nn.ModuleList(steps), "2")
    (0, None)
    """
    if not isinstance(owner, nn.Sequential) or type(owner).forward is not nn.Sequential.forward:
        return None
    steps, place = list(owner), list(owner._modules).index(key)
    around = []
    for others in (steps[place + 1 :], steps[:place][::-1]):
        neighbour = next((step for step in others if not _keeps_axes(step)), None)
        if isinstance(neighbour, nn.Flatten) and (neighbour.start_dim, neighbour.end_dim) == (1, -1):
            around.append(0 if neighbour in steps[:place] else None)
        else:
            around.append(None if neighbour is None else dims_of_module(neighbour))
    known = {dims for dims in around if dims is not None}
    return known.pop() if len(known) == 1 else None


def _keeps_axes(module: nn.Module) -> bool:
    """Whether the output of a module has the axes of its input, as for activations and noises."""
    activation = type(module).__module__ == "torch.nn.modules.activation"
    mixes = isinstance(module, nn.MultiheadAttention | nn.GLU | nn.Softmax | nn.Softmax2d | nn.LogSoftmax | nn.Softmin)
    return (activation and not mixes) or isinstance(module, nn.Identity) or is_noise(module)
