"""RotationOutSequence and LockedDropout: what is held over time, packed against padded, padding, bad input."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.test_statistics import Z_LIMIT, assert_lemma_1, chi2_limit, chi2_of_mean
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from rotationout.functional import locked_dropout
from rotationout.nn import LockedDropout, RotationOutSequence

LENGTHS = [3, 5, 1, 4]
NOISES: dict[str, Callable[..., nn.Module]] = {"rotation": RotationOutSequence, "locked": LockedDropout}
each_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
each_layout = pytest.mark.parametrize("batch_first", [False, True], ids=["steps first", "batch first"])


def features(batch_first: bool = False, steps: int = 5, size: int = 6, **options: Any) -> Tensor:
    x = torch.randn(steps, len(LENGTHS), size, **options)
    return x.transpose(0, 1).contiguous() if batch_first else x


def pack(x: Tensor, batch_first: bool = False, lengths: list[int] = LENGTHS) -> PackedSequence:
    return pack_padded_sequence(x, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=False)


def real(batch_first: bool = False) -> Tensor:
    """True where there is no padding."""
    mask = torch.arange(5).unsqueeze(1) < torch.tensor(LENGTHS)
    return mask.T if batch_first else mask


def seeded(noise: Callable[..., Any], *args: Any, **options: Any) -> Any:
    torch.manual_seed(7)
    return noise(*args, **options)


@each_noise
@each_layout
def test_shapes_in_and_out(noise: Callable[..., nn.Module], batch_first: bool) -> None:
    layer, x = noise(0.5, batch_first=batch_first), features(batch_first)
    for sequences in (x, x[0]):  # a batch, and a single sequence
        y = layer(sequences)
        assert y.shape == sequences.shape
        assert not torch.equal(y, sequences)
        assert not torch.equal(y, layer(sequences))
    packed = pack(x, batch_first)
    y = layer(packed)
    assert isinstance(y, PackedSequence)
    assert all(ours is theirs for ours, theirs in zip(y[1:], packed[1:], strict=True))
    assert y.data.shape == packed.data.shape
    assert not torch.equal(y.data, packed.data)


@each_noise
def test_the_identity_in_eval_and_without_strength(noise: Callable[..., nn.Module]) -> None:
    x = features()
    for sequences in (x, x[0], pack(x)):
        assert noise(0.5).eval()(sequences) is sequences
        assert noise(0.0)(sequences) is sequences
    assert locked_dropout(x, 0.5, training=False) is x


@each_layout
@pytest.mark.parametrize("packed", [False, True])
def test_a_sequence_turns_in_one_direction_by_different_angles(batch_first: bool, packed: bool) -> None:
    """The same features at every step: the noise is tan θ_t · A x, from which P and every angle can be read."""
    size = 8
    v = torch.randn(len(LENGTHS), size)
    x = v.expand(5, -1, -1).contiguous()
    layer = RotationOutSequence(0.3, batch_first=batch_first)
    laid = x.transpose(0, 1) if batch_first else x
    if packed:
        y, _ = pad_packed_sequence(layer(pack(laid, batch_first)))
    else:
        y = layer(laid).transpose(0, 1) if batch_first else layer(laid)
    tables = []
    for n, length in enumerate(LENGTHS):
        noise = y[:length, n] - v[n]
        tan = noise.norm(dim=1) / v[n].norm()
        assert len(tan.unique()) == length, "an angle for every step"
        direction = noise / tan.unsqueeze(1)
        torch.testing.assert_close(direction, direction[:1].expand_as(direction), rtol=1e-4, atol=1e-4)
        partner = (direction[0].abs().unsqueeze(1) - v[n].abs()).abs().argmin(1)
        assert torch.equal(partner[partner], torch.arange(size)), "P pairs features"
        sign = (direction[0] / v[n][partner]).round()
        assert torch.equal(sign, -sign[partner])
        tables.append(sign * (partner + 1))
    assert len(torch.stack(tables).unique(dim=0)) == len(LENGTHS), "a pairing for every sequence"


@each_layout
def test_a_mask_is_held_over_time(batch_first: bool) -> None:
    x = torch.ones_like(features(batch_first, size=64))
    y = LockedDropout(0.5, batch_first=batch_first)(x)
    y = y.transpose(0, 1) if batch_first else y
    assert torch.equal(y, y[:1].expand_as(y))
    assert len(y[0].unique(dim=0)) == len(LENGTHS)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    single = LockedDropout(0.5)(torch.ones(5, 64))
    assert torch.equal(single, single[:1].expand_as(single))


CHOICES: dict[str, Callable[[bool], nn.Module]] = {
    "default": lambda first: RotationOutSequence(0.4, batch_first=first),
    "structured": lambda first: RotationOutSequence(0.4, batch_first=first, pairing="structured"),
    "structured per row": lambda first: RotationOutSequence(
        0.4, batch_first=first, pairing="structured", pairing_per="row", side="symmetric"
    ),
    "per batch": lambda first: RotationOutSequence(0.4, batch_first=first, pairing_per="batch", angle_per="batch"),
    "angle per sequence": lambda first: RotationOutSequence(0.4, batch_first=first, angle_per="example"),
    "batch mean": lambda first: RotationOutSequence(0.4, batch_first=first, center="batch"),
    "paper": lambda first: RotationOutSequence(0.4, batch_first=first, preset="paper"),
    "authors": lambda first: RotationOutSequence(0.4, batch_first=first, preset="authors"),
    "locked": lambda first: LockedDropout(0.4, batch_first=first),
}


@pytest.mark.parametrize("name", CHOICES)
@each_layout
@pytest.mark.parametrize("size", [6, 7, 32])
def test_packed_sequences_get_the_noise_of_padded_ones(name: str, batch_first: bool, size: int) -> None:
    layer = CHOICES[name](batch_first)
    x = features(batch_first, size=size, requires_grad=True)
    weight = torch.randn_like(x)
    mask = {"mask": real(batch_first)} if isinstance(layer, RotationOutSequence) else {}
    padded = pack(seeded(layer, x, **mask), batch_first).data
    packed = seeded(layer, pack(x, batch_first)).data
    torch.testing.assert_close(packed, padded)
    cotangent = pack(weight, batch_first).data
    torch.testing.assert_close(*(torch.autograd.grad(y, x, cotangent)[0] for y in (packed, padded)))


@pytest.mark.parametrize("name", CHOICES)
def test_sorted_and_unsorted_batches_are_the_same(name: str) -> None:
    layer, x = CHOICES[name](False), features()
    order = torch.tensor(LENGTHS).argsort(descending=True)
    in_order = pack_padded_sequence(x[:, order], torch.tensor(LENGTHS)[order])
    assert in_order.sorted_indices is None
    mixed = PackedSequence(in_order.data, in_order.batch_sizes, torch.arange(4), torch.arange(4))
    torch.testing.assert_close(seeded(layer, in_order).data, seeded(layer, mixed).data)
    single = seeded(layer, pack_sequence([x[:, 0]])).data
    torch.testing.assert_close(single, seeded(layer, x[:, :1])[:, 0])


@each_layout
def test_padding_leaks_nowhere(batch_first: bool) -> None:
    """Whatever the padding holds, a batch mean and a running one are those of the real rows."""
    x, mask = features(batch_first) + 3, real(batch_first)
    poisoned = x.masked_fill(~mask.unsqueeze(-1), math.nan).requires_grad_()
    centred = RotationOutSequence(0.5, batch_first=batch_first, center="batch")
    y = seeded(centred, poisoned, mask=mask)
    torch.testing.assert_close(y[mask], seeded(centred, x, mask=mask)[mask])
    assert y[~mask].isnan().all()
    packed = seeded(centred, pack(poisoned, batch_first))
    torch.testing.assert_close(packed.data, pack(y, batch_first).data)
    packed.data.square().sum().backward()
    assert poisoned.grad is not None
    assert poisoned.grad[mask].isfinite().all()
    assert (poisoned.grad[~mask] == 0).all()
    running = RotationOutSequence(0.5, batch_first=batch_first, center="running", num_features=6, momentum=1.0)
    for sequences, options in ((pack(poisoned, batch_first), {}), (poisoned, {"mask": mask})):
        running(sequences, **options)
        torch.testing.assert_close(running.running_mean, x[mask].mean(0))
        running.running_mean.zero_()


def test_a_running_mean_is_what_packed_rows_turn_about() -> None:
    x, mean = features() + 3, torch.randn(6)
    layer = RotationOutSequence(0.5, center="running", num_features=6)
    layer.running_mean.copy_(mean)
    origin = RotationOutSequence(0.5)
    y = seeded(layer, pack(x)).data
    torch.testing.assert_close(y - mean, seeded(origin, pack(x - mean)).data)
    layer.p = 0.0
    layer(pack(x))
    assert not torch.equal(layer.running_mean, mean), "it learns at p = 0 too"


def test_no_sequence_sees_another_and_no_step_a_later_one() -> None:
    layer, x = RotationOutSequence(0.5), features()
    changed = x.clone()
    changed[2, 1] += 1
    difference = (seeded(layer, x) != seeded(layer, changed)).any(-1)
    assert difference.nonzero().tolist() == [[2, 1]]


@pytest.mark.parametrize("packed", [False, True])
def test_lemma_1_holds_at_every_step(packed: bool) -> None:
    sequences = 100_000
    x = torch.randn(6) + 0.5
    batch: Any = x.expand(2, sequences, 6)
    if packed:
        batch = pack_padded_sequence(batch, torch.full((sequences,), 2), enforce_sorted=False)
    y = RotationOutSequence(0.3)(batch)
    noise = (y.data if packed else y).view(2, sequences, 6) - x
    assert_lemma_1(noise[0], x, 0.3 / 0.7)
    assert_lemma_1(noise[1], x, 0.3 / 0.7)
    ours, theirs = noise
    products, squares = (ours * theirs).sum(1).double(), (ours**2 + theirs**2).sum(1).double() / 2
    correlation = products.mean() / squares.mean()
    error = (products - correlation * squares).std() / squares.mean() / math.sqrt(sequences)
    assert abs(correlation.item() - 2 / math.pi) < Z_LIMIT * error.item(), "steps turn the same way"


@pytest.mark.parametrize("packed", [False, True])
def test_locked_dropout_has_the_moments_of_dropout(packed: bool) -> None:
    """Mean 0 and covariance λ diag(x_s x_t) between the noises of two steps."""
    sequences, lam = 100_000, 0.3 / 0.7
    x = torch.randn(2, 4)
    batch: Any = x.unsqueeze(1).expand(2, sequences, 4)
    if packed:
        batch = pack_padded_sequence(batch, torch.full((sequences,), 2), enforce_sorted=False)
    y = LockedDropout(0.3)(batch)
    noise = (y.data if packed else y).view(2, sequences, 4) - x.unsqueeze(1)
    for s, t in ((0, 0), (0, 1), (1, 1)):
        statistic, degrees = chi2_of_mean(noise[s], torch.zeros(4))
        assert statistic < chi2_limit(degrees)
        outer = (noise[s].unsqueeze(2) * noise[t].unsqueeze(1)).flatten(1)
        rows, columns = torch.triu_indices(4, 4)
        upper = rows * 4 + columns
        statistic, degrees = chi2_of_mean(outer[:, upper], torch.diag(lam * x[s] * x[t]).flatten()[upper])
        assert statistic < chi2_limit(degrees)


@pytest.mark.parametrize("name", ["default", "batch mean", "locked"])
def test_derivatives_of_packed_noise(name: str) -> None:
    layer, packed = CHOICES[name](False), pack_sequence([torch.randn(1, 4), torch.randn(2, 4)], enforce_sorted=False)

    def disturbed(rows: Tensor) -> Tensor:
        return seeded(layer, PackedSequence(rows, *packed[1:])).data

    rows = packed.data.double().requires_grad_()
    assert torch.autograd.gradcheck(disturbed, rows)
    assert torch.autograd.gradgradcheck(disturbed, rows)


@each_noise
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(noise: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    layer, x = noise(0.3).to(dtype), features().to(dtype)
    assert layer(x).dtype == dtype
    assert layer(pack(x)).data.dtype == dtype


@each_noise
def test_copies_pickles_and_a_schedule(noise: Callable[..., nn.Module]) -> None:
    layer, x = noise(0.3, batch_first=True), features(True)
    assert layer.state_dict() == {}
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(seeded(twin, x), seeded(layer, x))
        twin.p = 0.6
        assert twin._scale.item() == pytest.approx(0.6 if noise is LockedDropout else math.sqrt(1.5))
        assert layer.p == 0.3


def test_the_function_is_the_layer() -> None:
    x = features()
    assert torch.equal(seeded(locked_dropout, x, 0.4), seeded(LockedDropout(0.4), x))
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(*(locked_dropout(x, 0.4, generator=g) for g in generators))


def test_what_they_say_of_themselves() -> None:
    assert repr(LockedDropout(0.3)) == "LockedDropout(p=0.3, batch_first=False)"
    assert repr(RotationOutSequence(0.3)) == (
        "RotationOutSequence(p=0.3, permutation per example, gaussian_tan per row, one-sided, center=None, "
        "batch_first=False)"
    )


def packed_as(data: Tensor, sizes: list[int], order: Tensor | None = None) -> PackedSequence:
    return PackedSequence(data, torch.tensor(sizes), order, order)


ROWS = torch.randn(6, 4)


@each_noise
@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        (packed_as(torch.randn(6), [3, 3]), ValueError, r"feature vectors of shape \(rows, C\), got shape \(6,\)"),
        (packed_as(torch.randn(6, 2, 4), [3, 3]), ValueError, r"got shape \(6, 2, 4\); pack a tensor \(T, N, C\)"),
        (packed_as(ROWS, [2, 4]), ValueError, r"never grow, and sum to the 6 rows of its data, got \[2, 4\]"),
        (packed_as(ROWS, [4, 4]), ValueError, "sum to the 6 rows"),
        (packed_as(ROWS, [4, 2, 0]), ValueError, "must be positive"),
        (PackedSequence(ROWS, torch.tensor([[3, 3]])), ValueError, "vector of int64"),
        (packed_as(ROWS, [3, 3], torch.arange(2)), ValueError, r"number its 3 sequences, on cpu, got shape \(2,\)"),
        (packed_as(ROWS.long(), [3, 3]), TypeError, "floating-point tensor"),
        (torch.randn(2, 3, 4, 5), ValueError, r"sequences are \(T, N, C\), \(T, C\) or packed, got 4 dimensions"),
        (torch.randn(4), ValueError, "got 1 dimensions"),
        (torch.ones(3, 2, 4).long(), TypeError, "floating-point tensor"),
        ([ROWS], TypeError, "Tensor|tensor"),
    ],
)
def test_bad_sequences(noise: Callable[..., nn.Module], sequences: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        noise(0.5)(sequences)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LockedDropout(1.0), ValueError, r"p is a drop probability and must be in \[0, 1\)"),
        (lambda: LockedDropout(0.5, batch_first=1), TypeError, r"batch_first must be True for \(N, T, C\)"),
        (lambda: RotationOutSequence(0.5, batch_first="yes"), TypeError, "batch_first must be True"),
        (lambda: RotationOutSequence(0.5, law="tan"), ValueError, "law must be one of"),
        (lambda: RotationOutSequence(0.5)(pack(features()), real()), ValueError, "packed sequence has none"),
        (lambda: RotationOutSequence(0.5)(pack(features(size=1))), ValueError, "at least 2 features"),
        (lambda: RotationOutSequence()(features(), real(True)), ValueError, r"mask must broadcast to \(5, 4\)"),
        (
            lambda: RotationOutSequence(center="batch")(pack_sequence([torch.randn(1, 4)])),
            ValueError,
            "more than one value per feature",
        ),
        (
            lambda: RotationOutSequence(center="running", num_features=4)(pack(features())),
            ValueError,
            "num_features is 4, but the input has 6",
        ),
        (lambda: locked_dropout(features(), 1.5), ValueError, "p is a drop probability"),
    ],
)
def test_bad_choices(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
