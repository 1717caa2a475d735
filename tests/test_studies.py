"""What is measured of trained networks: on a small one, against what is known."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cifar_images import images
from tests.training_runs import finish

from rotationout.analysis import coadaptation
from rotationout.experiments import networks, results, studies
from rotationout.experiments.classification import Classification, ClassificationConfig
from rotationout.experiments.studies import STUDIES, TrainingImages
from rotationout.nn import convert_batchnorm
from rotationout.recipes import TABLES

ROWS = {config.row: config for name in ("resnet110_shift", "ghost") for config in TABLES[f"cifar100_{name}"]()}
MEASURED = {"top1", "r_mean", "r_max", "stored_r_mean", "stored_r_max"}


def trained(row: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Classification:
    for name in ("resnet20", "resnet110"):
        monkeypatch.setitem(networks.NETWORKS, name, partial(networks.ResNet, 1))
    config = ROWS[row].replace(**{"steps": 8, "milestones": (6,), "batch": 16, "precision": "fp32", **changes})
    assert isinstance(config, ClassificationConfig)
    run = Classification(config, (images(64), images(40, seed=1)), torch.device("cpu"))
    finish(run)
    return run


@pytest.mark.parametrize(("row", "layer"), [("Dropout-a, centred", "bn1"), ("RotationOut-b", "bn2")])
def test_shift_and_repairs(row: str, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(row, monkeypatch)
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    found = run.facts["variance_shift"]
    assert found["layers"] == [f"stages.2.{layer}"]
    states = found["states"]
    assert states["trained"]["top1"] == pytest.approx(100 * run.curves["test_curve"][-1])
    assert states["trained"]["r_mean"][0] > 1.2
    if layer == "bn1":  # λ = 1 about the mean doubles every variance, if test mode has what came before it right
        assert states["recalibrated"]["r_mean"][0] == pytest.approx(2, rel=0.15)
        assert set(states["corrected"]) == MEASURED
        # There is one block: what comes before it is not repaired, and what is stored is halved.
        assert 2 * states["divided"]["stored_r_mean"][0] == pytest.approx(states["trained"]["stored_r_mean"][0])
        assert 2 * states["corrected"]["stored_r_mean"][0] == pytest.approx(states["trained"]["r_mean"][0], rel=1e-3)
    else:
        assert "cannot be corrected by a closed form" in states["corrected"]["refused"]
    assert set(states["recalibrated"]) == set(states["divided"]) == MEASURED
    assert states["recalibrated"]["stored_r_max"][0] < 1.05, "the statistics are those of testing mode"
    json.dumps(found)
    for name, tensor in run.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_without_noise_there_is_no_shift_and_nothing_to_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("none", monkeypatch)
    states = run.facts["variance_shift"]["states"]
    assert states["recalibrated"]["r_max"][0] < 1.2, "means over batches are not each batch's: that is all"
    assert states["divided"] == states["trained"]
    assert "refused" in states["corrected"]


@pytest.mark.parametrize(("row", "norm"), [("BatchNorm of 8", "batch"), ("CrossNorm of 8", "cross")])
def test_modes_of_testing(row: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(row, monkeypatch, steps=4)
    found = run.facts["test_modes"]
    assert found["batches"] == 4
    assert found["top1"]["running"][norm] == pytest.approx(100 * run.curves["test_curve"][-1])
    modes = {"batch", "poly", "poly_measured"} if norm == "batch" else {"cross"}
    assert set(found["top1"]["running"]) == set(found["top1"]["averaged"]) == modes
    # Positions of a map are alike, but not all the same: more than 8 values and fewer than 8 maps of them.
    for size, positions in zip(found.get("measured_sizes", []), [32**2] * 3 + [16**2] * 2 + [8**2] * 2, strict=False):
        assert 8 <= size <= 8 * positions
    assert len(found.get("measured_sizes", [])) == (7 if norm == "batch" else 0)
    json.dumps(found)


def test_averaged_statistics_are_means_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first layer, whose input depends on no other's: seen where accuracy would be."""
    run = trained("BatchNorm of 8", monkeypatch, steps=1)
    monkeypatch.setattr(studies, "_accuracy", lambda run, network: network.stem[1].running_mean[0].item())
    found = STUDIES["test_modes"](run)["top1"]
    with torch.no_grad():
        means = [run.network.stem[0](batch)[:, 0].mean().item() for batch in TrainingImages(run, 4)]
    assert found["averaged"]["batch"] == found["averaged"]["poly"] == pytest.approx(100 * sum(means) / 4, rel=1e-4)
    assert found["running"]["batch"] == pytest.approx(100 * run.network.stem[1].running_mean[0].item())
    assert found["running"]["batch"] != pytest.approx(found["averaged"]["batch"], rel=0.1)


