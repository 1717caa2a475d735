"""Rotations as objects: golden matrices, structured pairings by enumeration, sampling."""

import math

import pytest
import torch

import rotationout as ro
from rotationout import pairing
from rotationout.functional import rotate
from rotationout.kernels.angles import tan_of_uniform
from rotationout.strength import ANGLE_LIMIT


def test_the_matrix_of_appendix_a1() -> None:
    theta = 0.3
    cos, sin = math.cos(theta), math.sin(theta)
    expected = torch.tensor([[cos, 0, -sin, 0], [0, cos, 0, sin], [sin, 0, cos, 0], [0, -sin, 0, cos]])
    rotation = ro.Rotation.from_permutation([2, 1, 0, 3], theta)  # the paper counts from 1: [3, 2, 1, 4]
    torch.testing.assert_close(rotation.matrix(scaled=False), expected)
    torch.testing.assert_close(rotation.matrix(), expected / cos)


def test_the_slicing_form_of_appendix_a1() -> None:
    x, theta = torch.randn(4), 0.3
    rotation = ro.Rotation.from_permutation([2, 1, 0, 3], theta)
    sliced = x + math.tan(theta) * x[[2, 3, 0, 1]] * torch.tensor([-1, 1, 1, -1])
    torch.testing.assert_close(rotate(x, rotation), sliced)


def test_a_table_by_hand() -> None:
    rotation = ro.Rotation.from_permutation([4, 0, 2, 1, 3], torch.tensor([0.1, 0.2]))
    assert rotation.partner.tolist() == [1, 0, 4, 3, 2]
    assert rotation.sign.tolist() == [1, -1, -1, 0, 1]
    assert rotation.leading_shape == (2,)
    torch.testing.assert_close(rotation.theta, torch.tensor([0.1, 0.2]))


@pytest.mark.parametrize("start", range(2, 641, 71))
def test_structured_pairings_hold_every_pair_exactly_once(start: int) -> None:
    for features in range(start, min(start + 71, 641)):
        check_enumeration(features)


def check_enumeration(features: int) -> None:
    count = pairing.count_structured(features)
    assert count == features - 1 + features % 2
    partner, sign = pairing.partner_and_sign(torch.arange(count), torch.randint(2**63 - 1, ()), features)
    own = torch.arange(features).expand(count, features)
    assert torch.equal(partner.gather(1, partner), own), "a pairing is an involution"
    assert torch.equal(sign.gather(1, partner), -sign), "the two features of a pair have opposite signs"
    met = torch.zeros(features, features, dtype=torch.int64)
    met.index_put_((own.flatten(), partner.flatten()), torch.ones((), dtype=torch.int64), accumulate=True)
    expected = torch.ones_like(met) if features % 2 else 1 - torch.eye(features, dtype=torch.int64)
    assert torch.equal(met, expected)


