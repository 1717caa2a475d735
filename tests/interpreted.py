"""Tests of kernels are on a GPU if there is one, else in Triton's interpreter; with neither, they are skipped.

Import this before kernels: whether they are interpreted is decided when they are defined.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.devices import GPU
from torch import Tensor

pytest.importorskip("triton")
if not GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 in the environment", allow_module_level=True)


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's interpreter as it would be with the numpy of today, and without work that is for nothing.

    Triton 3.6 replaces the functions of its language by interpreted ones at every launch, and again whenever a kernel
    calls a function: here once a test. And for every sum of integers it asks whether they overflow, which nobody is
    told unless its kernels are debugged: here it does not ask.
    """
    if GPU:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        """Triton 3.6 makes a loop bound an int in a way that numpy 2.4 no longer allows."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
    # Of a function it matters which modules it sees: a kernel the one, what it calls may see the other.
    patched = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    monkeypatch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
    yield
    patched.restore()


@pytest.fixture
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is full of NaN, so that an element left unwritten shows."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def filled(*args: Any, **kwargs: Any) -> Tensor:
            fresh = make(*args, **kwargs)
            fresh.detach().fill_(float("nan") if fresh.is_floating_point() else 99)
            return fresh

        return filled

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch, "empty_strided", poisoned(torch.empty_strided))
