"""Rotations in the place of nn.Dropout1d, 2d and 3d, whose tensors may have other axes than their names say."""

import pytest
import torch
from tests.core.test_placing_swap import swapped
from torch import nn

import rotationout as ro

SEQUENCES = pytest.mark.filterwarnings("ignore:dropout2d. Received a")
"""Torch itself warns of three axes, and of two."""


class Branches(nn.Module):
    """A convolution and Dropout2d with a forward of their own."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.drop = nn.ModuleList(layers), nn.Dropout2d(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(layer(x))
        return x


@SEQUENCES
def test_dropout2d_on_sequences_turns_their_channels() -> None:
    """Torch takes three axes for (N, C, L), not for (C, H, W): examples must not be mixed."""
    model, x = Branches(nn.Conv1d(4, 8, 3)), torch.randn(5, 4, 9, requires_grad=True)
    noises, left = swapped(model, example_inputs=x.detach(), center=None)
    assert (type(noises["drop"]), left) == (ro.RotationOut1d, {})
    (gradient,) = torch.autograd.grad(model(x)[0].sum(), x)
    assert not gradient[1:].any()
    maps = Branches(nn.Conv2d(4, 8, 3))
    assert type(swapped(maps, example_inputs=torch.randn(2, 4, 5, 5))[0]["drop"]) is ro.RotationOut2d


@SEQUENCES
@pytest.mark.parametrize(
    ("model", "inputs", "why"),
    [
        (Branches(nn.Conv1d(4, 8, 3)), None, "may be on sequences"),
        (Branches(nn.Conv2d(4, 8, 3), nn.Flatten(2), nn.Conv1d(8, 8, 3)), None, "may be on sequences"),
        (Branches(nn.Embedding(9, 4)), None, "may be on sequences"),
        (Branches(nn.Linear(4, 8)), torch.randn(3, 4), "it is used for tensors with 2 axes"),
        (
            Branches(nn.Conv2d(4, 8, 3), nn.Flatten(2), nn.Conv1d(8, 8, 3)),
            torch.randn(2, 4, 5, 5),
            "it is used for tensors with 3 and 4 axes",
        ),
    ],
)
def test_dropout2d_stays_if_it_may_be_on_sequences(model: nn.Module, inputs: object, why: str) -> None:
    noises, left = swapped(model, *(["drop"] if inputs is None else []), example_inputs=inputs)
    assert noises == {}
    assert why in left["drop"]


def test_dropout2d_between_layers_that_tell() -> None:
    steps = [nn.Conv1d(4, 8, 3), nn.Dropout2d(0.1), nn.Flatten(), nn.Unflatten(1, (8, 1, 1)), nn.Dropout2d(0.2)]
    noises, left = swapped(nn.Sequential(*steps, nn.Conv2d(8, 8, 1)))
    assert {name: type(noise) for name, noise in noises.items()} == {"1": ro.RotationOut1d, "4": ro.RotationOut2d}
    assert left == {}
    assert type(swapped(Branches(nn.Conv2d(4, 8, 3)))[0]["drop"]) is ro.RotationOut2d


@SEQUENCES
def test_a_dropout2d_on_sequences_tells_a_dropout_beside_it() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Dropout2d(0.1), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    noises, _ = swapped(Beside(), example_inputs=torch.randn(2, 4, 5))
    assert {type(noise) for noise in noises.values()} == {ro.RotationOut1d}


@SEQUENCES
@pytest.mark.filterwarnings("ignore:dropout1d. Received a", "ignore:dropout3d. Received a")
@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
@pytest.mark.parametrize("shown", [False, True])
def test_dropout_of_maps_on_vectors_stays(kind: type[nn.Module], shown: bool) -> None:
    """A rotation would take the examples for features, and mix them."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), kind(0.3), nn.Linear(8, 2)), torch.randn(6, 4)
    noises, left = swapped(model, example_inputs=x if shown else None)
    assert noises == {}
    assert ("it is used for tensors with 2 axes" if shown else "it is for maps, but next to a layer") in left["2"]


@pytest.mark.filterwarnings("ignore:dropout1d. Received a", "ignore:dropout3d. Received a")
@pytest.mark.parametrize(("dims", "kind"), [(1, ro.RotationOut1d), (3, ro.RotationOut3d)])
def test_dropout1d_and_3d_need_maps_of_their_own_dimension(dims: int, kind: type[nn.Module]) -> None:
    for shape, expected in (((2, 4, *[3] * dims), [kind]), ((2, 4, *[3] * (dims - 1)), [])):
        model = nn.Sequential(nn.Identity(), getattr(nn, f"Dropout{dims}d")(0.3))
        noises, _ = swapped(model, example_inputs=torch.randn(shape))
        assert [type(noise) for noise in noises.values()] == expected
