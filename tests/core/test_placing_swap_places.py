"""What a rotation must know of its place besides the axis: how many features there are, and how many positions."""

import pytest
import torch
from tests.core.placed_networks import drop_block, swapped
from torch import Tensor, nn

import rotationout as ro


class Head(nn.Module):
    """An auxiliary head that works in training only, and Dropout that maps and vectors share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.shared = nn.Conv2d(3, 8, 3), nn.Dropout(0.2)
        self.aux = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.pooled, self.out = nn.Dropout(0.1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.conv(x))
        vectors = x.mean((2, 3))
        if self.training:
            return self.aux(vectors)
        self.shared(vectors)
        return self.out(self.pooled(x.mean((2, 3), keepdim=True)))


def test_what_a_run_in_eval_mode_does_not_reach_is_decided_by_the_code() -> None:
    model = Head()
    noises, left = swapped(model, "shared", example_inputs=torch.randn(2, 3, 8, 8))
    assert {name: type(noise) for name, noise in noises.items()} == {
        "aux.1": ro.RotationOut,
        "pooled": ro.RotationOut2d,
    }
    assert left == {"shared": "it is used for features on different axes: replace it by hand, or insert noise there"}
    with pytest.warns(
        UserWarning, match=r"1 place: shared\. The run does not say .*; print what swap returns to see why"
    ):
        ro.swap(Head(), example_inputs=torch.randn(2, 3, 8, 8))


def test_maps_of_one_position_have_no_batch_mean_by_default() -> None:
    """As vectors: a last batch of one example must not fail."""
    noises, _ = swapped(Head(), "shared", example_inputs=torch.randn(2, 3, 8, 8))
    assert noises["pooled"].center is None
    noises["pooled"].train()(torch.randn(1, 8, 1, 1))
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.2), nn.AdaptiveMaxPool2d(1), nn.Dropout(0.1))
    words = str(ro.swap(pooled, example_inputs=torch.randn(2, 3, 8, 8)))
    assert "center=None) instead of Dropout(p=0.1, inplace=False) (on maps of one position in the run, so" in words
    assert words.count("one position") == 1
    for choices in ({"center": "batch"}, {"preset": "paper"}):
        noises, _ = swapped(Head(), "shared", example_inputs=torch.randn(2, 3, 8, 8), **choices)
        assert noises["pooled"].center == "batch"
    maps = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.2), nn.Conv2d(8, 2, 1))
    noises, _ = swapped(maps, example_inputs=torch.randn(2, 3, 8, 8))
    assert noises["1"].center == "batch"


def test_running_means_have_the_features_of_their_places() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 2))

    given = model()
    noises, _ = swapped(given, center="running", example_inputs=torch.randn(2, 8))
    assert [noise.running_mean.numel() for noise in noises.values()] == [16, 32]
    given(torch.randn(4, 8))
    with pytest.raises(ValueError, match="needs the number of features of every place: show it an input"):
        ro.swap(model(), center="running")
    with pytest.raises(ValueError, match="num_features = 16 does not fit a Dropout on 32 features; leave it out"):
        ro.swap(model(), center="running", num_features=16, example_inputs=torch.randn(2, 8))
    noises, left = swapped(Head(), "shared", center="running", example_inputs=torch.randn(2, 3, 8, 8))
    assert noises["pooled"].running_mean.numel() == 8
    assert left["aux.1"] == "a running mean is for one number of features, but it was not called"


def test_running_means_of_drop_block() -> None:
    block = drop_block("timm", drop_prob=0.2, block_size=3)
    type(block).forward = lambda self, x: x
    model = nn.Sequential(nn.Conv2d(3, 8, 3), block)
    ro.swap(model, center="running", example_inputs=torch.randn(2, 3, 8, 8))
    assert model[1].running_mean.numel() == 8
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 8, 6, 6)


class Widths(nn.Module):
    """Dropout on 16 and on 32 features, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.shared = nn.Linear(8, 16), nn.Linear(16, 32), nn.Dropout(0.2)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(self.two(self.shared(self.one(x))))


def test_a_running_mean_has_one_number_of_features() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="num_features = 16 does not fit a Dropout on 32 features"):
        ro.swap(Widths(), center="running", num_features=16, example_inputs=x)
    model = Widths()
    noises, left = swapped(model, center="running", example_inputs=x)
    assert noises == {}
    assert left["shared"] == "a running mean is for one number of features, but it is used for 16 and 32"
    model.shared = nn.Identity()
    noises, left = swapped(model, center="running", num_features=16, example_inputs=x)
    assert noises == {}, "the given number may be wrong where nothing was seen"
    assert left["head.1"].endswith("but it was not called")


def test_dropout_of_a_single_feature_is_left_alone() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Conv2d(1, 8, 3), nn.Dropout2d(0.1), nn.Flatten(), nn.Linear(288, 1))
    model.append(nn.Dropout(0.1))
    report = ro.swap(model, torch.randn(4, 1, 8, 8))
    assert [change.name for change in report.changed] == ["2"]
    assert {left.name for left in report.left if "a single feature" in left.why} == {"0", "5"}
    model.train()(torch.randn(4, 1, 8, 8))
