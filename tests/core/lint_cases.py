"""For every rule of lint: models in which it speaks, and models like these in which it is silent."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rotationout as ro

IMAGES = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
VECTORS = IMAGES.flatten(1)[:, :8]
TOKENS = IMAGES.flatten(2)[:, :, :8]


class Keeps(nn.Sequential):
    """A part of it stays in testing mode, for fine-tuning say."""

    def __init__(self, part: int) -> None:
        super().__init__(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
        self.part = part

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[self.part].eval()
        return self


class Function(nn.Module):
    def __init__(self, draw: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x, self.training)


class Unused(nn.Module):
    def __init__(self, use: bool) -> None:
        super().__init__()
        self.noise, self.linear, self.use = nn.Dropout(0.5), nn.Linear(8, 2), use

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.noise(x) if self.use else x)


class Recurrent(nn.Module):
    def __init__(self, bidirectional: bool, noise: nn.Module) -> None:
        super().__init__()
        self.noise, self.lstm = noise, nn.LSTM(8, 4, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.noise(x))[0]


class Attention(nn.Module):
    def __init__(self, on_weights: bool) -> None:
        super().__init__()
        self.noise, self.on_weights = ro.RotationOut(0.2), on_weights

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ x.transpose(1, 2)).softmax(-1)
        return self.noise(weights) @ x if self.on_weights else self.noise(weights @ x)


class Norms(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.norm, self.times = nn.BatchNorm1d(8), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.norm(x).relu()
        return x


def converted(first: bool) -> nn.Module:
    """Noise inserted before or after BatchNorm layers were converted, which rebuilds them."""
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8))
    if not first:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ro.insert(model, nn.Dropout(0.5), after="2")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if first else model


class Case(NamedTuple):
    bad: Callable[[], nn.Module]
    good: Callable[[], nn.Module]
    layer: str
    message: str
    example: Tensor
    code: bool = True  # whether it speaks without an example too


def sequence(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*modules)


CASES: dict[str, list[Case]] = {
    "noise-before-normalisation": [
        Case(
            sequence(nn.Linear(8, 8), noise, norm),
            sequence(nn.Linear(8, 8), norm, noise),
            "1",
            message,
            VECTORS,
        )
        for noise, norm, message in [
            (nn.Dropout(0.5), nn.BatchNorm1d(8), r"BatchNorm1d layer 2.*with recalibrate_batchnorm_\(model"),
            (ro.nn.CentredDropout(0.5), nn.BatchNorm1d(8), r"with recalibrate_batchnorm_\(model"),
            (ro.RotationOut(0.5), nn.LayerNorm(8), "LayerNorm layer 2: .* features come out smaller in training"),
            (nn.Dropout(0.5), nn.GroupNorm(2, 8), "GroupNorm layer 2: .* features come out smaller"),
        ]
    ]
    + [
        Case(
            sequence(ro.RotationOut2d(0.5), nn.BatchNorm2d(3)),
            sequence(ro.RotationOut2d(0.5), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)),
            "0",
            "directly before",
            IMAGES,
        ),
        Case(
            sequence(nn.Dropout(0.5), nn.BatchNorm1d(8)),
            sequence(nn.Dropout(0.0), nn.BatchNorm1d(8)),
            "0",
            "BatchNorm1d layer 1",
            VECTORS,
        ),
    ],
    "double-noise": [
        Case(
            sequence(nn.Linear(8, 8), ro.RotationOut(0.2), nn.Dropout(0.2), nn.Linear(8, 2)),
            sequence(nn.Linear(8, 8), ro.RotationOut(0.2), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)),
            "2",
            "directly after the noise 1",
            VECTORS,
        )
    ],
    "block-larger-than-map": [
        Case(
            sequence(ro.RotationOut2d(0.2, block_size=7), nn.MaxPool2d(2), ro.RotationOut2d(0.2, block_size=5)),
            sequence(ro.RotationOut2d(0.2, block_size=9), nn.MaxPool2d(2), ro.RotationOut2d(0.2, block_size=4)),
            "2",
            r"block_size = 5 is larger than the feature map \(4, 4\)",
            IMAGES,
            code=False,
        )
    ],
    "mean-of-one-example": [
        Case(
            sequence(ro.RotationOut2d(0.2)),
            sequence(ro.RotationOut2d(0.2, center="running", num_features=3)),
            "0",
            r"a single example \(input of shape \(1, 3, 9, 9\)\)",
            IMAGES[:1],
            code=False,
        ),
        Case(  # (T, N, C): the batch is second
            sequence(ro.RotationOutSequence(0.2, center="batch")),
            sequence(ro.RotationOutSequence(0.2, center="batch", batch_first=True)),
            "0",
            "a single example",
            TOKENS[:, :1],
            code=False,
        ),
        Case(  # (C, H, W): there is no batch at all
            sequence(ro.RotationOut2d(0.2)),
            sequence(ro.RotationOut2d(0.2, center=None)),
            "0",
            r"of shape \(3, 9, 9\) for a single example, without a batch axis.* use RotationOut1d, or Rot",
            IMAGES[0],
            code=False,
        ),
        Case(
            sequence(ro.RotationOut1d(0.2)),
            sequence(ro.RotationOut(0.2)),
            "0",
            r"of shape \(4, 8\) for a single example.*if the first axis is the batch, use RotationOut \[",
            VECTORS,
            code=False,
        ),
    ],
    "mean-sees-later-steps": [
        Case(
            lambda: Recurrent(False, ro.RotationOutSequence(0.2, center="batch")),
            lambda: Recurrent(True, ro.RotationOutSequence(0.2, center="batch")),
            "noise",
            "lstm is causal",
            TOKENS,
        ),
        Case(
            lambda: Recurrent(False, ro.nn.CentredDropout(0.2)),
            lambda: Recurrent(False, ro.nn.GaussianDropout(0.2)),
            "noise",
            "use center=None",
            TOKENS,
            code=False,
        ),
    ],
    "too-strong": [
        Case(sequence(nn.Dropout(1.0)), sequence(nn.Dropout(0.75)), "0", "drops everything", VECTORS),
        Case(
            sequence(ro.RotationOut(0.9)),
            sequence(ro.RotationOut(0.75)),
            "0",
            "if 0.9 is meant as the probability to keep, write p = 0.1",
            VECTORS,
        ),
        Case(sequence(ro.nn.Uout(0.3)), sequence(ro.nn.Uout(0.25)), "0", "β = 1.13 > 1", VECTORS),
        Case(
            sequence(ro.RotationOut2d(0.7)),
            sequence(ro.RotationOut2d(0.6)),
            "0",
            "λ = 2.33 is more than D − 1 = 2",
            IMAGES,
            code=False,
        ),
        Case(
            sequence(ro.nn.IsotropicNoise(0.7, dim=1)),
            sequence(ro.nn.GaussianDropout(0.7, dim=1)),
            "0",
            "λ = 2.33 is more than D − 1 = 2",
            IMAGES,
            code=False,
        ),
    ],
    "never-in-training": [Case(lambda: Keeps(1), lambda: Keeps(0), "1", "never acts", VECTORS)],
    "detached": [
        Case(lambda: converted(True), lambda: converted(False), "2.rotationout_after", "no longer acts", VECTORS)
    ],
    "never-called": [Case(lambda: Unused(False), lambda: Unused(True), "noise", "not called", VECTORS, code=False)],
    "noise-without-module": [
        Case(
            lambda: Function(lambda x, training: F.dropout(x, 0.5, training)),
            lambda: Function(lambda x, training: x + torch.randn_like(x)),
            "",
            "drops features in a function call",
            VECTORS,
        )
    ],
    "other-axis": [
        Case(
            sequence(nn.Conv2d(3, 4, 1), nn.ReLU(), noise, nn.Conv2d(4, 4, 1)),
            sequence(nn.Conv2d(3, 4, 1), nn.ReLU(), fits, nn.Conv2d(4, 4, 1)),
            "2",
            f"before 2 axes of positions; {right}",
            IMAGES,
        )
        for noise, fits, right in [
            (ro.RotationOut(0.2), ro.RotationOut2d(0.2), "use RotationOut2d"),
            (ro.nn.CentredDropout(0.2), ro.nn.CentredDropout(0.2, dim=1), "set dim=-3"),
            (ro.nn.IsotropicNoise(0.2), ro.nn.IsotropicNoise(0.2, dim=1), "set dim=-3"),
        ]
    ]
    + [
        Case(
            sequence(nn.Linear(8, 4), nn.Tanh(), noise, nn.Linear(4, 4)),
            sequence(nn.Linear(8, 4), nn.Tanh(), fits, nn.Linear(4, 4)),
            "2",
            rf"on the last axis; use {type(fits).__name__} \[",
            VECTORS,
        )
        for noise, fits in [(ro.RotationOut1d(0.2), ro.RotationOut(0.2)), (nn.Dropout1d(0.2), nn.Dropout(0.2))]
    ],
    "rotation-on-attention": [
        Case(lambda: Attention(True), lambda: Attention(False), "noise", "sum to one", TOKENS, code=False)
    ],
    "shared-batchnorm": [Case(lambda: Norms(2), lambda: Norms(1), "norm", "called 2 times", VECTORS)],
    "batchnorm-statistics": [
        Case(sequence(nn.BatchNorm1d(8, **bad)), sequence(nn.BatchNorm1d(8)), "0", message, VECTORS)
        for bad, message in [
            ({"momentum": None}, "averages over all of training"),
            ({"momentum": 0}, "never updates the running statistics"),
            ({"track_running_stats": False}, "an output depends on the rest of its batch"),
        ]
    ],
}
ALL = [(rule, case) for rule, cases in CASES.items() for case in cases]
