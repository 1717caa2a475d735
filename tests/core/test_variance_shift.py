"""The measured variance shift: against closed forms and BatchNorm's own record, in any layout, and how it is shown.

Sampled variances are compared with closed forms by Student's t over 24 batches: a false alarm has a probability of 1e-6
per channel over seeds, and none for the fixed seed.
"""

import io
import itertools
import json
import sys

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.analysis import LayerShift, variance_shift
from rotationout.analysis import shift as shift_module

LAM = 1.0  # p = 0.5
T_LIMIT = 6.6  # the two-sided 1e-6 quantile of Student's t with 23 degrees of freedom


def gaussian_batches(count: int, rows: int, mean: Tensor, covariance: Tensor) -> list[Tensor]:
    root = torch.linalg.cholesky(covariance)
    return [mean + torch.randn(rows, mean.numel(), dtype=torch.float64) @ root.T for _ in range(count)]


def feature_moments(features: int = 6) -> tuple[Tensor, Tensor]:
    factor = torch.randn(features, features, dtype=torch.float64)
    return torch.linspace(0, 2, features, dtype=torch.float64), factor @ factor.T / features + 0.1 * torch.eye(features)


def single(model: nn.Module, batch: Tensor, name: str) -> Tensor:
    torch.rand(1)  # a call puts the generator back: without this all would draw the same noise
    found = variance_shift(model, [batch])[name]
    return found.train / found.test


def assert_shift(model: nn.Module, name: str, batches: list[Tensor], expected: Tensor) -> None:
    """train / test of every channel is what is expected; the error is from the spread of single batches."""
    ratios = torch.stack([single(model, batch, name) for batch in batches])
    error = ratios.std(0) / len(batches) ** 0.5
    assert len(batches) == 24
    assert ((ratios.mean(0) - expected) / error).abs().max() < T_LIMIT
    assert error.max() < 0.02 * expected.min(), "a test that would pass anything"
    measured = variance_shift(model, batches)[name]
    assert torch.allclose(measured.r, torch.maximum(expected, 1 / expected), rtol=0.1)


@pytest.mark.parametrize("kind", ["dropout", "gaussian", "uout"])
@pytest.mark.parametrize("centred", [True, False])
def test_dropout_a_is_what_label_118_says(kind: str, centred: bool) -> None:
    mean, covariance = feature_moments()
    linear = nn.Linear(6, 5, bias=False).double()
    noise = ro.noise(kind, 0.5, center="batch" if centred else None)
    model = nn.Sequential(linear, noise, nn.BatchNorm1d(5).double())
    w = linear.weight.detach()
    variance, m = (w @ covariance @ w.T).diagonal(), w @ mean
    expected = torch.full((5,), 1 + LAM).double() if centred else 1 + LAM * (1 + m**2 / variance)
    assert_shift(model, "2", gaussian_batches(24, 5000, mean, covariance), expected)


@pytest.mark.parametrize("centred", [True, False])
def test_dropout_b_is_what_label_118_says(centred: bool) -> None:
    mean, covariance = feature_moments()
    linear = nn.Linear(6, 5, bias=False).double()
    noise = ro.nn.CentredDropout(0.5) if centred else nn.Dropout(0.5)
    model = nn.Sequential(noise, linear, nn.BatchNorm1d(5).double())
    w = linear.weight.detach()
    second = covariance.diagonal() + (0 if centred else mean**2)
    expected = 1 + LAM * (w**2 @ second) / (w @ covariance @ w.T).diagonal()
    assert_shift(model, "2", gaussian_batches(24, 5000, mean, covariance), expected)


@pytest.mark.parametrize("centred", [True, False])
def test_a_rotation_before_batchnorm_is_what_label_eq145_says(centred: bool) -> None:
    mean, covariance = feature_moments()
    model = nn.Sequential(ro.RotationOut(0.5, center="batch" if centred else None), nn.BatchNorm1d(6).double())
    variance, square = covariance.diagonal(), 0 * mean if centred else mean**2
    total = (variance + square).sum()
    expected = 1 + LAM / 5 * (total - variance - square) / variance
    assert_shift(model, "1", gaussian_batches(24, 5000, mean, covariance), expected)


def test_the_variance_is_that_which_batchnorm_records_itself() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Conv2d(4, 5, 3))
    model.append(nn.BatchNorm2d(5, momentum=None))
    batches = [torch.randn(4, 3, 8, 8) + k for k in range(5)]
    found = variance_shift(model, batches)
    for batch in batches:
        model(batch)  # in training mode, with the cumulative average of momentum=None
    for name in ("1", "4"):
        assert torch.allclose(found[name].train.float(), model.get_submodule(name).running_var, rtol=1e-5)
    model.eval()
    clean = torch.stack([model[:4](batch).detach().double().transpose(0, 1).flatten(1).var(1) for batch in batches])
    assert torch.allclose(variance_shift(model, batches)["4"].test, clean.mean(0), rtol=1e-5)


def test_without_noise_the_first_layer_has_no_shift_at_all() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4))
    found = variance_shift(model, [torch.randn(20, 3), torch.randn(7, 3)])
    assert torch.equal(found["1"].r, torch.ones(4).double())
    assert found["4"].r.min() > 1


def test_r_is_at_least_one_whichever_mode_has_more_variance() -> None:
    one, two = torch.tensor([1.0, 4.0]).double(), torch.tensor([2.0, 1.0]).double()
    layer = LayerShift("", train=one, test=two, stored=3 * two, calls=1)
    assert layer.r.tolist() == [2, 4]
    assert layer.stored_r.tolist() == [3, 3]


