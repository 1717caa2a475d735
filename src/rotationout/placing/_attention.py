"""Which tensors of a run are attention weights, or other results of a softmax: no noise for features fits them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["KEEPING", "Key", "Weights", "floating", "key", "may_be_attention", "name_of"]

Key = tuple[int, tuple[int, ...], tuple[int, ...]]

KEEPING = re.compile(
    "add|sub|mul|div|pow|neg|abs|square|sqrt|exp|clamp|relu6?|leaky_relu|prelu|rrelu|elu|selu|celu|gelu|silu|mish|tanh|"
    "sigmoid|hardtanh|hardswish|hardsigmoid|hardshrink|softshrink|tanhshrink|softplus|softsign|logsigmoid|threshold|"
    "(batch|group|instance)_norm|cat|pad|interpolate|dropout([123]d)?|contiguous|clone|to|type|type_as|float|half|"
    "bfloat16|double"
)
"""Functions, also as methods and operators, whose result has the axes of the tensors that they take."""
_WEIGHING = re.compile("((special|gumbel)_)?softmax|softmin")
"""Functions whose result sums to one."""
_MOVING = re.compile(
    "__get(item)?|view|reshape|(un)?flatten|(un)?squeeze|transpose|permute|movedim|expand|detach|masked_fill|where"
)
"""Functions and attributes that move values or leave some of them out."""


class Weights:
    """The results of a softmax, and what functions make of them alone.

    With other tensors, as in a gate, they make features.

    >>> weights, x = Weights(), torch.randn(2, 3)
    >>> for name, given, output in [("softmax", x, x.softmax(-1)), ("mul", x, 2 * x)]:
    ...     weights.record(name, [given], output)
    ...     print(output in weights)
    True
    False
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []  # so that no memory is reused for another tensor
        self.keys: set[Key] = set()

    def __contains__(self, tensor: object) -> bool:
        return any(key(one) in self.keys for one in floating(tensor))

    def record(self, name: str, args: Sequence[Any], output: Any) -> None:
        """Note what a function, by its `name_of`, has made of its arguments."""
        if not _WEIGHING.fullmatch(name):
            given = floating(*args) if KEEPING.fullmatch(name) or _MOVING.fullmatch(name) else []
            if not given or not all(tensor in self for tensor in given):
                return
        self.kept += floating(output)
        self.keys |= set(map(key, floating(output)))


def name_of(function: Any) -> str:
    """The name of a function; that of an operator or a function that changes its input is that of the plain one.

    >>> name_of(Tensor.__rsub__), name_of(Tensor.relu_)
    ('sub', 'relu')
    """
    return str(getattr(function, "__name__", "")).removeprefix("__r").rstrip("_")


def floating(*values: Any) -> list[Tensor]:
    """The dense floating-point tensors among values, and in lists among them, such as the argument of torch.cat."""
    flat = [one for value in values for one in (value if isinstance(value, tuple | list) else [value])]
    return [
        value
        for value in flat
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
        and not value.is_nested
    ]


def key(tensor: Tensor) -> Key:
    """The address, shape and strides of a tensor: a transposed view counts as another tensor."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())


def may_be_attention(tensor: Tensor) -> bool:
    """Whether a tensor may be weights that sum to one over its last axis, if no softmax was seen; not finite, it may.

    Sums may be off by what rounding explains. More would take features after a ReLU for weights, if few rows are seen.

    >>> weights = torch.randn(4, 1000).softmax(-1)
    >>> may_be_attention(weights), may_be_attention(weights.bfloat16()), may_be_attention(1.001 * weights)
    (True, True, False)
    """
    if tensor.numel() == 0:
        return False
    total = tensor.double().sum(-1)
    if not bool(total.isfinite().all()):
        return True
    most = 1e-4 if torch.finfo(tensor.dtype).eps < 1e-6 else 1e-2
    return bool((tensor >= 0).all()) and bool(((total - 1).abs() < most).all())
