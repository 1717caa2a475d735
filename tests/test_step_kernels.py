"""Kernels for LSTMs a frame at a time against plain torch: on a GPU if there is one, else in Triton's interpreter."""

from typing import Any

import pytest
import torch
from tests.devices import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # a fixture
from torch import Tensor

from rotationout.experiments.speech.step_kernels import Recurrence
from rotationout.experiments.speech.stepped import recur

pytestmark = MARKS


def states(run: Any, gates: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    """States, and the gradients of gates and weights."""
    gates, weight = (tensor.detach().clone().requires_grad_() for tensor in (gates, weight))
    h = run(gates, weight)
    h.backward(given)
    return h.detach(), gates.grad, weight.grad


@pytest.mark.parametrize(
    ("copies", "times", "rows", "hidden"),
    [(2, 5, 3, 64), (1, 3, 32, 128), (3, 1, 16, 64), (1, 2, 41, 64)],
    ids=["both directions", "whole tiles", "one frame", "more rows than a tile"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_do_what_torch_does(copies: int, times: int, rows: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gates = torch.randn(copies, times, rows, 4 * hidden, device=DEVICE).to(dtype)
    weight = (torch.randn(copies, 4 * hidden, hidden, device=DEVICE) / hidden**0.5).to(dtype)
    given = torch.randn(copies, times, rows, hidden, device=DEVICE).to(dtype)
    found = states(Recurrence.apply, gates, weight, given)
    # On the CPU and in fp64, so that it is plain torch that computes what is expected.
    expected = states(recur, gates.double().cpu(), weight.double().cpu(), given.double().cpu())
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        scale = theirs.abs().max().clamp(min=1)
        torch.testing.assert_close(mine.double().cpu() / scale, theirs / scale, **close)


def test_memory_may_lie_in_any_order() -> None:
    torch.manual_seed(0)
    gates = torch.randn(4, 2, 3, 256, device=DEVICE).transpose(0, 1)
    weight = torch.randn(2, 64, 256, device=DEVICE).transpose(1, 2) / 8
    given = torch.randn(2, 4, 64, 3, device=DEVICE).transpose(2, 3)
    found = states(Recurrence.apply, gates, weight, given)
    expected = states(recur, gates.cpu(), weight.cpu(), given.cpu())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)
