"""The measured variance shift: against closed forms and BatchNorm's own record, and what it leaves behind: nothing.

Sampled variances are compared with closed forms by Student's t over 24 batches: a false alarm has a probability of 1e-6
per channel over seeds, and none for the fixed seed.
"""

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, Dataset

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


class Twice(nn.Module):
    """A layer that is called twice, once by keyword, and a noise of three kinds with state."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = spectral_norm(nn.Conv2d(3, 4, 3))
        self.noise = ro.RotationOut2d(0.3, center="running", num_features=4)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout2d(0.3)
        self.last = nn.Conv2d(4, 4, 1)
        self.head = nn.BatchNorm2d(4, affine=False)
        self.head.alias = self.norm.running_mean  # not registered; stays what it is

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.noise(self.stem(x)))
        return self.head(self.norm(input=self.last(self.drop(y.relu()))))


def test_a_layer_that_is_called_twice_is_averaged_over_its_calls() -> None:
    model = Twice()
    found = variance_shift(model, [torch.randn(8, 3, 6, 6) for _ in range(3)])
    assert [(layer.name, layer.calls) for layer in found.layers] == [("norm", 6), ("head", 3)]
    seen: list[Tensor] = []
    model.norm.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((*args, *kwargs.values())[0]), with_kwargs=True
    )
    model.eval()
    batch = torch.randn(8, 3, 6, 6)
    with torch.no_grad():
        model(batch)
    expected = torch.stack([x.double().transpose(0, 1).flatten(1).var(1) for x in seen]).mean(0)
    assert torch.allclose(variance_shift(model, [batch])["norm"].test, expected)


def everything(model: nn.Module) -> list[Any]:
    """All there is to see of a model and of torch's random numbers: contents, identities, modes, hooks."""
    return [
        [
            (
                name,
                module.training,
                {
                    key: (id(t), t.clone(), t._version)
                    for key, t in (*module._buffers.items(), *module._parameters.items())
                    if t is not None
                },
                sorted(vars(module)),
                {key: list(hooks) for key, hooks in vars(module).items() if key.endswith("_hooks")},
                getattr(module, "momentum", None),
            )
            for name, module in model.named_modules()
        ],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and same(list(one.values()), list(other.values()))
    return bool(one == other)


def test_nothing_is_left_changed() -> None:
    model = Twice()
    ro.insert(model, ro.nn.CentredDropout(0.2), before=["head"])
    model(torch.randn(4, 3, 6, 6))
    model.train().norm.eval()  # a mode of its own
    model.drop.eval()
    before = everything(model)
    pending = model(torch.randn(4, 3, 6, 6)).sum()  # a graph that is still to be differentiated
    after_forward = everything(model)
    assert not same(before, after_forward), "the comparison sees what a forward pass changes"
    found = variance_shift(
        model, [torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    )
    assert same(everything(model), after_forward)
    assert model.head.alias is model.norm.running_mean
    assert found["head"].r.mean() > 1
    pending.backward()


def test_nothing_is_left_changed_after_an_error() -> None:
    model = Twice()
    before = everything(model)
    good, bad = torch.ones(4, 3, 6, 6), torch.ones(4, 2, 6, 6)
    with pytest.raises(RuntimeError, match="channels"):
        variance_shift(model, [good, bad])
    assert same(everything(model), before)

    def fails_in_eval(model: nn.Module, batch: Tensor) -> None:
        if not model.training:
            raise KeyboardInterrupt
        model(batch)

    with pytest.raises(KeyboardInterrupt):
        variance_shift(model, [good], forward=fails_in_eval)
    assert same(everything(model), before)


class Augmented(Dataset[Tensor]):
    """Draws from torch's generator for every example."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.randn(3)


@pytest.mark.parametrize("workers", [0, 1])
def test_both_passes_see_the_same_batches_shuffled_and_augmented_alike(workers: int) -> None:
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4), nn.BatchNorm1d(4))
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    first = variance_shift(model, loader)
    assert len(seen) == 6
    assert torch.equal(torch.stack(seen[:3]), torch.stack(seen[3:]))
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(variance_shift(model, loader)["2"].train, first["2"].train), "the generator was put back"
    torch.rand(1)
    assert not torch.equal(variance_shift(model, loader)["2"].train, first["2"].train)


def test_noise_and_data_do_not_draw_the_same_numbers() -> None:
    class Source:
        def __iter__(self) -> Iterator[Tensor]:
            for _ in range(3):
                yield torch.rand(50, 4, dtype=torch.float64)

    given: set[float] = set()
    drawn: set[float] = set()

    class Draws(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            given.update(x.flatten().tolist())
            drawn.update(torch.rand(50, 4, dtype=torch.float64).flatten().tolist())
            return x

    variance_shift(nn.Sequential(Draws(), nn.BatchNorm1d(4).double()), Source())
    assert len(given) == 600, "the same batches in both passes"
    assert not given & drawn


def test_batches_of_every_kind() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, image: Tensor, scale: float = 1.0) -> Tensor:
            return self.norm(image * scale)

    model, x = Named(), torch.randn(9, 2)
    expected = x.double().var(0)
    forms: list[tuple[Any, Callable[..., Any] | None, float]] = [
        (x, None, 1),
        ((x, torch.zeros(9)), None, 1),
        ([x, torch.zeros(9)], None, 1),
        ({"image": x, "scale": 2.0}, None, 4),
        ({"picture": x, "label": 0}, lambda model, batch: model(batch["picture"]), 1),
    ]
    for batch, forward, factor in forms:
        found = variance_shift(model, [batch], forward=forward)["norm"]
        assert torch.allclose(found.train, factor * expected)
    assert torch.allclose(variance_shift(model, [x, 5 * x], limit=1)["norm"].test, expected)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (iter([torch.ones(4, 2)]), TypeError, "only once; pass the DataLoader itself"),
        ((torch.ones(4, 2) for _ in range(3)), TypeError, "generator, which can be gone through only once"),
        (torch.ones(4, 2), TypeError, r"for a single batch pass \[batch\]"),
        (3, TypeError, "iterable of batches"),
        ([], ValueError, "batches is empty"),
    ],
)
def test_batches_that_are_refused(batches: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        variance_shift(nn.Sequential(nn.BatchNorm1d(2)), batches)


def test_models_that_are_refused() -> None:
    with pytest.raises(ValueError, match="no BatchNorm layer"):
        variance_shift(nn.Linear(2, 2), [torch.ones(4, 2)])
    with pytest.raises(ValueError, match="lazy"):
        variance_shift(nn.Sequential(nn.LazyBatchNorm1d()), [torch.ones(4, 2)])
    unused = nn.Sequential(nn.Linear(2, 2))
    unused[0].norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="was called"):
        variance_shift(unused, [torch.ones(4, 2)])
    with pytest.raises(ValueError, match="limit"):
        variance_shift(nn.Sequential(nn.BatchNorm1d(2)), [torch.ones(4, 2)], limit=0)
    with pytest.raises(TypeError, match="model must be"):
        variance_shift(lambda x: x, [torch.ones(4, 2)])  # type: ignore[arg-type]


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


def test_a_compiled_model_is_measured_as_it_is_plain() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    batches = [torch.randn(10, 3) for _ in range(3)]
    compiled = torch.compile(model, backend="eager")
    compiled(batches[0])
    plain, found = variance_shift(model, batches), variance_shift(compiled, batches)
    assert torch.equal(found["_orig_mod.2"].train, plain["2"].train)


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


@pytest.mark.parametrize("layers", [2, 20])
def test_the_figure_shows_mean_and_maximum_of_every_layer(layers: int) -> None:
    pytest.importorskip("matplotlib")
    model = nn.Sequential(*itertools.chain(*((nn.Dropout(0.3), nn.BatchNorm1d(3)) for _ in range(layers))))
    found = variance_shift(model, [torch.randn(50, 3)])
    (axes,) = found.draw().axes
    maximum, mean = (line.get_ydata() for line in axes.lines[:2])
    assert list(maximum) == [layer.r.max().item() for layer in found.layers]
    assert list(mean) == [layer.r.mean().item() for layer in found.layers]
    assert axes.get_ylabel() == "variance shift r"
