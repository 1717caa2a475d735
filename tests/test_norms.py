"""Other normalisations in the networks of experiments: the same weights, and what a seed decides."""

from functools import partial

import pytest
import torch
from tests.cifar_images import images
from torch import nn

from rotationout.experiments import networks, processes
from rotationout.experiments.classification import Classification, ClassificationConfig, build_network
from rotationout.experiments.norms import normalized
from rotationout.nn import CrossNorm2d, GhostBatchNorm2d, PolyBatchNorm2d
from rotationout.nn.norm.ghost import ChunkedNorm
from rotationout.recipes import TABLES


def config(**changes: object) -> ClassificationConfig:
    base = TABLES["cifar100_ghost"]()[0]
    assert isinstance(base, ClassificationConfig)
    return base.replace(**{"steps": 2, "batch": 16, "precision": "fp32", "studies": (), **changes})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "resnet20", partial(networks.ResNet, 1))


@pytest.mark.parametrize(
    ("norm", "ghost", "expected"),
    [
        ("batch", 0, nn.BatchNorm2d),
        ("batch", 8, GhostBatchNorm2d),
        ("poly", 8, PolyBatchNorm2d),
        ("cross", 0, CrossNorm2d),
        ("group", 0, nn.GroupNorm),
    ],
)
def test_every_layer_is_replaced_and_a_seed_gives_the_same_weights(
    norm: str, ghost: int, expected: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    plain = build_network(config(norm="batch", ghost_batch=0))
    torch.manual_seed(0)
    network = build_network(config(norm=norm, ghost_batch=ghost))
    layers = [module for module in network.modules() if type(module) is expected]
    assert len(layers) == sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules()) == 7
    for (name, mine), (other, theirs) in zip(network.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(mine, theirs)
    for layer in layers:
        if isinstance(layer, ChunkedNorm):
            assert layer.ghost_batch == (ghost or None)


def test_poly_without_ghost_batches_has_the_batch() -> None:
    layer = normalized(nn.Sequential(nn.BatchNorm2d(8)), "poly", 64)[0]
    assert (layer.batch_size, layer.ghost_batch) == (64, None)


def test_ghost_batches_are_normalised_apart() -> None:
    """A batch of two chunks, and each chunk by itself: the same, and not what the whole batch gives."""
    run = Classification(config(ghost_batch=8, network_options={}), (images(32), images(4)), torch.device("cpu"))
    network, x = run.network.train(), run.prepare(images(16, seed=3).pixels)
    with torch.no_grad():
        whole, parts = network(x), torch.cat([network(part) for part in x.split(8)])
        plain = build_network(config(ghost_batch=0, network_options={}))
        plain.load_state_dict(network.state_dict())
        together = plain.train()(x)
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)
    assert (whole - together).abs().max() > 0.01


def test_group_norm_does_in_testing_what_it_does_in_training() -> None:
    network, x = build_network(config(norm="group", ghost_batch=0)), torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(network.train()(x), network.eval()(x))


@pytest.mark.parametrize("changes", [{"norm": "cross", "ghost_batch": 0}, {"norm": "batch", "ghost_batch": 8}])
def test_processes_cannot_share_chunks(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "size", lambda: 2)
    with pytest.raises(ValueError, match="with 2 of them sync_batchnorm must be False, got True"):
        Classification(config(**changes), (images(32), images(4)), torch.device("cpu"))
