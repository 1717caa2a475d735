"""BatchNorm recalibrated with the noise off: what it restores, what it leaves alone, and where it is refused."""

import copy
from typing import Any

import pytest
import torch
from tests.core.repair_models import (
    Functional,
    images,
    snapshot,
    trained,
    unchanged,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

import rotationout as ro
from rotationout.analysis import correct_batchnorm_, recalibrate_batchnorm_, variance_shift
from rotationout.nn import CrossNorm1d


def dropout_b() -> nn.Sequential:
    """The paper's Dropout-b, twice, on features with a mean: no closed form."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5),
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), ro.RotationOut2d(0.5),
        nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4),
    )  # fmt: skip


def test_recalibration_gives_the_statistics_of_testing_mode() -> None:
    batches = images(20)
    model = trained(dropout_b(), batches)
    assert variance_shift(model, batches)["9"].stored_r.min() > 1.3
    twin = copy.deepcopy(model)
    repair = recalibrate_batchnorm_(model, batches)
    assert [layer.name for layer in repair.layers] == ["1", "5", "9"]
    for layer in variance_shift(model, batches).layers:
        assert layer.stored_r.max() < 1.05
    quiet = copy.deepcopy(twin)
    for k in (3, 7):
        quiet[k] = nn.Identity()
    update_bn(batches, quiet)
    update_bn(batches, twin)
    for name in ("1", "5", "9"):
        mine, silent, noisy = (m.get_submodule(name).running_var for m in (model, quiet, twin))
        assert torch.allclose(mine, silent, rtol=1e-4)
        assert name == "1" or not torch.allclose(mine, noisy, rtol=0.2), "torch's own leaves the noise on"
        means = [m.get_submodule(name).running_mean for m in (model, quiet)]
        assert torch.allclose(*means, rtol=1e-3, atol=1e-5)


def test_recalibration_changes_nothing_else() -> None:
    batches = images(3)
    model = trained(dropout_b(), batches)
    model[1].momentum = None
    model[0].eval()
    before, modes, state = snapshot(model), [m.training for m in model.modules()], torch.get_rng_state()
    recalibrate_batchnorm_(model, batches)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    assert changed == {f"{k}.{kind}" for k in (1, 5, 9) for kind in kinds}
    assert [m.training for m in model.modules()] == modes
    assert [model[k].momentum for k in (1, 5, 9)] == [None, 0.1, 0.1]
    assert torch.equal(torch.get_rng_state(), state)
    before = snapshot(model)
    recalibrate_batchnorm_(model, batches)  # a second time it is the same
    assert unchanged(model, before)


def test_an_error_leaves_the_statistics_as_they_were() -> None:
    model = trained(dropout_b(), images(2))
    before = snapshot(model)
    for wrong, error in ((torch.ones(4, 2, 7, 7), RuntimeError), (torch.full((4, 3, 7, 7), torch.nan), ValueError)):
        with pytest.raises(error):
            recalibrate_batchnorm_(model, [*images(2), wrong])
        assert unchanged(model, before)
        assert [model[k].momentum for k in (1, 5, 9)] == [0.1] * 3


class NoisyNorm(nn.BatchNorm2d):
    """Its noise is on whenever its statistics are taken."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.dropout(input, 0.5, self.training))


def test_recalibration_is_refused_where_noise_cannot_be_off() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 1), NoisyNorm(4)), images(2))
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"draws random numbers.*(bernoulli|dropout) in 1.*cannot be off"):
        recalibrate_batchnorm_(model, images(2))
    assert unchanged(model, before)
    assert len(recalibrate_batchnorm_(trained(Functional(), images(2)), images(2))) == 1, "this one can be off"


def test_noise_whose_hook_is_gone_is_told() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    ro.insert(model, ro.RotationOut2d(0.5), before=nn.BatchNorm2d)
    rebuilt = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for repair in (recalibrate_batchnorm_, correct_batchnorm_, variance_shift):
        with pytest.raises(RuntimeError, match="the noise at '1' no longer acts"):
            repair(rebuilt, images(1))


