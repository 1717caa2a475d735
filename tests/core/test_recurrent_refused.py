"""What NoisyLSTM and NoisyGRU say about input that they cannot use."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rotationout as ro
from rotationout.nn import CentredDropout, LockedDropout, NoisyGRU, NoisyLSTM, RotationOut, RotationOut1d

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

N, T, C, H = 4, 6, 5, 7
X = torch.randn(T, N, C)


def pruned(module: nn.Module) -> nn.Module:
    prune.l1_unstructured(module.layers[0].module if isinstance(module, NoisyLSTM) else module, "weight_hh_l0", 0.5)
    return module


def with_inserted_noise() -> nn.Module:
    model = nn.Sequential(nn.LSTM(C, H))
    ro.insert(model, ro.nn.RotationOutSequence(0.2), after="0")
    return model[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NoisyLSTM(C, H, 0), ValueError, "num_layers must be an integer, at least 1, got 0"),
        (lambda: NoisyLSTM(C, H, proj_size=H), ValueError, "proj_size has to be smaller"),
        (lambda: NoisyLSTM(C, H, weight_drop=1.0), ValueError, "p is a drop probability"),
        (
            lambda: NoisyLSTM(C, H, layer_noise=0.3, num_layers=2),
            TypeError,
            r"layer_noise must be a module, e.g. Locked",
        ),
        (lambda: NoisyLSTM(C, H, output_noise=nn.Dropout1d(0.3)), TypeError, "output_noise: Dropout1d does not take"),
        (lambda: NoisyGRU(C, H, input_noise=RotationOut1d(0.3)), TypeError, "does not take features on the last axis"),
        (
            lambda: NoisyGRU(C, H, input_noise=CentredDropout(0.3, dim=1)),
            TypeError,
            "does not take features on the last axis",
        ),
        (
            lambda: NoisyGRU(C, H, input_noise=RotationOut(0.3, pairing_per="example")),
            TypeError,
            "RotationOut takes the first axis to be that of examples; use RotationOutSequence",
        ),
        (
            lambda: NoisyGRU(C, H, input_noise=nn.ModuleList([LockedDropout(0.3)])),
            TypeError,
            "input_noise: ModuleList contains a noise on sequences",
        ),
        (lambda: NoisyGRU(C, H, layer_noise=0.3), TypeError, "layer_noise must be a module, .* got 0.3"),
        (
            lambda: NoisyGRU(C, H, layer_noise=LockedDropout(0.3)),
            UserWarning,
            "layer_noise is between layers, but num_layers is 1: it will never act",
        ),
        (lambda: NoisyLSTM(0, H), ValueError, "input_size must be an integer, at least 1, got 0"),
        (lambda: NoisyLSTM(C, 0), ValueError, "hidden_size must be an integer, at least 1, got 0"),
        (lambda: NoisyLSTM.from_module(nn.GRU(C, H)), TypeError, "NoisyLSTM is made from a nn.LSTM, got GRU"),
        (
            lambda: NoisyLSTM.from_module(nn.utils.parametrizations.weight_norm(nn.LSTM(C, H), "weight_ih_l0")),
            TypeError,
            "^NoisyLSTM.from_module copies parameters, but weight_ih_l0 of this .*LSTM are computed from others",
        ),
        (lambda: NoisyLSTM.from_module(pruned(nn.LSTM(C, H))), TypeError, "but weight_hh_l0 of this LSTM are computed"),
        (
            lambda: pruned(NoisyLSTM(C, H, 2)).to_module(),
            TypeError,
            "^NoisyLSTM.to_module copies parameters, but weight_hh_l0 of this LSTM are computed from others",
        ),
        (
            lambda: NoisyLSTM.from_module(with_inserted_noise()),
            ValueError,
            r"does not copy the noise inserted at this LSTM: take it away \(rotationout.remove\)",
        ),
        (
            lambda: NoisyGRU.from_module(nn.GRU(C, H), noise=None),
            TypeError,
            "^NoisyGRU: .*'noise'; did you mean 'layer_noise'. It takes input_size, .*layer_noise",
        ),
        (lambda: NoisyLSTM(C, H, dropout=0.3), TypeError, r"^NoisyLSTM: .*'dropout'; .* layer_noise=nn.Dropout\(p\)"),
        (
            lambda: NoisyGRU(C, H, 2, True, False, 0.3),
            TypeError,
            "^NoisyGRU: too many positional .*; instead of torch's",
        ),
        (lambda: NoisyLSTM(C, H)(X, torch.zeros(1, N, H)), TypeError, r"hx must be a tuple \(h_0, c_0\), got Tensor"),
        (lambda: NoisyLSTM(C, H)(X, (torch.zeros(1, N, H), None)), TypeError, "c_0 must be a tensor, got NoneType"),
        (
            lambda: NoisyLSTM(C, H, 2)(X, (torch.zeros(1, N, H), torch.zeros(2, N, H))),
            RuntimeError,
            r"h_0 must be \(layers × directions, N, size\) = \(2, 4, 7\), got \(1, 4, 7\)",
        ),
        (
            lambda: NoisyLSTM(C, H, proj_size=3)(X, (torch.zeros(1, N, 3), torch.zeros(1, N, 3))),
            RuntimeError,
            r"c_0 must be .* = \(1, 4, 7\), got \(1, 4, 3\)",
        ),
        (
            lambda: NoisyGRU(C, H)(X[:, 0], torch.zeros(1, 1, H)),
            RuntimeError,
            r"h_0 must be \(layers × directions, size\) = \(1, 7\), got \(1, 1, 7\)",
        ),
        (lambda: NoisyGRU(C, H)(X, torch.zeros(1, T, H)), RuntimeError, r"got \(1, 6, 7\)"),
        (lambda: NoisyGRU(C, H, batch_first=True)(X, torch.zeros(1, N, H)), RuntimeError, r"= \(1, 6, 7\), got"),
        (lambda: NoisyLSTM(C, H)(X[..., :3]), RuntimeError, "Expected 5, got 3"),
        (lambda: NoisyLSTM(C, H)(X.double()), ValueError, "does not match weight dtype"),
        (lambda: NoisyLSTM(C, H)(X.unsqueeze(0)), ValueError, "2D or 3D, got 4D"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_warning_names_the_line_that_makes_the_stack() -> None:
    with pytest.warns(UserWarning, match="it will never act") as told:
        NoisyGRU(C, H, layer_noise=LockedDropout(0.3))
    assert told[0].filename == __file__
