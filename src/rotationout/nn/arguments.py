"""Errors for arguments that a layer does not take: they name that layer, and say what to do instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["NEVER_IN_PLACE", "checked"]

Init = TypeVar("Init", bound=Callable[..., None])

NEVER_IN_PLACE = {
    "inplace": "leave out inplace, the second argument of torch.nn.Dropout: noise is never applied in place"
}


def checked(instead: dict[str, str]) -> Callable[[Init], Init]:
    """A decorator for ``__init__`` that checks the arguments against its signature first.

    Python's own error names the class that defines the ``__init__``, not the one that inherits it.

    Args:
        instead: arguments of torch's layer that this one lacks, and what to do instead of each.

    >>> class _Base:
    ...     @checked(NEVER_IN_PLACE)
    ...     def __init__(self, p: float = 0.5) -> None: ...
    >>> class Layer(_Base): ...
    >>> Layer(0.5, rate=0.2)
    Traceback (most recent call last):
    TypeError: Layer: got an unexpected keyword argument 'rate'
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
                raise TypeError(f"{type(self).__name__}: {error}{''.join(hints)}") from None
            init(self, *args, **kwargs)

        return cast(Init, call)

    return decorate
