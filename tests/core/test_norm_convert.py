"""From and to nn.BatchNorm in a model: tensors, statistics, hooks and mode are kept."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import rotationout as ro
from rotationout.nn import norm
from rotationout.nn.norm.convert import FAMILIES

OPTIONS = {"cross": {}, "ghost": {"ghost_batch": 8}, "poly": {"batch_size": 8}}
each_family = pytest.mark.parametrize("family", list(FAMILIES))


class Net(nn.Module):
    """BatchNorm of two dimensions, one of them nested and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4, momentum=0.3))
        self.again = self.stem[1]
        self.body = nn.ModuleDict({"block": nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, eps=1e-3))})
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body["block"](self.again(self.stem(x))))


def trained() -> Net:
    net = Net()
    for _ in range(3):
        net(torch.randn(16, 2, 2, 2) + 1)
    return net


def kinds(net: nn.Module) -> set[type[nn.Module]]:
    return {type(module) for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)}


@each_family
def test_there_and_back(family: str) -> None:
    net, x = trained(), torch.randn(16, 2, 2, 2)
    tensors = net.state_dict(keep_vars=True)
    before = net.eval()(x)
    assert norm.convert_batchnorm(net, family, **OPTIONS[family]) is net
    one, two, _ = FAMILIES[family]
    assert kinds(net) == {one, two}
    assert net.stem[1] is net.again
    assert not net.again.training
    assert (net.again.momentum, net.body["block"][1].eps) == (0.3, 1e-3)
    after = net.state_dict(keep_vars=True)
    assert list(after) == list(tensors)
    assert all(after[key] is tensors[key] for key in tensors), "an optimiser goes on"
    assert torch.equal(net(x), before) == (family != "poly")
    net.train()(x)
    net.eval()
    converted = net(x)
    assert norm.to_batchnorm(net) is net
    assert kinds(net) == {nn.BatchNorm1d, nn.BatchNorm2d}
    assert torch.equal(net(x), converted) == (family != "poly")


def test_a_class_converts_its_dimension_and_families_convert_into_each_other() -> None:
    net = ro.nn.convert_batchnorm(trained(), to=norm.CrossNorm2d, ghost_batch=8)
    assert kinds(net) == {norm.CrossNorm2d, nn.BatchNorm1d}
    assert net.again.ghost_batch == 8
    ro.nn.convert_batchnorm(net, "poly", batch_size=4)
    assert kinds(net) == {norm.PolyBatchNorm2d, norm.PolyBatchNorm1d}
    assert (net.again.ghost_batch, net.again.batch_size) == (None, 4)


def test_a_lone_layer_is_returned() -> None:
    layer = nn.BatchNorm1d(3)
    converted = norm.convert_batchnorm(layer, norm.CrossNorm1d)
    assert type(converted) is norm.CrossNorm1d
    assert converted.weight is layer.weight


def test_hooks_and_inserted_noise_are_kept() -> None:
    net, calls = trained(), []
    handle = net.again.register_forward_hook(lambda *_: calls.append(1))
    ro.insert(net, ro.RotationOut(0.5), after=nn.BatchNorm1d, dim=-1)
    norm.convert_batchnorm(net, "cross")
    x = torch.randn(8, 2, 2, 2)
    outputs = [net(x) for _ in range(2)]
    assert not torch.equal(*outputs), "the noise is still there"
    assert len(calls) == 4, "a hook of a module that is called twice"
    handle.remove()
    ro.remove(net)
    assert torch.equal(net(x), net(x))
    assert len(calls) == 4


def test_what_is_left_alone() -> None:
    class Other(nn.BatchNorm2d):
        pass

    net = nn.Sequential(Other(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm2d(), nn.GroupNorm(1, 3), nn.BatchNorm2d(3))
    before = [type(module) for module in net]
    norm.convert_batchnorm(net, "cross")
    assert [type(module) for module in net] == [*before[:-1], norm.CrossNorm2d]
    norm.to_batchnorm(net)
    assert [type(module) for module in net] == before
    plain = nn.Sequential(nn.BatchNorm2d(3))
    same = plain[0]
    assert norm.to_batchnorm(plain)[0] is same


@each_family
def test_converted_models_train_and_copy(family: str) -> None:
    net = norm.convert_batchnorm(trained().train(), family, **OPTIONS[family])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(16, 2, 2, 2)).square().mean().backward()
    optimizer.step()
    x = torch.randn(16, 2, 2, 2)
    assert torch.equal(copy.deepcopy(net).eval()(x), net.eval()(x))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: norm.convert_batchnorm(Net(), "corss"), ValueError, "did you mean 'cross'"),
        (lambda: norm.convert_batchnorm(Net(), nn.BatchNorm2d), TypeError, "to must be a layer of rotationout.nn.norm"),
        (lambda: norm.convert_batchnorm(Net(), "poly"), ValueError, "needs batch_size"),
        (lambda: norm.convert_batchnorm(Net(), "cross", batch_size=8), TypeError, "batch_size"),
        (lambda: norm.to_batchnorm(torch.ones(3)), TypeError, "model must be an nn.Module"),
    ],
)
def test_bad_input_says_what_would_be_right(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_nothing_changes_if_anything_fails() -> None:
    net = Net()
    with pytest.raises(ValueError, match="needs batch_size"):
        norm.convert_batchnorm(net, "poly")
    assert kinds(net) == {nn.BatchNorm1d, nn.BatchNorm2d}


def test_a_conversion_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="its normalisation is SyncBatchNorm"):
        norm.convert_batchnorm(nn.Sequential(nn.SyncBatchNorm(4)), "cross")
    with pytest.raises(ValueError, match="CrossNorm1d can replace: its normalisation is BatchNorm2d"):
        norm.convert_batchnorm(nn.Sequential(nn.BatchNorm2d(4)), norm.CrossNorm1d)
    with pytest.raises(ValueError, match="no BatchNorm layer at all"):
        norm.convert_batchnorm(nn.Linear(2, 2), "ghost")


@pytest.mark.parametrize(
    "options", [{"to": "ghost", "ghost_batch": 4}, {"to": "cross"}, {"to": "poly", "batch_size": 8}]
)
def test_converted_models_are_traced_by_fx(options: dict[str, Any]) -> None:
    """With the norms as layers, as BatchNorm is: what quantizes a model or extracts features traces it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    ro.nn.convert_batchnorm(model, **options)
    x = torch.randn(8, 3)
    for mode in (True, False):
        traced = torch.fx.symbolic_trace(model.train(mode))
        assert type(traced.get_submodule("1")) is type(model[1])
        assert torch.equal(traced(x), model(x))