def test_a_short_batch_counts_by_its_degrees_of_freedom() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    long, short = torch.randn(30, 2), 3 * torch.randn(5, 2)
    expected = (29 * long.double().var(0) + 4 * short.double().var(0)) / 33
    assert torch.allclose(variance_shift(model, [long, short])["0"].train, expected, rtol=1e-12)


def test_a_constant_channel_has_no_shift() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[0] = 0  # the bias alone is left, 0.1 say, which fp32 cannot sum exactly
        model[0].bias[0] = 0.1
    layer = variance_shift(model, [torch.randn(1000, 3) for _ in range(3)])["1"]
    assert layer.train[0] == layer.test[0] == 0
    assert layer.r[0] == 1


def test_sync_batchnorm_in_one_process_is_batchnorm() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    batches = [torch.randn(4, 2) for _ in range(3)]
    plain = variance_shift(model, batches)["1"]
    found = variance_shift(nn.SyncBatchNorm.convert_sync_batchnorm(model), batches)["1"]
    assert torch.equal(found.train, plain.train)


def test_layouts_and_precisions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(8, 3, 9, 9)
    plain = variance_shift(model, [x])["1"]
    last = variance_shift(model.to(memory_format=torch.channels_last), [x.to(memory_format=torch.channels_last)])["1"]
    assert torch.allclose(last.train, plain.train, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        low = variance_shift(model, [x])["1"]
    assert low.train.dtype == torch.float64
    assert torch.allclose(low.train, plain.train, rtol=0.02)


def test_sums_are_exact_far_from_the_origin_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift_module, "_PART", 64)
    model = nn.Sequential(nn.BatchNorm1d(3))
    x = (1e4 + torch.randn(500, 3, 7)).float()
    expected = x.double().transpose(0, 1).flatten(1).var(1)
    assert torch.allclose(variance_shift(model, [x])["0"].train, expected, rtol=1e-12)


def test_noise_that_was_inserted_is_seen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    ro.insert(model, ro.nn.CentredDropout(0.5), before=nn.BatchNorm2d)
    found = variance_shift(model, [torch.randn(64, 3, 9, 9) for _ in range(3)])["1"]
    assert torch.allclose(found.train / found.test, torch.tensor(2.0).double(), rtol=0.1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_a_bar_on_a_terminal_and_only_there(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)  # importing it fails
    model, batches = nn.Sequential(nn.BatchNorm1d(2)), [torch.randn(4, 2)]
    for screen, options, shown in (
        (Terminal(), {}, rich),
        (Terminal(), {"show_progress": False}, False),
        (io.StringIO(), {}, False),
    ):
        monkeypatch.setattr(sys, "stderr", screen)
        variance_shift(model, batches, **options)
        assert ("variance shift" in screen.getvalue()) == shown


def test_only_layers_that_are_named() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    batches = [torch.randn(50, 3) for _ in range(3)]
    (layer,) = variance_shift(model, batches, layers=["3"]).layers
    everything = variance_shift(model, batches)
    assert layer.name == "3"
    assert len(everything) == 2
    torch.testing.assert_close((layer.train, layer.test), (everything["3"].train, everything["3"].test))
    for wrong, message in ((["3", "1"], "no BatchNorm layer '1'; it has '0', '3'"), ("3", "a list"), ([], "a list")):
        with pytest.raises(ValueError, match=message):
            variance_shift(model, batches, layers=wrong)


def test_the_table() -> None:
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)
    )
    found = variance_shift(model, [torch.randn(100, 3) for _ in range(3)])
    head, first, second, note = str(found).splitlines()
    assert head.replace("  ", " ").endswith("r mean r max stored r mean stored r max")
    cells = first.split()
    assert cells[:2] == ["2", "4"]
    assert float(cells[2]) == pytest.approx(found["2"].r.mean().item(), rel=1e-3)
    assert float(cells[3]) == pytest.approx(found["2"].r.max().item(), rel=1e-3)
    assert float(cells[5]) == pytest.approx(found["2"].stored_r.max().item(), rel=1e-3)
    assert second.split()[-2:] == ["–", "–"]
    assert "running_var" in note
    with pytest.raises(KeyError, match=r"\['2', '3'\]"):
        found["1"]
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [layer["name"] for layer in read["layers"]] == ["2", "3"]
    assert read["layers"][0]["r"] == found["2"].r.tolist()
    assert read["layers"][1]["stored"] is None


@pytest.mark.parametrize("layers", [2, 12, 13])
def test_the_figure_shows_mean_and_maximum_of_every_layer(layers: int) -> None:
    pytest.importorskip("matplotlib")
    model = nn.Sequential(*itertools.chain(*((nn.Dropout(0.3), nn.BatchNorm1d(3)) for _ in range(layers))))
    found = variance_shift(model, [torch.randn(50, 3)])
    (axes,) = found.draw().axes
    maximum, mean = (line.get_ydata() for line in axes.lines[:2])
    assert list(maximum) == [layer.r.max().item() for layer in found.layers]
    assert list(mean) == [layer.r.mean().item() for layer in found.layers]
    assert axes.get_ylabel() == "variance shift r"
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == ["maximum over channels", "mean over channels"]
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    if layers <= 12:
        assert ticks == [layer.name for layer in found.layers]
    else:
        assert not {layer.name for layer in found.layers[6:]} & set(ticks), "numbers of layers, not names"
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_dead_channel_spoils_no_row() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3))
    nn.init.constant_(model[0].bias[:1], -100.0)
    for _ in range(150):
        model(torch.randn(32, 4))
    (layer,) = variance_shift(model, [torch.randn(32, 4) for _ in range(4)]).layers
    assert layer.stored is not None
    assert layer.stored[0] > layer.test[0] == 0
    assert layer.stored_r is not None
    assert layer.stored_r[0] == layer.r[0] == 1
