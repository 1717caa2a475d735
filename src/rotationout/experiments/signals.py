"""What to do on a signal, for the time of a context."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["handled"]


@contextmanager
def handled(handler: Callable[[int, Any], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handle these signals inside this context; not in another thread than the main one, where Python cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
