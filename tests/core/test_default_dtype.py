"""Noise under `torch.set_default_dtype`, as models are built in half precision: no draw depends on it."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import rotationout as ro
from rotationout import functional as F

X = torch.randn(4, 16, 6, generator=torch.Generator().manual_seed(0))

CALLS: dict[str, Callable[[], Tensor]] = {
    **{law: lambda law=law: F.rotation_out(X, 0.3, draw=ro.Draw(law=law)) for law in ro.strength.LAWS},
    "odd": lambda: F.rotation_out(X[..., :5], 0.3),
    "structured": lambda: F.rotation_out(X, 0.3, dim=1, draw=ro.Draw(pairing="structured"), block_size=3, coverage=0.3),
    "masked": lambda: F.rotation_out(X, 0.3, center="batch", mask=X[..., 0] > 0),
    "layer": lambda: ro.RotationOut(0.3, preset="paper")(X),
    "gaussian": lambda: F.gaussian_dropout(X, 0.3, center="batch"),
    "uout": lambda: F.uout(X, 0.3),
    "centred dropout": lambda: F.centred_dropout(X, 0.3),
    "locked": lambda: F.locked_dropout(X, 0.3),
    "locked layer": lambda: ro.nn.LockedDropout(0.3)(X),
    "cutout": lambda: F.cutout(torch.ones(1, 1000, 2, dtype=torch.float32), 0.22),
    "shake-shake": lambda: F.shake_shake(X, 2 * X, 0.2),
}


@pytest.fixture(params=[torch.float16, torch.bfloat16, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CALLS)
def test_draws_do_not_depend_on_the_default_dtype(name: str, default: torch.dtype) -> None:
    torch.manual_seed(0)
    expected = CALLS[name]()
    torch.set_default_dtype(default)
    torch.manual_seed(0)
    torch.testing.assert_close(CALLS[name](), expected)
