"""BatchNorm of small batches in theory: identities, quadrature against sampling, and the paper's numbers.

A sampled value must lie within 4.9 standard errors: a false alarm with probability 1e-6 over seeds, and none for the
fixed one.
"""

import math
from dataclasses import replace

import pytest
import torch

from rotationout.analysis import batchnorm as theory
from rotationout.analysis.batchnorm import DISTRIBUTIONS, Distribution, Estimate
from rotationout.analysis.distributions import as_distribution
from rotationout.nn.norm import PolyBatchNorm2d, expectation

Z_LIMIT = 4.9
GRID = torch.linspace(-4, 4, 9, dtype=torch.float64)
each_size = pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16, 33])
each_distribution = pytest.mark.parametrize("name", list(DISTRIBUTIONS))


def sampled(name: str) -> Distribution:
    """The distribution as one that must be sampled, the Gaussian too."""
    return replace(DISTRIBUTIONS[name], gaussian=False)


def assert_agree(estimate: Estimate, expected: torch.Tensor) -> None:
    z = (estimate.value - expected) / estimate.error
    assert z.abs().max() < Z_LIMIT


@each_size
@each_distribution
def test_leave_one_out_identity(name: str, size: int) -> None:
    batch = DISTRIBUTIONS[name].sample((50, size))
    others = batch[:, 1:]
    ours = theory.leave_one_out(batch[:, 0], others.mean(1), others.var(1, correction=0), size)
    torch.testing.assert_close(ours, theory.f_train(batch)[:, 0])


@each_size
@each_distribution
def test_variance_of_the_output_is_one(name: str, size: int) -> None:
    """Lemma 1 of appendix B, and more: it is one in every batch."""
    out = theory.f_train(DISTRIBUTIONS[name].sample((50, size)))
    torch.testing.assert_close(out.mean(1), torch.zeros(50, dtype=torch.float64))
    torch.testing.assert_close(out.var(1, correction=0), torch.ones(50, dtype=torch.float64))


def test_f_train_is_batchnorm() -> None:
    x = torch.randn(8, 5, dtype=torch.float64)
    expected = torch.nn.functional.batch_norm(x, None, None, training=True, eps=1e-14)
    torch.testing.assert_close(theory.f_train(x.T).T, expected)


@pytest.mark.parametrize("size", [2, 2.5, 3, 8, 32, 1e3, 1e6])
def test_total_variance_splits_into_noise_and_signal(size: float) -> None:
    """E[f_Var] + Var[f_Expect] = 1, from two integrals that have nothing in common but the data."""
    node, weight = expectation.gauss_legendre()
    x = 20 * node - 10
    density = 20 * weight * torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    expect, var = expectation.gaussian_moments(x, size)
    noise = (density * var).sum()
    total = noise + (density * expect**2).sum()
    assert total.item() == pytest.approx(1, abs=1e-10 if size == int(size) else 1e-6)
    torch.testing.assert_close(theory.equivalent_drop_rate(size).value, noise)


@each_distribution
def test_total_variance_splits_for_every_distribution(name: str) -> None:
    law, size = sampled(name), 8
    x = law.sample((100,))
    expect, var = theory.moments(x, size, law, samples=10_000)
    parts = var.value + expect.value**2 - expect.error**2  # E[f²|x]; the square of an estimate is biased by its error
    assert abs(parts.mean().item() - 1) < Z_LIMIT * parts.std().item() / math.sqrt(x.numel())
    rate = theory.equivalent_drop_rate(size, law, samples=60_000)
    joint = math.hypot(rate.error.item(), var.value.std().item() / math.sqrt(x.numel()))
    assert abs(rate.value.item() - var.value.mean().item()) < Z_LIMIT * joint


@pytest.mark.parametrize("size", [2, 3, 4, 8, 20])
def test_quadrature_agrees_with_sampling(size: int) -> None:
    expect, var = theory.moments(GRID, size, sampled("gaussian"), samples=60_000)
    exact = theory.moments(GRID, size)
    assert torch.equal(exact.expect.error, torch.zeros_like(GRID))
    assert_agree(expect, exact.expect.value)
    if size > 2:  # of two values each is 1 or −1
        assert_agree(var, exact.var.value)
    rate = theory.equivalent_drop_rate(size, sampled("gaussian"), samples=60_000)
    assert_agree(rate, theory.equivalent_drop_rate(size).value)


def test_standard_errors_are_those_of_repetitions() -> None:
    """The spread of 100 estimates has a relative error of 1 / √200, and heavier tails than a Gaussian's."""
    x = torch.tensor([0.0, 2.0, 4.0])
    runs = [theory.moments(x, 5, sampled("gaussian"), samples=400) for _ in range(100)]
    for part in (0, 1):
        values, errors = (torch.stack([run[part][i] for run in runs]) for i in (0, 1))
        assert (values.std(0) / errors.mean(0) - 1).abs().max() < Z_LIMIT / math.sqrt(200)
    rates = [theory.equivalent_drop_rate(5, "laplace", samples=400) for _ in range(100)]
    spread, error = torch.stack([r.value for r in rates]).std(), torch.stack([r.error for r in rates]).mean()
    assert abs(spread / error - 1) < Z_LIMIT / math.sqrt(200)


