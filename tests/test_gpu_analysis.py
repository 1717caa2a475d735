"""Variance shift, repairs and lint on a GPU: in half precision, channels_last, and with the generators put back."""

import pytest
import torch
from torch import nn

import rotationout as ro
from rotationout.analysis import correct_batchnorm_, lint, recalibrate_batchnorm_, variance_shift

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"


def network(noise: nn.Module) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), noise, nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8)
    )
    return model.to(DEVICE, memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("noise", [ro.nn.CentredDropout(0.5, dim=1), ro.RotationOut2d(0.5)])
def test_measured_repaired_and_put_back(noise: nn.Module, dtype: torch.dtype | None) -> None:
    model = network(noise)
    batches = [torch.randn(64, 3, 16, 16) for _ in range(40)]  # on the CPU: they are moved
    with torch.autocast(DEVICE, dtype, enabled=dtype is not None):
        with torch.no_grad():
            for batch in batches:
                model(batch.to(DEVICE))
        states = torch.get_rng_state(), torch.cuda.get_rng_state()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = variance_shift(model, batches)
        again = variance_shift(model, batches)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), states[0])
        assert torch.equal(torch.cuda.get_rng_state(), states[1])
        assert torch.allclose(again["2"].train, found["2"].train, rtol=1e-6), "the noise was drawn from the same state"
        assert 1.8 < (found["2"].train.sum() / found["2"].test.sum()) < 2.2
        correct_batchnorm_(model, batches)
        assert variance_shift(model, batches)["2"].stored_r.log().max() < 0.2
        recalibrate_batchnorm_(model, batches)
        assert all(layer.stored_r.max() < 1.05 for layer in variance_shift(model, batches).layers)
        assert [finding.rule for finding in lint(model, batches[0].to(DEVICE))] == ["noise-before-normalisation"]


def test_weights_and_functions_between_are_seen_on_the_device_too() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(DEVICE)
    batches = [torch.randn(8, 3, 9, 9)]
    model(batches[0].to(DEVICE))
    with pytest.raises(ValueError, match="Dropout-b"):
        correct_batchnorm_(model, batches)
