"""Features in every layout and draws of every kind, for tests of the GPU kernels."""

from __future__ import annotations

import torch
from tests.devices import DEVICE
from torch import Tensor

from rotationout import pairing

PER = ("row", "example", "batch")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Shape, feature axis, memory format: odd and even D, every number of lanes, maps above and below the size
# that is turned pair by pair, rows, and axes in an order of their own.
LAYOUTS: dict[str, tuple[tuple[int, ...], int, str]] = {
    "maps of odd D": ((3, 5, 4, 7), 1, "contiguous"),
    "large maps": ((2, 16, 5, 40), 1, "contiguous"),
    "many small maps": ((19, 6, 4, 4), 1, "contiguous"),
    "channels last": ((3, 6, 4, 7), 1, "channels_last"),
    "rows": ((7, 24), 1, "contiguous"),
    "rows of odd D": ((6, 33), 1, "contiguous"),
    "tokens": ((3, 5, 48), 2, "contiguous"),
    "tokens with gaps": ((3, 4, 32), 2, "sliced"),
    "backwards": ((2, 3, 2, 16), 3, "reversed"),
    "features first": ((4, 3, 2), 0, "contiguous"),
    "maps of one position": ((3, 16, 1, 1), 1, "contiguous"),
    "one vector": ((12,), 0, "contiguous"),
}


def new_features(layout: str, dtype: torch.dtype) -> tuple[Tensor, int]:
    """In a layout of `LAYOUTS`, and which of their axes they are along."""
    shape, dim, memory = LAYOUTS[layout]
    if memory == "sliced":
        x = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    elif memory == "reversed":
        x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    elif memory == "channels_last":
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    else:
        x = torch.randn(shape)
    return x.to(DEVICE, dtype), dim


def new_draw(x: Tensor, dim: int, kind: str, pairing_per: str, angle_per: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """tan θ, index and seed for these features, shared as is said."""
    features = x.size(dim)
    leading = x.movedim(dim, -1).shape[:-1]

    def shared(per: str) -> tuple[int, ...]:
        return tuple(n if per == "row" or (per == "example" and i == 0) else 1 for i, n in enumerate(leading))

    tan = torch.randn(shared(angle_per), device=DEVICE)
    if kind == "table":
        return (
            tan,
            pairing.from_permutation(torch.rand(*shared(pairing_per), features, device=DEVICE).argsort(-1)),
            None,
        )
    k = torch.randint(pairing.count_structured(features), shared(pairing_per), device=DEVICE)
    return tan, k.to(pairing.index_dtype(features)), torch.randint(2**63 - 1, (), device=DEVICE)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within two roundings of the output, relative to its largest value."""
    assert actual.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6
    assert (actual.double() - expected.double()).abs().max() <= tolerance * expected.double().abs().max()
