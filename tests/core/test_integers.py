"""Integer arguments: what has an ``__index__`` is an integer, numpy's among them; bools, floats and tensors are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout import analysis
from rotationout import functional as F


class Integer:
    """As numpy's integers: no int, but the index of something."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


X = torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(0))
EYE = torch.eye(6, dtype=torch.float64)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6))


def sequence(layer: nn.Module) -> Tensor:
    output: Tensor = layer(torch.randn(3, 2, 4))[0]
    return output


CALLS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "rotation_out, dim": (lambda n: F.rotation_out(X, 0.5, dim=n), 1),
    "rotation_out, batch_dim": (lambda n: F.rotation_out(X, dim=1, batch_dim=n, draw=ro.Draw(angle_per="example")), 0),
    "rotation_out, block_size": (lambda n: F.rotation_out(X, 0.5, dim=1, block_size=n), 3),
    "rotate, dim": (lambda n: F.rotate(X, ro.sample_rotation(X.shape, dim=n), dim=n), 1),
    "sample_rotation, shape": (lambda n: ro.sample_rotation((4, n)).tan, 6),
    "gaussian_dropout, dim": (lambda n: F.gaussian_dropout(X, 0.5, dim=n, center="batch"), 1),
    "uout, dim": (lambda n: F.uout(X, 0.2, dim=n, center="batch"), 1),
    "centred_dropout, dim": (lambda n: F.centred_dropout(X, 0.5, dim=n), 1),
    "RotationOut, num_features": (lambda n: ro.RotationOut(center="running", num_features=n)(X.mT[..., :6, :6]), 5),
    "RotationOut2d, block_size": (lambda n: ro.RotationOut2d(block_size=n)(X), 3),
    "Uout, dim": (lambda n: ro.nn.Uout(dim=n, center="batch")(X), 1),
    "noise, dims": (lambda n: ro.noise("rotation", 0.5, dims=n)(X), 2),
    "noise, dims of centred Dropout": (lambda n: ro.noise("centred-dropout", 0.5, dims=n)(X), 2),
    "noise, dims of spatial Dropout": (lambda n: ro.noise("spatial", 0.5, dims=n)(X), 2),
    "GhostBatchNorm2d, ghost_batch": (lambda n: ro.nn.GhostBatchNorm2d(6, ghost_batch=n)(X), 2),
    "NoisyLSTM, hidden_size": (lambda n: sequence(ro.nn.NoisyLSTM(4, n)), 6),
    "NoisyLSTM, input_size": (lambda n: sequence(ro.nn.NoisyLSTM(n, 6)), 4),
    "NoisyLSTM, proj_size": (lambda n: ro.nn.NoisyLSTM(4, 6, proj_size=n).proj_size, 2),
    "NoisyGRU, num_layers": (lambda n: sequence(ro.nn.NoisyGRU(4, 4, n)), 2),
    "insert, dim": (lambda n: _inserted(dim=n), -1),
    "Schedule.ramp": (lambda n: ro.Schedule.ramp(ro.RotationOut(), steps=n).noises[0].p, 4),
    "Schedule.early": (lambda n: ro.Schedule.early(ro.RotationOut(), until=n).noises[0].p, 4),
    "Schedule.late": (lambda n: ro.Schedule.late(ro.RotationOut(), start=n).noises[0].p, 4),
    "Schedule.fade_out": (lambda n: ro.Schedule.fade_out(ro.RotationOut(), steps=n, start=n).noises[0].p, 4),
    "predict_samples": (lambda n: ro.predict_samples(network(), torch.ones(4, 6), n, batch_size=n).std, 4),
    "total_moments, rows": (lambda n: analysis.total_moments(nn.Dropout(), EYE[0], EYE, rows=n).covariance, 4),
    "sample_shift": (lambda n: analysis.sample_shift(nn.Dropout(), EYE[0], EYE, outputs=n, layers=n).mean, 4),
    "coadaptation_factor": (lambda n: analysis.coadaptation_factor(nn.Dropout(), n), 4),
    "coadaptation_of, limit": (
        lambda n: analysis.coadaptation_of(network(), list(EYE.float()[:, None]), limit=n)["0"].rows,
        2,
    ),
    "estimate_moments": (lambda n: analysis.estimate_moments(nn.Dropout(), EYE[0], n, vectorized=n).mean, 4),
    "equivalent_drop_rate, samples": (
        lambda n: analysis.batchnorm.equivalent_drop_rate(4, "uniform", samples=n).value,
        4,
    ),
    "f_expect, samples": (lambda n: analysis.batchnorm.f_expect(EYE[0], 4, "uniform", samples=n).value, 4),
}


def _inserted(dim: Any) -> Tensor:
    model = nn.Sequential(nn.Identity())
    ro.insert(model, ro.RotationOut(0.5), after=nn.Identity, dim=dim)
    output: Tensor = model(X)
    return output


@pytest.mark.parametrize("name", CALLS)
def test_an_index_is_an_integer_and_a_bool_is_not(name: str) -> None:
    call, number = CALLS[name]
    found = []
    for given in (number, Integer(number)):
        torch.manual_seed(0)
        found.append(call(given))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, equal_nan=True)
    for wrong in (True, float(number), str(number), torch.tensor(number)):
        with pytest.raises(TypeError, match=r"must be an integer.*, got (bool|float|str|Tensor) "):
            call(wrong)


def test_what_is_kept_is_an_int() -> None:
    kept = (
        ro.nn.Uout(dim=Integer(1)).dim,
        ro.RotationOut2d(block_size=Integer(3)).block_size,
        ro.nn.GhostBatchNorm2d(6, ghost_batch=Integer(2)).ghost_batch,
        ro.nn.NoisyLSTM(Integer(4), Integer(4), Integer(1)).hidden_size,
    )
    assert all(type(number) is int for number in kept), kept


def test_numpys_integers() -> None:
    np = pytest.importorskip("numpy")
    assert ro.nn.Uout(dim=np.int64(1)).dim == 1
    assert ro.RotationOut(center="running", num_features=np.uint8(6)).running_mean.shape == (6,)
    with pytest.raises(TypeError, match="dim must be an integer"):
        ro.nn.Uout(dim=np.True_)
    with pytest.raises(ValueError, match="num_features = 5"):  # the width of a layer whose sizes are numpy's
        ro.insert(nn.Linear(np.int64(6), 6), ro.RotationOut(center="running", num_features=5), before=nn.Linear)
