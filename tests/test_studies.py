"""What is measured of trained networks: on a small one, against what is known."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.test_cifar import images

from rotationout.analysis import coadaptation
from rotationout.experiments import networks, results
from rotationout.experiments.classification import Classification, ClassificationConfig
from rotationout.experiments.studies import STUDIES, TrainingImages
from rotationout.recipes import TABLES

ROWS = {config.row: config for config in TABLES["cifar100_resnet110_shift"]()}


def trained(row: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Classification:
    monkeypatch.setitem(networks.NETWORKS, "resnet110", lambda **options: networks.ResNet(1, **options))
    config = ROWS[row].replace(steps=8, milestones=(6,), batch=16, precision="fp32", ramp=0, **changes)
    assert isinstance(config, ClassificationConfig)
    run = Classification(config, (images(64), images(40, seed=1)), torch.device("cpu"))
    while not run.finished:
        run.advance()
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
        assert set(states["corrected"]) == {"top1", "r_mean", "r_max"}
    else:
        assert "cannot be corrected by a closed form" in states["corrected"]["refused"]
    assert set(states["recalibrated"]) == set(states["divided"]) == {"top1", "r_mean", "r_max"}
    json.dumps(found)
    for name, tensor in run.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_coadaptation_is_that_of_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("Dropout-b", monkeypatch)
    found = run.facts["coadaptation"]
    assert found["layers"] == ["stages.2"]
    torch.manual_seed(0)
    network = copy.deepcopy(run.network).eval()
    features: list[torch.Tensor] = []
    network.get_submodule("stages.2").register_forward_hook(lambda module, args, output: features.append(output))
    with torch.no_grad():
        for batch in TrainingImages(run, 100):
            network(batch)
    assert found["value"][0] == pytest.approx(coadaptation(torch.cat(features), dim=1), rel=0.05)


def test_records_hold_studies_and_configs_check_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = trained("Dropout-b, centred", monkeypatch, studies=("coadaptation",))
    path = results.record_path(tmp_path, run.config)
    results.write_record(path, run.config, {**run.result, **run.facts})
    assert json.loads(path.read_text(encoding="utf-8"))["coadaptation"]["value"][0] > 0
    with pytest.raises(ValueError, match="studies must be"):
        run.config.replace(studies=("shift",))
    assert set(STUDIES) == {"variance_shift", "coadaptation"}
