"""Closed-form moments against exact enumeration of all draws; their shapes, and the input that they refuse."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout import strength
from rotationout.analysis import NoiseLaw, conditional_moments, noise_law, relu_moments, total_moments
from rotationout.analysis.sharing import one_sided_correlation, tangent_products


def weighted(draws: Iterator[tuple[float, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and covariance of flattened outputs, each with its probability."""
    chances, outputs = zip(*((chance, output.flatten().double()) for chance, output in draws), strict=True)
    weight, rows = torch.tensor(chances, dtype=torch.float64), torch.stack(outputs)
    torch.testing.assert_close(weight.sum().item(), 1.0)
    mean = weight @ rows
    return mean, (rows - mean).T @ ((rows - mean) * weight[:, None])


def all_dropouts(x: Tensor, masks: tuple[int, ...], p: float) -> Iterator[tuple[float, Tensor]]:
    """Every outcome of a Dropout whose masks have this shape, with its probability."""
    for kept in itertools.product([0.0, 1.0], repeat=math.prod(masks)):
        chance = math.prod(1 - p if keep else p for keep in kept)
        yield chance, x * torch.tensor(kept, dtype=torch.float64).view(masks) / (1 - p)


def all_rotations(x: Tensor, tangents: list[float]) -> Iterator[tuple[float, Tensor]]:
    """Every permutation of the features, with each of some tangents."""
    features = x.size(-1)
    count = math.factorial(features) * len(tangents)
    grow = math.sqrt(features / (features - 1)) if features % 2 else 1.0
    for order in itertools.permutations(range(features)):
        for tan in tangents:
            rotation = ro.Rotation.from_permutation(order, math.atan(tan * grow))
            yield 1 / count, ro.functional.rotate(x, ro.Rotation(rotation.tan.double(), rotation.index, features))


