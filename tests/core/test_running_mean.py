"""The running mean that layers may turn about: what it learns, and what sees it."""

import copy
import warnings

import pytest
import torch
from torch import Tensor

import rotationout as ro
from rotationout.nn.base import CentredNoise


def test_running_mean_is_tracked_saved_and_used_before_it_is_updated() -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6, momentum=0.5)
    assert list(module.state_dict()) == ["running_mean"]
    x = torch.randn(32, 6) + 3
    torch.manual_seed(0)
    first = module(x)
    torch.testing.assert_close(module.running_mean, 0.5 * x.mean(0))
    torch.manual_seed(0)
    assert torch.equal(first, ro.RotationOut(0.5)(x)), "the mean before the first batch is 0"
    twin = ro.RotationOut(0.5, center="running", num_features=6)
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin.running_mean, module.running_mean)
    before = module.running_mean.clone()
    module.eval()(x)
    assert torch.equal(module.running_mean, before)


def test_running_mean_on_maps_ignores_padding() -> None:
    module = ro.RotationOut1d(0.5, center="running", num_features=4, momentum=1.0)
    x = torch.randn(3, 4, 5, requires_grad=True)
    mask = torch.rand(3, 5) < 0.6
    module(x, mask=mask)
    torch.testing.assert_close(module.running_mean, x.detach().movedim(1, -1)[mask].mean(0))
    assert not module.running_mean.requires_grad, "it would keep the graphs of all batches"


def test_a_batch_of_padding_leaves_the_running_mean_alone() -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6, momentum=1.0)
    module(torch.randn(8, 6) + 3)
    before = module.running_mean.clone()
    module(torch.randn(8, 6), mask=torch.zeros(8, dtype=torch.bool))
    module(torch.randn(0, 6))
    assert torch.equal(module.running_mean, before)


def test_running_mean_lets_no_example_see_another() -> None:
    module = ro.RotationOut(0.5, center="running", num_features=8)
    module(torch.randn(64, 8) + 2)
    state = copy.deepcopy(module.state_dict())
    x = torch.randn(5, 3, 8)
    outputs = []
    for offset in (0.0, 1.0):
        module.load_state_dict(state)
        x[1, 1] += offset
        torch.manual_seed(0)
        outputs.append(module(x))
    assert (outputs[0] != outputs[1]).any(-1).sum() == 1


def test_gradients_flow_through_a_running_mean_that_is_updated() -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6)
    x = torch.randn(8, 6, requires_grad=True)
    module(module(x)).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("backend", [None, "reference"])
def test_backward_does_not_see_that_a_running_mean_has_moved(backend: str | None) -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6, momentum=1.0, backend=backend).double()
    x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 6, dtype=torch.float64)
    torch.manual_seed(0)
    (gradient,) = torch.autograd.grad(module(x), x, weight)
    torch.manual_seed(0)
    (plain,) = torch.autograd.grad(ro.RotationOut(0.5)(x), x, weight)
    torch.testing.assert_close(gradient, plain)


def test_a_noise_whose_gradient_needs_the_running_mean_has_it_as_it_was() -> None:
    class Scaled(CentredNoise):
        def _axes(self, x: Tensor) -> tuple[int, int | None]:
            return x.ndim - 1, 0

        def _disturb(
            self, x: Tensor, center: str | Tensor | None, mask: Tensor | None, dim: int, batch_dim: int | None
        ) -> Tensor:
            return x * center

    layer = Scaled(0.5, "dropout", center="running", num_features=2, momentum=1.0)
    layer(torch.full((3, 2), 2.0))
    x = torch.full((3, 2), 5.0, requires_grad=True)
    y = layer(x)
    assert layer.running_mean.tolist() == [5.0, 5.0]
    assert torch.autograd.grad(y.sum(), x)[0].unique().tolist() == [2.0]


@pytest.mark.parametrize("rows", [8, 20000])
def test_second_derivatives_and_tangents_do_not_see_that_a_running_mean_has_moved(rows: int) -> None:
    """Few rows and many, which other implementations turn."""
    module = ro.RotationOut(0.5, center="running", num_features=6, momentum=1.0).double()
    plain = ro.RotationOut(0.5).double()
    x = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(x)
    found = []
    for layer in (module, plain):
        torch.manual_seed(0)
        turned = layer(x) * weight
        (first,) = torch.autograd.grad((turned**2).sum() / 2, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x, weight)
        torch.manual_seed(0)
        with torch.autograd.forward_ad.dual_level():
            dual = layer(torch.autograd.forward_ad.make_dual(x.detach(), weight))
            found.append((first, second, torch.autograd.forward_ad.unpack_dual(dual).tangent))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(module.running_mean, x.detach().mean(0))


def test_a_running_mean_that_stands_in_for_the_layers_own_is_the_one_that_follows() -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6)
    x, other = torch.randn(8, 6), torch.ones(6)
    torch.func.functional_call(module, {"running_mean": other}, (x,))
    assert torch.equal(module.running_mean, torch.zeros(6))
    torch.testing.assert_close(other, 0.9 + 0.1 * x.mean(0))


def test_layers_side_by_side_have_a_running_mean_each() -> None:
    layers = [ro.RotationOut(0.5, center="running", num_features=6) for _ in range(3)]
    _, means = torch.func.stack_module_state(layers)
    x = torch.randn(3, 8, 6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        torch.func.vmap(
            lambda buffers, one: torch.func.functional_call(layers[0], buffers, (one,)), randomness="different"
        )(means, x)
    torch.testing.assert_close(means["running_mean"], 0.1 * x.mean(1))


@pytest.mark.parametrize(
    ("x", "mask"),
    [
        (torch.ones(4, 6, dtype=torch.int64), None),
        (torch.ones(4, 6), torch.ones(4)),
        (torch.ones(4, 6).to_sparse(), None),
    ],
)
def test_a_batch_that_is_refused_leaves_the_running_mean_alone(x: Tensor, mask: Tensor | None) -> None:
    module = ro.RotationOut(0.5, center="running", num_features=6)
    with pytest.raises(TypeError, match=r"(must be|takes) a (floating-point|boolean|dense) tensor"):
        module(x, mask=mask)
    assert torch.equal(module.running_mean, torch.zeros(6))