@pytest.mark.parametrize("features", [2, 5, 8, 12, 16, 48, 64, 96])
def test_every_structured_pair_has_a_sign_bit_of_its_own(features: int) -> None:
    draws = torch.arange(pairing.count_structured(features))
    partner, second, bit = pairing.structured(draws, features)
    for row in range(len(draws)):
        first = ~second[row] & (partner[row] != torch.arange(features))
        assert sorted(bit[row][first].tolist()) == list(range(features // 2))
        assert torch.equal(bit[row][partner[row]][first], bit[row][first])


def test_splitmix64_gives_its_published_words() -> None:
    """The first outputs of SplitMix64 for seed 1234567, from its reference implementation."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    words = pairing.sign_words(torch.tensor(1234567), torch.zeros(1, dtype=torch.int8), 5 * 128)
    assert [word % 2**64 for word in words.flatten().tolist()] == published


@pytest.mark.parametrize("features", [4, 6])
def test_number_of_distinct_rotations(features: int) -> None:
    rotation = ro.sample_rotation((40_000, features), 0.5)
    found = torch.unique(rotation.index, dim=0).size(0)
    assert found == math.factorial(features) // math.factorial(features // 2)


@pytest.mark.parametrize("features", [4, 6, 16])
def test_number_of_distinct_structured_rotations(features: int) -> None:
    rotation = ro.sample_rotation((60_000, features), 0.5, draw=ro.Draw(pairing="structured"))
    codes = (rotation.partner + 1) * rotation.sign
    assert torch.unique(codes, dim=0).size(0) == (features - 1) * 2 ** (features // 2)


@pytest.mark.parametrize("pairing_name", ["permutation", "structured"])
@pytest.mark.parametrize(("per", "shape"), [("row", (3, 5, 7)), ("example", (3, 1, 1)), ("batch", (1, 1, 1))])
def test_who_shares_what(pairing_name: str, per: str, shape: tuple[int, ...]) -> None:
    draw = ro.Draw(pairing=pairing_name, pairing_per=per, angle_per=per)
    rotation = ro.sample_rotation((3, 8, 5, 7), 0.2, dim=1, draw=draw)
    assert rotation.tan.shape == shape
    assert rotation.partner.shape == (*shape, 8)


def test_examples_can_be_counted_along_another_axis_or_none() -> None:
    draw = ro.Draw(pairing_per="example", angle_per="example")
    assert ro.sample_rotation((7, 3, 8), 0.2, batch_dim=1, draw=draw).leading_shape == (1, 3)
    assert ro.sample_rotation((7, 3, 8), 0.2, batch_dim=None, draw=draw).leading_shape == (1, 1)
    assert ro.sample_rotation((8,), 0.2, draw=draw).leading_shape == ()


def test_a_generator_decides_the_draw() -> None:
    def draw(seed: int) -> torch.Tensor:
        return ro.sample_rotation((3, 6), 0.2, generator=torch.Generator().manual_seed(seed)).matrix()

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_the_smallest_integer_type_is_kept() -> None:
    assert ro.sample_rotation((2, 64), 0.2).index.dtype == torch.int8
    assert ro.sample_rotation((2, 126), 0.2).index.abs().max() == 126
    assert ro.sample_rotation((2, 127), 0.2).index.min() >= -127
    assert ro.sample_rotation((2, 128), 0.2).index.dtype == torch.int16
    assert ro.sample_rotation((1, 40_000), 0.2).index.dtype == torch.int32
    for features, dtype in ((64, torch.int8), (128, torch.int16), (40_000, torch.int32)):
        assert ro.sample_rotation((2, features), 0.2, draw=ro.Draw(pairing="structured")).index.dtype == dtype


def test_turning_there_and_back() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    rotation = ro.sample_rotation(x.shape, 0.4)
    back = rotate(rotate(x, rotation), rotation.inverse())
    torch.testing.assert_close(back, x / rotation.theta.double().cos().unsqueeze(-1) ** 2, rtol=1e-5, atol=1e-6)


def test_moving_a_rotation() -> None:
    for name in ("permutation", "structured"):
        drawn = ro.sample_rotation((4, 6), 0.2, draw=ro.Draw(pairing=name))
        rotation = drawn.to("cpu")
        assert rotation.tan.device.type == "cpu"
        assert "features=6" in repr(rotation)
        assert torch.equal(rotation.matrix(), drawn.matrix())
        moved = drawn.to("meta")
        assert all(part is None or part.is_meta for part in (moved.tan, moved.index, moved.seed))


@pytest.mark.parametrize(
    ("permutation", "error", "message"),
    [
        ([0, 1, 1, 3], ValueError, "each of 0 … 3 once"),
        ([1, 2, 3, 4], ValueError, "counted from 0"),
        ([0], ValueError, "at least 2 features, got 1"),
        ([0.0, 1.0], TypeError, r"integers .*got \[0\.0, 1\.0\]"),
        ([False, True], TypeError, "integers along its last axis"),
        ([0j, 1 + 0j], TypeError, "integers along its last axis"),
        (3, TypeError, "integers along its last axis"),
        ("01", TypeError, "integers along its last axis, got '01'"),
        ([[0, 1], [0]], TypeError, "integers along its last axis"),
    ],
)
def test_bad_permutations(permutation: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ro.Rotation.from_permutation(permutation, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("theta", [math.pi / 2, -2.0, math.nan])
def test_bad_angles(theta: float) -> None:
    with pytest.raises(ValueError, match=rf"strictly between .* got {theta!r}"):
        ro.Rotation.from_permutation([0, 1], theta)


@pytest.mark.parametrize("theta", ["0.1", None, 0.1j])
def test_angles_that_are_no_numbers(theta: object) -> None:
    with pytest.raises(TypeError, match="theta must be an angle in radians, or a tensor of them, got "):
        ro.Rotation.from_permutation([0, 1], theta)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["pairing", "pairing_per", "angle_per", "law", "side"])
def test_unknown_choices(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be one of .*got 'nonsense'"):
        ro.Draw(**{field: "nonsense"})


def test_bad_arguments_of_sample_rotation() -> None:
    with pytest.raises(ValueError, match=r"dim = -1 has size 1.*at least 2 features"):
        ro.sample_rotation((4, 1), 0.2)
    with pytest.raises(TypeError, match=r"shape must be that of a tensor, e\.g\. \(32, 64\), got int 6"):
        ro.sample_rotation(6, 0.2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"shape must be that of a tensor, .* got str '46'"):
        ro.sample_rotation("46", 0.2)
    with pytest.raises(TypeError, match=r"shape\[0\] must be an integer, at least 0, got float 4\.7"):
        ro.sample_rotation((4.7, 6), 0.2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, .* got int 3"):
        ro.sample_rotation((4, 6), 0.2, generator=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"device must be a torch\.device or its name, .*got dtype torch\.float64"):
        ro.sample_rotation((4, 6), 0.2).to(torch.float64)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape\[0\] must be an integer, at least 0, got -1"):
        ro.sample_rotation((-1, 6), 0.2)
    with pytest.raises(IndexError, match="dim = 2 does not exist in a tensor with 2 dimensions"):
        ro.sample_rotation((4, 6), 0.2, dim=2)
    with pytest.raises(TypeError, match="dim must be an integer"):
        ro.sample_rotation((4, 6), 0.2, dim=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_dim = 1 is the feature axis"):
        ro.sample_rotation((4, 6), 0.2, batch_dim=1, draw=ro.Draw(pairing_per="example"))
    with pytest.raises(ValueError, match="p is a drop probability"):
        ro.sample_rotation((4, 6), 1.0)
    with pytest.raises(ValueError, match=r"theta of shape \(3,\) does not broadcast with the leading shape \(2,\)"):
        ro.Rotation.from_permutation([[0, 1], [1, 0]], torch.zeros(3))


def test_angles_and_pairings_broadcast() -> None:
    rotation = ro.Rotation.from_permutation(torch.tensor([[[0, 1], [1, 0]]]), torch.tensor([[0.1], [0.2], [0.3]]))
    assert rotation.leading_shape == (3, 2)
    torch.testing.assert_close(rotation.matrix()[2, 1], torch.tensor([[1.0, -math.tan(0.3)], [math.tan(0.3), 1.0]]))
    assert ro.Rotation.from_permutation([[0, 1], [1, 0]], 0.1).leading_shape == (2,)
    assert ro.Rotation.from_permutation([0, 1], 1.57).theta.item() == pytest.approx(1.57)
    assert ro.Rotation.from_permutation([0, 1], 1).tan.item() == pytest.approx(math.tan(1))


def test_what_a_rotation_says_of_itself() -> None:
    table = ro.sample_rotation((4, 6), 0.2)
    assert repr(table) == "Rotation(features=6, leading_shape=(4,), pairing='table')"
    structured = ro.sample_rotation((4, 6), 0.2, draw=ro.Draw(pairing="structured"))
    assert repr(structured) == "Rotation(features=6, leading_shape=(4,), pairing='structured')"


@pytest.mark.parametrize("sigma", [0.1, 0.3, 5.0])
def test_a_gaussian_angle_is_finite_at_the_ends_of_the_uniform_numbers(sigma: float) -> None:
    ends = tan_of_uniform(torch.tensor([-1.0, 1.0]), "gaussian_angle", sigma)
    assert torch.isfinite(ends).all()
    limit = math.tan(min(ANGLE_LIMIT, 5.4 * sigma))  # beyond 5.4 σ lies one number in 2²⁴
    torch.testing.assert_close(ends, torch.tensor([-limit, limit]), rtol=0.05, atol=0)