def test_poly_is_told_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps whose positions are all the same hold as many values as examples, and no more."""
    run = trained("BatchNorm of 8", monkeypatch, steps=1)
    network = torch.nn.Sequential(convert_batchnorm(torch.nn.BatchNorm2d(3), "poly", batch_size=100))
    flat = torch.randn(16, 3, 1, 1).expand(-1, -1, 4, 4)
    assert studies._measured(run, network, flat, 8)[0].batch_size == pytest.approx(8)
    free = torch.randn(500, 3, 4, 4)
    assert 64 < studies._measured(run, network, free, 8)[0].batch_size <= 8 * 16
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(2, 2)
    assert studies._measured(run, network, flat * signs, 8)[0].batch_size == 8 * 16, "their means are all zero"
    assert studies._measured(run, network, torch.ones(16, 3, 4, 4), 8)[0].batch_size == 8, "and these do not vary"


def test_accuracy_is_that_of_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever mode a network is given, as after its statistics were averaged; nothing of it changes."""
    run = trained("Dropout-b, centred", monkeypatch, steps=2)
    network = studies._copied(run).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert studies._accuracy(run, network) == run.curves["test_curve"][-1]
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_layers_that_noise_reaches_in_a_wide_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directly by a convolution: what follows the second one is a sum. Noise before a layer raises its variance."""
    monkeypatch.setitem(networks.NETWORKS, "wrn28_10", partial(networks.WideResNet, 1, 1))
    row = {config.row: config for config in TABLES["cifar100_wrn28_10_authors"]()}["dropout keep 0.6"]
    config = row.replace(steps=8, milestones=(6,), batch=16, precision="fp32")
    run = Classification(config, (images(64), images(40, seed=1)), torch.device("cpu"))
    finish(run)
    found = STUDIES["variance_shift"](run)
    assert found["layers"] == ["stages.1.bn2", "stages.2.bn2"]
    assert min(found["states"]["recalibrated"]["r_mean"]) > 1.2


def test_coadaptation_is_that_of_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("Dropout-b", monkeypatch)
    found = run.facts["coadaptation"]
    assert found["layers"] == ["stages.2"]
    network = copy.deepcopy(run.network).eval()
    features: list[torch.Tensor] = []
    network.get_submodule("stages.2").register_forward_hook(lambda module, args, output: features.append(output))
    with torch.no_grad():
        for batch in TrainingImages(run, 100):
            network(batch)
    assert found["value"][0] == pytest.approx(coadaptation(torch.cat(features), dim=1), rel=1e-4)


def test_records_hold_studies_and_configs_check_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = trained("Dropout-b, centred", monkeypatch, studies=("coadaptation",))
    path = results.record_path(tmp_path, run.config)
    results.write_record(path, run.config, {**run.result, **run.facts})
    assert json.loads(path.read_text(encoding="utf-8"))["coadaptation"]["value"][0] > 0
    with pytest.raises(ValueError, match="studies must be"):
        run.config.replace(studies=("shift",))
    assert set(STUDIES) == {"variance_shift", "coadaptation", "test_modes"}


def test_a_study_that_fails_does_not_cost_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: Classification) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    run = trained("Dropout-b", monkeypatch)
    monkeypatch.setitem(STUDIES, "variance_shift", broken)
    facts = run.facts
    assert facts["variance_shift"] == {"failed": "RuntimeError: out of memory"}
    assert facts["coadaptation"]["value"][0] > 0


def test_studies_use_torchs_kernels_and_leave_the_run_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("RotationOut-b", monkeypatch, kernels="fused")
    fused = [module.fused for module in run.network.modules() if hasattr(module, "fused")]
    plain = [module.fused for module in studies._copied(run).modules() if hasattr(module, "fused")]
    assert all(fused)
    assert plain == [False] * len(fused)
    assert len(fused) > 3
    assert all(module.fused for module in run.network.modules() if hasattr(module, "fused"))