def test_layers_that_have_no_part_in_it_are_left_alone() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    model[0].unused = nn.BatchNorm2d(5)
    repair = recalibrate_batchnorm_(model, images(2))
    assert [layer.name for layer in repair.layers] == ["0"]
    assert repair.left == ("0.unused: it was not called with these batches", "1: it keeps no running statistics")
    assert "2 left alone" in str(repair)
    assert torch.equal(model[0].unused.running_var, torch.ones(5))
    with pytest.raises(ValueError, match="keeps running statistics"):
        recalibrate_batchnorm_(model[1:], images(2))
    alone, dead = nn.BatchNorm2d(3), nn.BatchNorm1d(2)
    described = recalibrate_batchnorm_(alone, [(k, x) for k, x in enumerate(images(2))], forward=lambda m, b: m(b[1]))
    assert str(described).splitlines()[1].startswith("  the model: recalibrated with the noise off; ")
    for expected in ("0 to 1", "1"):  # the second time a dead channel has a variance of 0 before and after
        batch = torch.tensor([[1.0, 3.0], [1.0, 3.0 + 2**0.5]])  # variances of 0 and 1
        described = recalibrate_batchnorm_(dead, [batch])
        assert str(described).endswith(f"; running variance × {expected}")
    idle = nn.Sequential(nn.ReLU())
    idle[0].unused = nn.BatchNorm2d(5)
    with pytest.raises(ValueError, match="no BatchNorm layer was called with these batches"):
        recalibrate_batchnorm_(idle, images(2))


def test_cross_normalization_is_recalibrated_but_not_corrected() -> None:
    """Its running_var is no variance: a closed form would be wrong, its own statistics with the noise off are right."""
    torch.manual_seed(0)
    model = nn.Sequential(ro.noise("centred-dropout", 0.5, dims=0), CrossNorm1d(4))
    batches = [torch.randn(64, 4) for _ in range(40)]
    for batch in batches * 3:
        model(batch)
    with pytest.raises(ValueError, match="stores a mean of inverse deviations instead of the variance"):
        correct_batchnorm_(model, batches)
    assert model[1].running_var.min() > 1.5
    recalibrate_batchnorm_(model, batches)
    torch.testing.assert_close(model[1].running_var, torch.ones(4), rtol=0, atol=0.1)


class Augmented:
    """A data pipeline that draws while it is gone through."""

    def __iter__(self) -> Any:
        return (torch.randn(16, 4)[torch.randperm(16)] * torch.rand(1) for _ in range(30))


def test_what_a_data_pipeline_draws_is_not_noise_of_the_model() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), ro.noise("centred-dropout", 0.5, dims=0), nn.BatchNorm1d(4))
    for batch in Augmented():
        model(batch)
    repair = correct_batchnorm_(model, Augmented())
    assert [one.name for one in repair.layers] == ["2"]
    assert [one.name for one in recalibrate_batchnorm_(model, Augmented()).layers] == ["0", "2"]


def test_a_frozen_layer_stays_as_it_is() -> None:
    """In testing mode while the model is in training: a backbone that is fine-tuned with its statistics held."""
    model = nn.Sequential(nn.BatchNorm1d(4), ro.nn.CentredDropout(0.5, dim=1), nn.BatchNorm1d(4))
    for _ in range(60):
        model(torch.randn(64, 4))
    model[0].eval()
    model[0].running_var.fill_(4.0)
    batches = [torch.randn(64, 4) for _ in range(20)]
    shift = variance_shift(model, batches)
    assert shift["2"].train.mean().item() == pytest.approx(0.5, rel=0.15)  # x / 2, and the noise doubles its variance
    repaired = recalibrate_batchnorm_(model, batches)
    assert [one.name for one in repaired.layers] == ["2"]
    assert torch.equal(model[0].running_var, torch.full((4,), 4.0))
    torch.testing.assert_close(model[2].running_var, torch.full((4,), 0.25), rtol=0.15, atol=0)
    assert not model[0].training
    model[2].eval()
    with pytest.raises(ValueError, match="all BatchNorm layers are frozen"):
        recalibrate_batchnorm_(model, batches)