def test_two_samples_are_equally_far_from_their_mean() -> None:
    """So their squared deviations do not vary, and rounding must not make that variance negative."""
    error = theory.f_var(torch.linspace(0, 1, 21), 3, "uniform", samples=2).error
    torch.testing.assert_close(error, torch.zeros(21, dtype=torch.float64), rtol=0, atol=1e-6)


def test_two_values_in_closed_form() -> None:
    expect, var = theory.moments(GRID, 2)
    signs = torch.erf(GRID / math.sqrt(2))
    torch.testing.assert_close(expect.value, signs)
    torch.testing.assert_close(var.value, 1 - signs**2)
    assert theory.equivalent_drop_rate(2).value.item() == pytest.approx(2 / 3)


def test_large_batches_are_linear_and_silent() -> None:
    expect, var = theory.moments(GRID, 1e7)
    torch.testing.assert_close(expect.value, GRID, rtol=0, atol=1e-5)
    assert var.value.abs().max() < 1e-5


def test_location_and_scale_do_not_matter() -> None:
    normal = torch.distributions.Normal(3.0, 2.0)
    torch.testing.assert_close(theory.f_expect(3 + 2 * GRID, 8, normal), theory.f_expect(GRID, 8))


def test_two_samples_by_hand() -> None:
    """Batches of 0 and of these: the variance has n − 1 in its denominator, the mean an error of √(variance / n)."""
    others = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    law = Distribution(0.0, 1.0, lambda shape: others)
    expect, var = theory.moments(torch.zeros(1), 3, law, samples=2)
    one, two = (-1 / math.sqrt(2 / 3), -(8 / 3) / math.sqrt((0 + 9 + 25) / 3 - (8 / 3) ** 2))
    assert expect.value.item() == pytest.approx((one + two) / 2)
    assert var.value.item() == pytest.approx((one - two) ** 2 / 2)
    assert expect.error.item() == pytest.approx(abs(one - two) / 2)


def test_as_many_batches_are_drawn_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of limited size."""
    drawn: list[tuple[int, ...]] = []

    def sample(shape: tuple[int, ...]) -> torch.Tensor:
        drawn.append(shape)
        return torch.randn(shape, dtype=torch.float64)

    monkeypatch.setattr(theory, "CHUNK", 10)
    theory.moments(torch.zeros(1), 3, Distribution(0.0, 1.0, sample), samples=12)
    assert drawn == [(5, 2), (5, 2), (2, 2)]


def test_integers_are_data_too() -> None:
    law = as_distribution(torch.tensor([1, 3]))
    assert (law.mean, law.std) == (2.0, 1.0)
    assert law.sample((4,)).dtype == torch.float64


def test_data_stand_for_their_distribution() -> None:
    data = torch.rand(200_000, dtype=torch.float64)
    x = torch.tensor([[0.1, 0.5], [0.7, 1.0]])
    ours = theory.f_expect(x, 8, data, samples=50_000)
    expected = theory.f_expect(x, 8, torch.distributions.Uniform(0.0, 1.0), samples=50_000)
    assert ours.value.shape == x.shape
    joint = torch.hypot(ours.error, expected.error) + 1e-3  # the data are a sample themselves
    assert ((ours.value - expected.value) / joint).abs().max() < Z_LIMIT


@each_distribution
def test_test_mode_divides_by_the_root_of_the_mean_variance(name: str) -> None:
    """f_Test = √((B − 1)/B)·(x − E[μ]) / √E[σ²], which depends on B in no way."""
    law, size = DISTRIBUTIONS[name], 6
    batch = law.sample((100_000, size))
    variance = batch.var(1, correction=0)
    printed = math.sqrt((size - 1) / size) * (2 - law.mean) / variance.mean().sqrt()
    relative = variance.std() / variance.mean() / 2 / math.sqrt(len(batch))
    assert abs(theory.f_test(torch.tensor(2.0), name) / printed - 1) < Z_LIMIT * relative


@pytest.mark.parametrize(("size", "rate", "bound"), [(4, 0.338, 0.5), (8, 0.173, 0.2), (16, 0.089, 0.1)])
def test_noise_is_that_of_dropout_at_the_rates_of_the_paper(size: int, rate: float, bound: float) -> None:
    ours = theory.equivalent_drop_rate(size).value.item()
    assert ours == pytest.approx(rate, abs=5e-4)
    assert ours < bound


def test_paper_s_polynomial_is_reproduced() -> None:
    printed = (1.0919, -8.8903e-2, 6.5157e-3, -1.9404e-4)
    errors = (0.0020, 0.24595e-2, 0.61768e-3, 0.38001e-4)
    for ours, theirs, error in zip(theory.poly_coefficients(8), printed, errors, strict=True):
        assert abs(ours - theirs) < 0.25 * error
    assert theory.turning_point(printed) == pytest.approx(3.76, abs=5e-3)


@pytest.mark.parametrize(("size", "bound"), [(2, 0.015), (4, 0.031), (8, 0.012), (16, 2e-3), (64, 1e-4), (1e5, 1e-9)])
def test_polynomial_fits_within_three_deviations(size: float, bound: float) -> None:
    x = torch.linspace(-3, 3, 121, dtype=torch.float64)
    assert (theory.f_poly(x, size) - theory.f_expect(x, size).value).abs().max() < bound


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 100])
def test_polynomial_grows_to_its_limit_and_stays_there(size: int) -> None:
    coefficients = theory.poly_coefficients(size)
    limit = theory.turning_point(coefficients)
    inside = theory.f_poly(torch.linspace(0, limit, 1000, dtype=torch.float64), size)
    assert (inside.diff() > 0).all()
    beyond = theory.f_poly(torch.tensor([-1e6, limit, 2 * limit, math.inf], dtype=torch.float64), size)
    torch.testing.assert_close(beyond, inside[-1] * torch.tensor([-1.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    a1, a3, a5, a7 = coefficients
    slope = a1 + 3 * a3 * limit**2 + 5 * a5 * limit**4 + 7 * a7 * limit**6
    assert abs(slope) < 1e-10, "it is a turning point"
    assert beyond[1] < 1.08 * math.sqrt(size - 1), "no output of BatchNorm is larger than √(B − 1)"


def test_a_polynomial_that_does_not_turn() -> None:
    assert theory.turning_point((1.0, 0.1, 0.0, 0.0)) == math.inf
    assert torch.equal(expectation.evaluate(torch.tensor([2.0]), (1.0, 1.0, 0.0, 0.0), math.inf), torch.tensor([10.0]))


def test_slopes_of_cross_normalization() -> None:
    """With σ² over B − 1: 1.243 where the paper's equality says 1.080."""
    assert theory.cross_norm_factor(8) * math.sqrt(7 / 6) == pytest.approx(1.2435, abs=1e-4)
    assert math.sqrt(7 / 6) == pytest.approx(1.080, abs=5e-4)
    assert theory.cross_norm_factor(1e6) == pytest.approx(1, abs=1e-6)


