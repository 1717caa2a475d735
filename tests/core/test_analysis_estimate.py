"""The accumulator against two-pass computations, the estimator on modules with state."""

import math

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.analysis import MomentAccumulator, Moments, conditional_moments, estimate_moments


def errors_by_two_passes(rows: Tensor) -> Tensor:
    off = rows.double() - rows.double().mean(0)
    products = off[:, :, None] * off[:, None, :]
    return products.std(0, correction=0) / math.sqrt(len(rows))


@pytest.mark.parametrize("sizes", [[1000], [1, 999], [300, 0, 700], [1] * 50 + [950]])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_batches_give_what_all_rows_give(sizes: list[int], offset: float) -> None:
    rows = torch.randn(1000, 5, dtype=torch.float64) ** 3 + offset + torch.arange(5.0)
    seen, plain, scalar = MomentAccumulator(), MomentAccumulator(errors=False), MomentAccumulator(covariance=False)
    for accumulator in (seen, plain, scalar):
        for part in rows.split(sizes):
            accumulator.update(part)
        assert accumulator.count == 1000
        torch.testing.assert_close(accumulator.mean, rows.mean(0))
        torch.testing.assert_close(accumulator.variance, rows.var(0), rtol=1e-8, atol=0)
    torch.testing.assert_close(seen.covariance, torch.cov(rows.T), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(plain.covariance, seen.covariance)
    expected = errors_by_two_passes(rows)
    torch.testing.assert_close(seen.covariance_error, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(seen.variance_error, expected.diagonal(), rtol=1e-6, atol=0)
    torch.testing.assert_close(scalar.variance_error, expected.diagonal(), rtol=1e-6, atol=0)
    torch.testing.assert_close(seen.mean_error, rows.std(0) / math.sqrt(1000), rtol=1e-8, atol=0)


def test_merging_does_not_depend_on_the_order() -> None:
    parts = torch.randn(4, 50, 3).unbind()
    parts = [part * (k + 1) + k for k, part in enumerate(parts)]
    results = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        pieces = []
        for k in order:
            pieces.append(MomentAccumulator())
            pieces[-1].update(parts[k])
        pieces[0].merge(pieces[1])
        pieces[2].merge(pieces[3])
        pieces[0].merge(pieces[2])
        pieces[0].merge(MomentAccumulator())
        results.append(pieces[0])
    torch.testing.assert_close(results[0].covariance, results[1].covariance)
    torch.testing.assert_close(results[0].covariance_error, results[1].covariance_error)
    torch.testing.assert_close(results[0].covariance, torch.cov(torch.cat(parts).double().T))


def test_merging_leaves_the_other_as_it_was() -> None:
    ours, theirs = MomentAccumulator(), MomentAccumulator()
    theirs.update(torch.randn(10, 3))
    before = theirs.covariance.clone()
    ours.merge(theirs)
    ours.update(torch.randn(10, 3))
    assert theirs.count == 10
    assert torch.equal(theirs.covariance, before)


def test_standard_errors_are_those_of_repetitions() -> None:
    """300 estimates from 500 samples each: their spread is the mean standard error within 5 of its own errors."""
    layer, x = ro.RotationOut(0.3), torch.tensor([1.0, -2.0, 0.5, 3.0])
    truth = conditional_moments(layer, x)
    found = [estimate_moments(layer, x, 500, vectorized=500) for _ in range(300)]
    for values, errors, expected in (
        (torch.stack([f.mean for f in found]), torch.stack([f.mean_error for f in found]), truth.mean),
        (torch.stack([f.variance for f in found]), torch.stack([f.variance_error for f in found]), truth.variance),
    ):
        spread = (values - expected).square().mean(0).sqrt()
        assert ((spread / errors.mean(0) - 1).abs() < 5 / math.sqrt(2 * 300)).all()


class Normed(nn.Module):
    """A network with state: BatchNorm's and a noise's running means."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.noise = ro.RotationOut(0.4, center="running", num_features=4, momentum=0.5)
        self.fails_after = -1

    def forward(self, x: Tensor) -> Tensor:
        if self.fails_after == 0:
            raise RuntimeError("on purpose")
        self.fails_after -= 1
        return self.noise(self.norm(x) + 3)


def test_a_model_is_as_it_was_and_every_call_sees_it_so() -> None:
    model = Normed().eval()
    model.norm.train()
    model.noise.running_mean.fill_(1.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x = torch.randn(6, 4)
    measured = estimate_moments(model, x, 800)
    assert [m.training for m in (model, model.norm, model.noise)] == [False, True, False]
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    # About a running mean of 1 in every call; had it moved towards 3, the noise would be far weaker.
    normed = nn.functional.batch_norm(x, None, None, training=True) + 3
    for off in measured.deviations(conditional_moments(model.noise, normed, joint=True)):
        assert off.abs().max() < 6.5


def test_a_model_is_as_it_was_after_an_error() -> None:
    model = Normed().eval()
    model.fails_after = 3
    with pytest.raises(RuntimeError, match="on purpose"):
        estimate_moments(model, torch.randn(6, 4), 10)
    assert not model.norm.training
    assert torch.equal(model.norm.running_mean, torch.zeros(4))
    assert torch.is_grad_enabled()


def test_modes_and_outputs() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    x = torch.randn(3, 4)
    with ro.sampling(model):
        kept = estimate_moments(model, x, 500, train=None)
    torch.testing.assert_close(kept.mean / x.double(), torch.ones(3, 4).double(), rtol=0, atol=0.25)
    still = estimate_moments(model, x, 5, train=False)
    assert still.variance.max() == 0
    total = estimate_moments(nn.Dropout(0.5), x, 500, output=lambda y: y.sum(), covariance=False)
    assert total.mean.shape == ()
    assert estimate_moments(nn.Dropout(0.5), x, 50, vectorized=20, output=lambda y: y.sum()).covariance.shape == (1, 1)
    assert total.covariance is None
    assert abs((total.variance - x.double().square().sum()) / total.variance_error) < 5


def test_inputs_other_than_tensors() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    layer = ro.nn.RotationOutSequence(0.2)
    found = estimate_moments(layer, packed, 500, output=lambda out: out.data)
    expected = estimate_moments(ro.RotationOut(0.2), packed.data, 500, vectorized=500)
    assert found.mean.shape == (5, 4)
    assert ((found.mean - 1).abs() < 5 * found.mean_error).all()
    error = (found.variance_error.square() + expected.variance_error.square()).sqrt()
    assert ((found.variance - expected.variance).abs() < 5 * error).all()
    by_name = estimate_moments(nn.Bilinear(2, 2, 2), {"input1": torch.ones(3, 2), "input2": torch.ones(3, 2)}, 2)
    assert by_name.mean.shape == (3, 2)


def test_samples_are_repeatable_and_counted() -> None:
    x = torch.randn(4)
    found = []
    for vectorized in (1, 1, 7):
        torch.manual_seed(3)
        found.append(estimate_moments(nn.Dropout(0.5), x, 150, vectorized=vectorized))
    assert torch.equal(found[0].mean, found[1].mean)
    assert all(f.samples == 150 for f in found)


def test_two_rows_are_equally_far_from_their_mean() -> None:
    """So their products do not vary, and rounding must not make that variance negative."""
    seen, rows = MomentAccumulator(), torch.rand(2, 30, dtype=torch.float64)
    seen.update(rows)
    torch.testing.assert_close(seen.variance, (rows[0] - rows[1]) ** 2 / 2)
    torch.testing.assert_close(seen.covariance_error, torch.zeros(30, 30, dtype=torch.float64), rtol=0, atol=1e-6)


def test_what_does_not_vary_is_as_predicted_or_infinitely_off() -> None:
    found = estimate_moments(nn.Identity(), torch.full((2,), -3.0), 5)
    still = torch.zeros(2, 2)
    assert found.deviations(Moments(torch.full((2,), -3.0), still))[0].tolist() == [0.0, 0.0]
    assert found.deviations(Moments(torch.tensor([-3.0, -3.1]), still))[0].tolist() == [0.0, math.inf]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: estimate_moments(nn.Dropout(), torch.ones(2), 1), ValueError, "samples must be .* at least 2, got 1"),
        (lambda: estimate_moments(nn.Dropout(), torch.ones(2), vectorized=0), ValueError, "vectorized must be"),
        (lambda: estimate_moments(nn.LSTM(2, 2), torch.ones(3, 2)), TypeError, "must return a tensor, got tuple"),
        (lambda: estimate_moments(torch.relu, torch.ones(3, 2)), TypeError, "model must be a torch.nn.Module"),
        (
            lambda: estimate_moments(nn.Identity(), torch.ones(2, dtype=torch.complex64)),
            TypeError,
            "must return real numbers, got complex ones",
        ),
        (
            lambda: MomentAccumulator().update(torch.ones(3)),
            TypeError,
            r"rows must be a real tensor \(n, D\), got torch.float32 of shape \(3,\)",
        ),
        (lambda: MomentAccumulator().update([[1.0]]), TypeError, r"rows must be a real tensor \(n, D\), got list"),
        (lambda: MomentAccumulator().mean, ValueError, "needs at least 1 rows, got 0"),
        (lambda: MomentAccumulator(covariance=False).covariance, ValueError, "build it with covariance=True"),
        (lambda: MomentAccumulator().merge(MomentAccumulator(errors=False)), ValueError, "same covariance and errors"),
    ],
)
def test_bad_input_says_what_would_be_right(call: object, error: type[Exception], message: str) -> None:
    assert callable(call)
    with pytest.raises(error, match=message):
        call()


def test_errors_of_what_was_not_kept() -> None:
    seen = MomentAccumulator(errors=False)
    seen.update(torch.randn(4, 2))
    with pytest.raises(ValueError, match="build it with errors=True"):
        _ = seen.covariance_error
    with pytest.raises(ValueError, match="have 3 features, but there were 2"):
        seen.update(torch.randn(4, 3))
