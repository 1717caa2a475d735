"""Errors for arguments that a layer does not take: they name that layer, and say what to do instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["NEVER_IN_PLACE", "ROTATION", "checked"]

Init = TypeVar("Init", bound=Callable[..., None])

NEVER_IN_PLACE = {
    "inplace": "leave out inplace, the second argument of torch.nn.Dropout: noise is never applied in place"
}
ROTATION = {
    **NEVER_IN_PLACE,
    "dim": "the features are on the last axis of RotationOut, and on axis 1 of RotationOut1d, 2d and 3d; for another "
    "axis use functional.rotation_out, or insert with dim",
}

# Strengths as they are given elsewhere, under names that no layer has.
_STRENGTHS = {
    "keep_prob": "p is the probability to drop: p = 1 − keep_prob",
    "drop_prob": "the strength is called p",
    "rate": "the strength is called p",
    "sigma": "for σ of the paper's tables write p=strength.convert(σ, 'gaussian_tan', 'dropout')",
}


def checked(instead: dict[str, str]) -> Callable[[Init], Init]:
    """A decorator for ``__init__`` that checks the arguments against its signature first.

    Python's own error names the class that defines the ``__init__``, not the one that inherits it. This one also lists
    the arguments that there are.

    Args:
        instead: arguments of torch's layer that this one lacks, and what to do instead of each.

    >>> class _Base:
    ...     @checked(NEVER_IN_PLACE)
    ...     def __init__(self, p: float = 0.5) -> None: ...
    >>> class Layer(_Base): ...
    >>> Layer(0.5, rate=0.2)
    Traceback (most recent call last):
    TypeError: Layer: got an unexpected keyword argument 'rate'; the strength is called p. It takes p
    """

    def decorate(init: Init) -> Init:
        signature = inspect.signature(init)

        @functools.wraps(init)
        def call(self: object, *args: Any, **kwargs: Any) -> None:
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                by_position = "positional" in str(error)  # torch's layer takes them by position too
                hints = [f"; {hint}" for name, hint in instead.items() if by_position or name in kwargs]
                taken = _taken(type(self))
                if "p" in taken:
                    hints += [f"; {hint}" for name, hint in _STRENGTHS.items() if name in kwargs]
                if not hints:
                    near = [close for name in kwargs for close in difflib.get_close_matches(name, taken, n=1)]
                    hints += [f"; did you mean {name!r}?" for name in near if name not in kwargs]
                text = f"{type(self).__name__}: {error}{''.join(hints)}"
                if "unexpected" in str(error):
                    text += f"{'' if text.endswith('?') else '.'} It takes {', '.join(taken)}"
                raise TypeError(text) from None
            init(self, *args, **kwargs)

        return cast(Init, call)

    return decorate


def _taken(kind: type) -> list[str]:
    """The names of the arguments that a class takes, those that it passes on to a base included."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        given = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names.update(dict.fromkeys(one.name for one in given if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)))
        if not any(one.kind is one.VAR_KEYWORD for one in given):
            break
    return list(names)
