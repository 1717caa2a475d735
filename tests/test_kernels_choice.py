"""The choice of kernels for few channels: on a CPU it changes nothing; and what it cannot be combined with."""

import pytest
import torch
from tests.cifar_images import images
from tests.test_training import _small as _small  # a fixture
from tests.test_training import config, make
from torch import nn

from rotationout.experiments import processes
from rotationout.experiments.classification import build_network
from rotationout.experiments.narrow import conditions
from rotationout.experiments.networks import ResNet
from rotationout.recipes.cifar100 import wrn28_10


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_cpu_a_run_is_the_same_bit_for_bit(precision: str) -> None:
    new = make(images(64), images(20, seed=1))
    plain, fused = (new(config(kernels=kernels, precision=precision)) for kernels in ("torch", "fused"))
    for run in (plain, fused):
        while not run.finished:
            run.advance()
    assert fused.network.stages[0].fused
    assert not plain.network.stages[0].fused
    assert fused.losses == plain.losses
    expected = plain.network.state_dict()
    assert fused.network.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in fused.network.state_dict().items())


def test_every_block_is_told() -> None:
    network = build_network(config(kernels="fused"))
    told = [module.fused for module in network.modules() if hasattr(module, "fused")]
    assert len(told) == 54 + 3  # blocks, the stem and two projections
    assert all(told)


def test_modules_and_initial_weights_are_torchs() -> None:
    torch.manual_seed(0)
    plain = ResNet(1, authors=True)
    torch.manual_seed(0)
    fused = ResNet(1, authors=True, fused=True)
    assert [type(module) for module in fused.modules()] == [type(module) for module in plain.modules()]
    for (name, value), (other, expected) in zip(fused.state_dict().items(), plain.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(value, expected)


def test_compiled_blocks_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one graph, also where there would be kernels."""
    monkeypatch.setattr(conditions, "_on_gpu", lambda x: True)
    block = ResNet(1, fused=True).stages[0]
    plain = ResNet(1).stages[0]
    plain.load_state_dict(block.state_dict())
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(torch.compile(block, backend="eager", fullgraph=True)(x), plain(x))


def test_runs_with_kernels_are_not_compiled() -> None:
    """What would run then is not what the record says."""
    run = make(images(16), images(4, seed=1))(config(kernels="fused"))
    with pytest.raises(ValueError, match="leave --compile out, or add --kernels torch"):
        run.compile()
    assert not run.compiled


def test_batchnorm_that_processes_share_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels would take the statistics of one process."""
    monkeypatch.setattr(conditions, "_on_gpu", lambda x: True)
    monkeypatch.setattr(processes, "size", lambda: 2)
    shared = processes.synchronized(nn.Sequential(nn.BatchNorm2d(16)), torch.device("cuda"))[0]
    x = torch.randn(2, 16, 4, 4)
    assert conditions.can_normalise(nn.BatchNorm2d(16), x, None)
    assert not conditions.can_normalise(shared, x, None)


def test_what_has_no_such_kernels_says_so() -> None:
    with pytest.raises(ValueError, match="kernels must be one of 'torch', 'fused', got 'cudnn'"):
        config(kernels="cudnn")
    with pytest.raises(ValueError, match="few channels, resnet20 and resnet110; network = 'wrn28_10' needs"):
        wrn28_10().replace(kernels="fused")
