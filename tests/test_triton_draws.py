"""Draws by a GPU kernel, and their laws: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from tests.devices import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from torch import Tensor

from rotationout import pairing
from rotationout.kernels.triton import (
    sample,
)

pytestmark = MARKS


@pytest.mark.parametrize("features", [2, 3, 6, 33, 64])
def test_drawn_tables_are_pairings(features: int) -> None:
    torch.manual_seed(4)
    _, index, seed = sample((5, 3), (1,), features, 1.0, structured=False, device=DEVICE)
    assert seed is None
    assert index.dtype == pairing.index_dtype(features)
    partner, sign = pairing.partner_and_sign(index, None, features)
    assert torch.equal(partner.gather(-1, partner), torch.arange(features, device=DEVICE).expand_as(partner))
    assert torch.equal(sign.gather(-1, partner), -sign)
    assert ((sign == 0).sum(-1) == features % 2).all()


def test_every_signed_partner_is_equally_likely() -> None:
    torch.manual_seed(5)
    draws, features = 1500, 6
    _, index, _ = sample((draws,), (1,), features, 1.0, structured=False, device=DEVICE)
    counts = torch.stack([(index == code).sum(0) for code in range(-features, features + 1) if code]).cpu()
    possible = counts.flatten()[counts.flatten() > 0]
    assert possible.numel() == 2 * features * (features - 1)
    expected = draws / (2 * (features - 1))
    assert ((possible - expected) ** 2 / expected).sum() < 2 * features * (features - 1) + 60  # p < 1e-3


def test_structured_draws_are_uniform() -> None:
    torch.manual_seed(6)
    draws, features = 20_000, 33
    _, index, seed = sample((draws,), (1,), features, 1.0, structured=True, device=DEVICE)
    assert seed is not None
    counts = index.long().bincount(minlength=features)
    assert counts.numel() == features
    assert ((counts - draws / features) ** 2 / (draws / features)).sum() < 70  # 32 degrees of freedom, p < 1e-4


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize(("law", "scale", "lam"), [("gaussian_tan", 0.5, 0.25), ("uniform_tan", 0.6, 0.12)])
def test_angles_have_the_moments_of_their_law(law: str, scale: float, lam: float, one_sided: bool) -> None:
    torch.manual_seed(7)
    for given, features in ((scale, 4), (torch.tensor(scale, device=DEVICE), 5)):
        tan, _, _ = sample(
            (1,), (8_001,), features, given, structured=True, law=law, one_sided=one_sided, device=DEVICE
        )
        tan = tan / (5 / 4) ** 0.5 if features % 2 else tan
        assert tan.square().mean().item() == pytest.approx(lam, rel=0.08)
        if one_sided:
            assert (tan >= 0).all()
        else:
            assert abs(tan.mean().item()) < 5 * (lam / 8_001) ** 0.5


@pytest.mark.parametrize("law", ["uniform_angle", "gaussian_angle"])
def test_laws_of_the_angle_stay_inside_their_range(law: str) -> None:
    tan, _, _ = sample((1,), (2000,), 4, 0.5, structured=True, law=law, device=DEVICE)
    limit = 0.5 if law == "uniform_angle" else 5 * torch.pi / 12
    assert (tan.atan().abs() <= limit + 1e-6).all()
    assert abs(tan.mean().item()) < 0.1


def test_the_seed_decides_the_draw() -> None:
    def draw() -> list[Tensor]:
        generator = torch.Generator(DEVICE).manual_seed(8)
        tan, index, _ = sample((3,), (5,), 8, 1.0, structured=False, generator=generator, device=DEVICE)
        return [tan, index]

    assert all(torch.equal(a, b) for a, b in zip(draw(), draw(), strict=True))
