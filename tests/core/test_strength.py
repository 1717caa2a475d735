"""One scale of strength: conversions against the definitions and against the values checked for the paper."""

import math

import pytest
import torch

from rotationout import strength


@pytest.mark.parametrize("kind", strength.KINDS)
@pytest.mark.parametrize("lam", [0.0, 1e-8, 1 / 9, 0.25, 3 / 7, 1.0, 1.8])
def test_round_trip(kind: str, lam: float) -> None:
    assert strength.to_lam(kind, strength.from_lam(kind, lam)) == pytest.approx(lam, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("bound", [1e-5, 9.99e-4, 1.01e-3])
def test_a_small_uniform_angle_by_its_series(bound: float) -> None:
    """tan Θ / Θ − 1 = Θ²/3 + 2Θ⁴/15 + 17Θ⁶/315 + …; the difference itself loses digits as Θ falls."""
    expected = bound**2 / 3 + 2 * bound**4 / 15 + 17 * bound**6 / 315
    close = pytest.approx(expected, rel=1e-9 if bound > 1e-3 else 1e-11, abs=0)
    assert strength.to_lam("uniform_angle", bound) == close


@pytest.mark.parametrize(("lam", "degrees"), [(1 / 9, 31.1), (1 / 4, 43.5), (3 / 7, 52.8), (2 / 3, 60.3), (1.0, 66.8)])
def test_uniform_angle_of_the_table_in_the_paper(lam: float, degrees: float) -> None:
    assert math.degrees(strength.from_lam("uniform_angle", lam)) == pytest.approx(degrees, abs=0.05)


@pytest.mark.parametrize(("keep", "sigma"), [(0.9, 0.333), (0.8, 0.5), (0.7, 0.655), (0.6, 0.816)])
def test_sigma_of_table_1(keep: float, sigma: float) -> None:
    assert strength.convert(1 - keep, "dropout", "gaussian_tan") == pytest.approx(sigma, abs=6e-4)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 8.0])
def test_gaussian_angle_against_a_fine_sum(sigma: float) -> None:
    theta = torch.linspace(0, strength.ANGLE_LIMIT, 200_001, dtype=torch.float64)
    density = torch.exp(-0.5 * (theta / sigma) ** 2)
    expected = torch.trapezoid(density * theta.tan() ** 2, theta) / torch.trapezoid(density, theta)
    assert strength.to_lam("gaussian_angle", sigma) == pytest.approx(expected.item(), rel=1e-8)


def test_uout_is_its_variance() -> None:
    assert strength.to_lam("uout", 0.6) == pytest.approx(0.12)


@pytest.mark.parametrize("bound", [math.pi / 2, 1.6, 3.0])
def test_infinite_variance_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match=rf"infinite for θ uniform on ±{bound:.6g}: .*less than π/2 = 1\.5708"):
        strength.to_lam("uniform_angle", bound)


def test_a_strength_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'gaussian_angle'.*reaches λ = 1\.851 \(p = 0\.6493\).*asked for λ = 9"):
        strength.convert(0.9, "dropout", "gaussian_angle")


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan, math.inf])
def test_rates_out_of_range(p: float) -> None:
    with pytest.raises(ValueError, match=r"p is a drop probability and must be in \[0, 1\)"):
        strength.check_rate(p)


@pytest.mark.parametrize("p", ["0.5", None, True, [0.5], 0.5j])
def test_rates_that_are_no_number(p: object) -> None:
    with pytest.raises(TypeError, match="p must be a number"):
        strength.check_rate(p)


def test_a_tensor_is_no_rate() -> None:
    with pytest.raises(TypeError, match=r"tensor\.item\(\)"):
        strength.check_rate(torch.tensor(0.5))


def test_an_array_is_no_rate() -> None:
    np = pytest.importorskip("numpy")
    assert strength.check_rate(np.float32(0.5)) == 0.5
    for values in ([0.5], [0.5, 0.2]):
        with pytest.raises(TypeError, match=r"p must be a number, got ndarray .*ndarray\.item\(\)"):
            strength.check_rate(np.array(values))


@pytest.mark.parametrize("lam", [-1.0, math.inf, math.nan])
def test_bad_lam(lam: float) -> None:
    with pytest.raises(ValueError, match=f"lam must be finite and not negative, got {lam!r}"):
        strength.from_lam("dropout", lam)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_bad_parameter(value: float) -> None:
    with pytest.raises(ValueError, match=f"'gaussian' must be finite and not negative, got {value!r}"):
        strength.to_lam("gaussian", value)


def test_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="got 'gauss'; did you mean 'gaussian'"):
        strength.to_lam("gauss", 0.1)
    with pytest.raises(ValueError, match="did you mean 'uniform_angle'"):
        strength.to_lam("uniform_angel", 0.1)
    with pytest.raises(ValueError, match="got 'uni'; did you mean 'uniform_tan'"):
        strength.to_lam("uni", 0.1)
    with pytest.raises(ValueError, match=r"'gaussian_angle', got ''$"):
        strength.to_lam("", 0.1)


def test_what_cannot_be_represented_is_refused() -> None:
    for kind in ("dropout", "uniform_angle"):
        with pytest.raises(ValueError, match=f"1e\\+300 is too large: no parameter of '{kind}'"):
            strength.from_lam(kind, 1e300)
    with pytest.raises(ValueError, match=r"'gaussian' is too large: λ would be infinite at 1e\+200"):
        strength.to_lam("gaussian", 1e200)