@pytest.mark.parametrize("features", [2, 3, 4, 5, 6])
def test_lemma_1_is_the_mean_over_all_permutations(features: int) -> None:
    x = torch.randn(features, dtype=torch.float64) + 0.5
    mean, covariance = weighted(all_rotations(x, [0.3, 0.9]))
    layer = ro.RotationOut(strength.from_lam("dropout", (0.3**2 + 0.9**2) / 2))
    predicted = conditional_moments(layer, x)
    torch.testing.assert_close(predicted.mean, x)
    torch.testing.assert_close(mean, x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(predicted.covariance, covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("features", [3, 4, 6])
def test_structured_pairings_have_the_same_moments(features: int) -> None:
    """All of them, with every choice of signs."""
    x = torch.randn(features, dtype=torch.float64)
    grow = math.sqrt(features / (features - 1)) if features % 2 else 1.0
    count = ro.pairing.count_structured(features)

    def draws() -> Iterator[tuple[float, Tensor]]:
        for k in range(count):
            partner, _ = ro.pairing.partner_and_sign(torch.tensor(k), torch.tensor(0), features)
            for flips in itertools.product([-1, 1], repeat=features // 2):
                firsts = [i for i in range(features) if i < partner[i]]
                sign = torch.zeros(features, dtype=torch.float64)
                for first, flip in zip(firsts, flips, strict=True):
                    sign[first], sign[partner[first]] = flip, -flip
                yield 1 / (count * 2 ** (features // 2)), x + 0.7 * grow * sign * x[partner]

    _, covariance = weighted(draws())
    layer = ro.RotationOut(strength.from_lam("dropout", 0.49), pairing="structured")
    torch.testing.assert_close(conditional_moments(layer, x).covariance, covariance)


@pytest.mark.parametrize(
    ("layer", "shape", "masks"),
    [
        (nn.Dropout(0.3), (6,), (6,)),
        (nn.Dropout1d(0.3), (2, 2, 3), (2, 2, 1)),
        (nn.Dropout1d(0.3), (3, 4), (3, 1)),
        (nn.Dropout2d(0.3), (2, 2, 2, 2), (2, 2, 1, 1)),
        (nn.Dropout2d(0.3), (2, 2, 3), (2, 2, 1)),  # torch takes them for sequences, not for one example
        (nn.Dropout3d(0.3), (3, 1, 2, 2), (3, 1, 1, 1)),
        (ro.nn.LockedDropout(0.3), (3, 2, 2), (1, 2, 2)),
        (ro.nn.LockedDropout(0.3, batch_first=True), (3, 2, 2), (3, 1, 2)),
        (ro.nn.LockedDropout(0.3), (3, 4), (1, 4)),
    ],
)
def test_dropouts_by_all_their_masks(layer: nn.Module, shape: tuple[int, ...], masks: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    mean, covariance = weighted(all_dropouts(x, masks, 0.3))
    predicted = conditional_moments(layer, x, joint=True)
    torch.testing.assert_close(predicted.mean.flatten(), mean)
    torch.testing.assert_close(predicted.covariance, covariance)


def test_the_axis_of_features_is_free_where_nothing_depends_on_it() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    found = conditional_moments(ro.nn.GaussianDropout(0.2), x, dim=1).covariance
    torch.testing.assert_close(found, torch.diag_embed(0.25 * x.movedim(1, -1) ** 2))
    for layer in (ro.noise("centred-gaussian", 0.2), ro.RotationOut(0.2)):
        with pytest.raises(ValueError, match="has its features on axis 2"):
            conditional_moments(layer, x, dim=1)


def test_results_are_without_gradients() -> None:
    x, maps = torch.randn(5, 4, requires_grad=True), torch.randn(1, 3, 4, 4, requires_grad=True)
    sigma = torch.eye(4, requires_grad=True)
    for found in (
        conditional_moments(ro.RotationOut(0.2), x),
        conditional_moments(ro.nn.Cutout(0.2), maps),
        total_moments(ro.RotationOut(0.2), x[0], sigma),
    ):
        assert not found.mean.requires_grad
        assert not found.covariance.requires_grad


def test_one_multiplier_scales_all_second_moments() -> None:
    second = torch.tensor([[4.0, 1.0], [1.0, 2.0]])
    torch.testing.assert_close(NoiseLaw("whole", 0.5).covariance(second), torch.tensor([[2.0, 0.5], [0.5, 1.0]]))


def test_two_features_take_the_noise_of_each_other() -> None:
    assert NoiseLaw("others", 0.5).variance(torch.tensor([1.0, 4.0])).tolist() == [2.0, 0.5]
    x = torch.randn(4, dtype=torch.float64)
    one, joint = (conditional_moments(ro.RotationOut(0.2), x, joint=joint).covariance for joint in (False, True))
    torch.testing.assert_close(joint, one)


def test_blocks_of_two_examples_are_drawn_apart() -> None:
    layer = ro.RotationOut2d(
        0.3, center=None, pairing_per="batch", angle_per="batch", block_size=2, coverage=0.4, pairing="permutation"
    )
    lam = 0.3 / 0.7
    products = tangent_products(layer, (2, 4, 2, 3), 1, 0)
    torch.testing.assert_close(products.diagonal(), torch.full((12,), lam * 0.4, dtype=torch.float64))
    torch.testing.assert_close(products[:6, 6:], torch.full((6, 6), lam * 0.4**2, dtype=torch.float64))


def test_steps_have_their_features_on_the_last_axis_and_maps_on_the_first() -> None:
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    found = conditional_moments(ro.nn.LockedDropout(0.2), x).covariance
    torch.testing.assert_close(found, torch.diag_embed(0.25 * x**2))
    maps = torch.randn(3, 1, 2, 2, dtype=torch.float64)  # one example, of three channels
    spatial = conditional_moments(nn.Dropout3d(0.2), maps).covariance
    torch.testing.assert_close(spatial, torch.diag_embed(0.25 * maps.movedim(0, -1) ** 2))


def test_the_covariance_of_a_vector_is_a_block_of_the_joint_one() -> None:
    x = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    blocked = ro.RotationOut2d(0.3, block_size=2, coverage=0.4)
    for layer in (
        ro.RotationOut2d(0.3),
        blocked,
        ro.noise("centred-uout", 0.3, dims=2),
        nn.Dropout2d(0.3),
        ro.nn.Cutout(0.3),
    ):
        blocks = conditional_moments(layer, x).covariance
        assert blocks.shape == (2, 2, 3, 4, 4)
        joint = conditional_moments(layer, x, joint=True).covariance.view(*x.shape, *x.shape)
        torch.testing.assert_close(blocks[1, 0, 2], joint[1, :, 0, 2, 1, :, 0, 2], rtol=1e-12, atol=1e-15)
    last = conditional_moments(nn.Dropout(0.3), x)
    first = conditional_moments(nn.Dropout(0.3), x, dim=1)
    assert (last.covariance.shape, first.covariance.shape) == ((2, 4, 2, 3, 3), (2, 2, 3, 4, 4))


class DropPath(nn.Module):
    """As in timm: every example, or none of it."""

    __module__ = "timm.layers.drop"

    def __init__(self, drop_prob: float | None, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep


def test_stochastic_depth_of_timm() -> None:
    assert (noise_law(DropPath(0.2)).source, noise_law(DropPath(0.2)).lam) == ("whole", pytest.approx(0.25))
    assert noise_law(DropPath(None)).lam == 0.0
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = 0.25 * torch.block_diag(x[0].outer(x[0]), x[1].outer(x[1])).double()
    torch.testing.assert_close(conditional_moments(DropPath(0.2), x, joint=True).covariance, expected)
    with pytest.raises(TypeError, match="with scale_by_keep=False the mean of the output is not the input; rotation"):
        noise_law(DropPath(0.2, scale_by_keep=False))


def test_blocks_by_all_their_seeds() -> None:
    """How often two of three positions are turned together, by all 2⁴ ways to start blocks of two."""
    coverage, x = 0.6, torch.randn(1, 2, 3, dtype=torch.float64)
    gamma = 1 - math.sqrt(1 - coverage)
    both = torch.zeros(3, 3, dtype=torch.float64)
    for seeds in itertools.product([0, 1], repeat=4):
        covered = torch.tensor([seeds[i] or seeds[i + 1] for i in range(3)], dtype=torch.float64)
        both += math.prod(gamma if seed else 1 - gamma for seed in seeds) * torch.outer(covered, covered)
    options = {"center": None, "angle_per": "example"}
    plain = conditional_moments(ro.RotationOut1d(0.5, **options), x, joint=True)
    layer = ro.RotationOut1d(0.5, block_size=2, coverage=coverage, **options)
    blocked = conditional_moments(layer, x, joint=True)
    torch.testing.assert_close(blocked.covariance, plain.covariance * both.repeat(2, 2))


def test_how_positions_with_one_pairing_correlate() -> None:
    """The values of the decisions on the paper, and a symmetric law of large λ by numerical integration."""
    assert one_sided_correlation("gaussian_tan", 0.25) == pytest.approx(2 / math.pi)
    assert one_sided_correlation("uniform_tan", 0.25) == pytest.approx(3 / 4)
    assert one_sided_correlation("uniform_angle", 1 / 9) == pytest.approx(0.734, abs=5e-4)
    assert one_sided_correlation("uniform_angle", 1.0) == pytest.approx(0.638, abs=5e-4)
    assert one_sided_correlation("gaussian_angle", 1e-4) == pytest.approx(2 / math.pi, abs=1e-3)


@pytest.mark.parametrize("center", ["origin", "elsewhere"])
@pytest.mark.parametrize("kind", ["dropout", "rotation"])
def test_total_moments_over_a_finite_set_by_all_draws(kind: str, center: str) -> None:
    """eq14 and eq145 with a mean c: four vectors, each with all of the noise's draws."""
    lam, m = 0.49, torch.zeros(4, dtype=torch.float64)
    options = {}
    if center == "elsewhere":
        m = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)
        options = {"center": "running", "num_features": 4}
    layer = ro.noise(kind, strength.from_lam("dropout", lam), **options)
    if center == "elsewhere":
        layer.running_mean.copy_(m)
    data = torch.randn(4, 4, dtype=torch.float64) + 1
    p = strength.from_lam("dropout", lam)

    def draws() -> Iterator[tuple[float, Tensor]]:
        for x in data:
            found = all_dropouts(x - m, (4,), p) if kind == "dropout" else all_rotations(x - m, [0.7])
            yield from ((chance / 4, m + output) for chance, output in found)

    mean, covariance = weighted(draws())
    total = total_moments(layer, data.mean(0), torch.cov(data.T, correction=0))
    torch.testing.assert_close(total.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(total.covariance, covariance, rtol=1e-6, atol=1e-6)


def test_the_layer_is_not_touched() -> None:
    layer = ro.RotationOut(0.3, center="running", num_features=4).eval()
    layer.running_mean.fill_(2.0)
    x = torch.randn(5, 4)
    state = torch.get_rng_state()
    moments, law = conditional_moments(layer, x), noise_law(layer)
    assert torch.equal(torch.get_rng_state(), state)
    assert not layer.training
    assert torch.equal(layer.running_mean, torch.full((4,), 2.0))
    torch.testing.assert_close(moments.covariance, conditional_moments(ro.RotationOut(0.3), x - 2).covariance)
    layer.running_mean.zero_()
    assert torch.equal(law.center, torch.full((4,), 2.0)), "the mean as it was"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: noise_law(nn.Linear(2, 2)), TypeError, "Linear is no noise"),
        (lambda: noise_law("dropout"), TypeError, "noise must be a noise layer or a NoiseLaw, got str 'dropout'"),
        (lambda: NoiseLaw("others", -1.0), ValueError, "lam must be finite and not negative, got -1.0"),
        (lambda: NoiseLaw("other", 1.0), ValueError, "did you mean 'others'"),
        (lambda: NoiseLaw("others", 1.0, torch.zeros(2, 2)), ValueError, r"center must have shape \(D,\)"),
        (lambda: NoiseLaw("others", 1.0).covariance(torch.ones(1, 1)), ValueError, "at least 2 features"),
        (lambda: NoiseLaw("itself", 1.0).covariance(torch.ones(2, 3)), ValueError, r"\(…, D, D\), got \(2, 3\)"),
        (lambda: conditional_moments(ro.RotationOut2d(), torch.ones(2, 3)), ValueError, "takes"),
        (lambda: conditional_moments(ro.RotationOut(), torch.ones(2, 1)), ValueError, "at least 2 features"),
        (
            lambda: conditional_moments(ro.noise("centred-uout", 0.2), torch.ones(1, 3)),
            ValueError,
            "more than one value",
        ),
        (lambda: conditional_moments(ro.noise("centred-uout", 0.2), torch.ones(3)), ValueError, "more than one value"),
        (
            lambda: conditional_moments(nn.Dropout2d(), torch.ones(2, 3), joint=True),
            ValueError,
            r"maps of 3 or 4 dimensions, got \(2, 3\)",
        ),
        (
            lambda: conditional_moments(nn.Dropout3d(), torch.ones(2, 3, 4), joint=True),
            ValueError,
            "maps of 4 or 5 dimensions",
        ),
        (lambda: conditional_moments(nn.Dropout2d(), torch.ones(1, 2, 3, 4), dim=2), ValueError, "features on axis 1"),
        (lambda: conditional_moments(ro.nn.ShakeShake(), torch.ones(2, 3)), TypeError, "two branches"),
        (lambda: conditional_moments(nn.Dropout(), (torch.ones(2), torch.ones(2))), TypeError, "x must be a Tensor"),
        (lambda: conditional_moments(ro.nn.Cutout(), torch.ones(2, 3)), ValueError, "Cutout takes images"),
        (lambda: conditional_moments(ro.nn.LockedDropout(), torch.ones(3)), ValueError, "sequences are"),
        (lambda: total_moments(nn.Dropout(), torch.ones(3), torch.eye(2)), ValueError, "mean must have shape"),
        (
            lambda: total_moments(nn.Dropout(), torch.ones(2), torch.eye(2), rows=1),
            ValueError,
            "rows, .*least 2, .*got 1",
        ),
        (
            lambda: total_moments(NoiseLaw("itself", 1.0, torch.zeros(3)), torch.ones(2), torch.eye(2)),
            ValueError,
            "about a mean of 3 features, but mean has 2",
        ),
        (lambda: total_moments(nn.Dropout(), None, torch.eye(2)), TypeError, "mean must be a Tensor, got NoneType"),
        (lambda: relu_moments([[1.0]]), TypeError, "covariance must be a Tensor, got list"),
        (
            lambda: conditional_moments(ro.nn.CentredDropout(center="running", num_features=1), torch.ones(2, 3)),
            ValueError,
            r"about a mean of 1 features, but x has 3 on axis 1: \(2, 3\)",
        ),
    ],
)
def test_bad_input_says_what_would_be_right(call: object, error: type[Exception], message: str) -> None:
    assert callable(call)
    with pytest.raises(error, match=message):
        call()
