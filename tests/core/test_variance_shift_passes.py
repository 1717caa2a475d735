"""The two passes that measure a variance shift: the batches they see, what they leave as it was, what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, Dataset

import rotationout as ro
from rotationout.analysis import variance_shift


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


def test_a_layer_that_only_training_calls_is_left_out() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.extra = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + (self.extra(x) if self.training else 0)

    (layer,) = variance_shift(Auxiliary(), [torch.randn(4, 2)]).layers
    assert layer.name == "norm"
    assert layer.stored is not None
    assert layer.train.dtype == layer.test.dtype == layer.stored.dtype == torch.float64


def test_passes_have_no_gradients_and_leave_no_new_buffers() -> None:
    class Counts(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            self.register_buffer("seen", torch.tensor(len(input)))
            assert not torch.is_grad_enabled()
            return super().forward(input)

    model = nn.Sequential(Counts(2))
    variance_shift(model, [torch.randn(4, 2)])
    assert list(model.state_dict()) == [
        "0.weight",
        "0.bias",
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    ]


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
    with pytest.raises(ValueError, match=r"^0 is lazy"):
        variance_shift(nn.Sequential(nn.LazyBatchNorm1d()), [torch.ones(4, 2)])
    with pytest.raises(ValueError, match="the model is scripted, and cannot be watched"):
        variance_shift(torch.jit.script(nn.BatchNorm1d(2)), [torch.ones(4, 2)])
    unused = nn.Sequential(nn.Linear(2, 2))
    unused[0].norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="was called"):
        variance_shift(unused, [torch.ones(4, 2)])
    with pytest.raises(ValueError, match="limit"):
        variance_shift(nn.Sequential(nn.BatchNorm1d(2)), [torch.ones(4, 2)], limit=0)
    with pytest.raises(TypeError, match="model must be"):
        variance_shift(lambda x: x, [torch.ones(4, 2)])  # type: ignore[arg-type]


def test_a_compiled_model_is_measured_as_it_is_plain() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    batches = [torch.randn(10, 3) for _ in range(3)]
    compiled = torch.compile(model, backend="eager")
    compiled(batches[0])
    plain, found = variance_shift(model, batches), variance_shift(compiled, batches)
    assert torch.equal(found["_orig_mod.2"].train, plain["2"].train)