def test_effective_batch_size_counts_independent_values() -> None:
    alike = torch.randn(500, 3, 1, 1).expand(-1, -1, 2, 3)
    torch.testing.assert_close(theory.effective_batch_size(alike, 8), torch.full((3,), 8.0, dtype=torch.float64))
    vectors = torch.randn(500, 3)
    torch.testing.assert_close(theory.effective_batch_size(vectors, 8), torch.full((3,), 8.0, dtype=torch.float64))
    apart = theory.effective_batch_size(torch.randn(20_000, 3, 2, 3), 8)
    assert ((apart / 48 - 1).abs() < Z_LIMIT * math.sqrt(2 / 20_000)).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: theory.f_expect(GRID, 1), ValueError, "batch_size must be finite and at least 2"),
        (lambda: theory.f_expect(GRID, "8"), TypeError, "batch_size must be a number"),
        (lambda: theory.f_expect(GRID, 4.5, "uniform"), ValueError, "must be a whole number where batches are drawn"),
        (lambda: theory.f_expect(GRID, 4, "unifrom"), ValueError, "did you mean 'uniform'"),
        (lambda: theory.f_expect(GRID, 4, 7), TypeError, "distribution must be one of gaussian"),
        (lambda: theory.f_expect(GRID, 4, torch.distributions.Cauchy(0.0, 1.0)), ValueError, "a finite mean"),
        (
            lambda: theory.f_expect(GRID, 4, torch.distributions.Normal(torch.zeros(2), torch.ones(2))),
            TypeError,
            r"one of torch\.distributions for a single number",
        ),
        (
            lambda: theory.f_expect(
                GRID, 4, torch.distributions.RelaxedBernoulli(torch.tensor(1.0), probs=torch.tensor(0.5))
            ),
            TypeError,
            "torch does not know the mean and the deviation of RelaxedBernoulli",
        ),
        (lambda: theory.f_expect(GRID, 4, torch.ones(5)), ValueError, "mean = 1.0 and std = 0.0"),
        (lambda: theory.f_expect(GRID, 4, torch.ones(1)), ValueError, "needs at least 2 values, got 1"),
        (lambda: theory.f_expect(GRID, 4, "uniform", samples=1), ValueError, "samples must be an integer, at least 2"),
        (lambda: theory.cross_norm_factor(3), ValueError, "more than 3"),
        (lambda: theory.effective_batch_size(torch.ones(3), 8), ValueError, "at least 2 examples"),
        (lambda: theory.f_poly(GRID, math.inf), ValueError, "must be finite"),
    ],
)
def test_bad_input_says_what_would_be_right(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_coefficients_are_numbers_also_among_tensors_without_values() -> None:
    """They are kept for later, and so are the nodes of the integration."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    expectation.gauss_legendre.cache_clear()
    with FakeTensorMode():
        layer = PolyBatchNorm2d(3, batch_size=9.5)
    assert type(expectation.gauss_legendre()[0]) is torch.Tensor
    assert layer.coefficients == PolyBatchNorm2d(3, batch_size=9.5).coefficients
    assert layer.coefficients[0] == pytest.approx(1.0, abs=0.2)
