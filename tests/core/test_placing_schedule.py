"""Strength schedules, and noise at test time."""

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro


def course(schedule: ro.Schedule, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(round(schedule.noises[0].p, 9))
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda m: ro.Schedule.constant(m), [0.4, 0.4, 0.4, 0.4, 0.4, 0.4]),
        (lambda m: ro.Schedule.ramp(m, steps=4), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]),
        (lambda m: ro.Schedule.early(m, until=2), [0.4, 0.4, 0.0, 0.0, 0.0, 0.0]),
        (lambda m: ro.Schedule.late(m, start=3), [0.0, 0.0, 0.0, 0.4, 0.4, 0.4]),
        (lambda m: ro.Schedule.fade_out(m, steps=2, start=2), [0.4, 0.4, 0.4, 0.2, 0.0, 0.0]),
        (lambda m: ro.Schedule.fade_out(ro.Schedule.ramp(m, steps=2), steps=2, start=3), [0.2, 0.4, 0.4, 0.4, 0.2, 0]),
        (lambda m: ro.Schedule.ramp(ro.Schedule.late(m, start=1), steps=4), [0.0, 0.2, 0.3, 0.4, 0.4, 0.4]),
        (lambda m: ro.Schedule(m, lambda step: 2.0 if step == 1 else 0.5), [0.2, 0.8, 0.2, 0.2, 0.2, 0.2]),
    ],
)
def test_the_course_of_a_schedule(make: Callable[[nn.Module], ro.Schedule], expected: list[float]) -> None:
    model = nn.Sequential(ro.RotationOut(0.4), nn.Dropout(0.5), ro.nn.LockedDropout(0.2))
    schedule = make(model)
    assert model[2].p == pytest.approx(expected[0] / 2), "each relative to its own p"
    assert course(schedule, 6) == expected
    assert model[1].p == 0.5, "torch's own are left alone"


def test_a_schedule_shows_where_it_is() -> None:
    schedule = ro.Schedule.ramp([ro.RotationOut(0.4)], steps=4)
    schedule.step()
    assert repr(schedule) == "Schedule(step 1, p now 0.2 over 1 layer)"
    both = ro.Schedule.constant([ro.RotationOut(0.4), ro.RotationOut(0.1)])
    assert repr(both) == "Schedule(step 0, p now 0.1 to 0.4 over 2 layers)"


def test_a_schedule_goes_where_a_trainer_is() -> None:
    layer = ro.RotationOut(0.4)
    schedule = ro.Schedule.ramp(layer, steps=4)
    for step, p in ((0, 0.1), (0, 0.1), (2, 0.3), (9, 0.4), (1, 0.2)):
        schedule.step(to=step)
        assert layer.p == pytest.approx(p)
    schedule.step()
    assert (schedule.last_step, layer.p) == (2, pytest.approx(0.3))


def test_a_schedule_reaches_placed_noises_and_its_state_can_be_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    ro.insert(model, ro.RotationOut(0.4), before=nn.Linear)
    schedule = ro.Schedule.ramp(model, steps=4)
    schedule.step()
    assert len(schedule.noises) == 2
    assert model[1].rotationout_before.noise.p == 0.2
    state = copy.deepcopy(schedule.state_dict())
    assert state == {"last_step": 1, "base": [0.4, 0.4]}
    schedule.step()
    other = nn.Sequential(ro.RotationOut(0.1), ro.RotationOut(0.1))
    resumed = ro.Schedule.ramp(other, steps=4)
    resumed.load_state_dict(state)
    assert course(resumed, 3) == [0.2, 0.3, 0.4]
    chosen = ro.Schedule.early([other[0], nn.Dropout(0.5)], until=0)
    assert [noise.p for noise in chosen.noises] == [0.0, 0.0]
    assert other[1].p == 0.4


@pytest.mark.parametrize("kind", [ro.RotationOut, nn.Dropout])
def test_a_new_schedule_starts_from_the_p_that_was_given(kind: Callable[[float], Any]) -> None:
    layer = kind(0.4)
    for _ in range(3):  # as a cell of a notebook that is run again
        schedule = ro.Schedule.ramp([layer], steps=4)
        assert course(schedule, 2) == [0.1, 0.2]
    for same in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert ro.Schedule.constant([same]).state_dict() == {"last_step": 0, "base": [0.4]}
    ro.Schedule.late([layer], start=5)
    assert layer.p == 0.0
    assert course(ro.Schedule.ramp([layer], steps=4), 2) == [0.1, 0.2], "noise that is off can be scheduled again"
    resumed = ro.Schedule.ramp([layer], steps=4)
    resumed.load_state_dict({"last_step": 1, "base": [0.8]})
    assert course(ro.Schedule.ramp([layer], steps=4), 1) == [0.2], "a loaded p is a given one"
    layer.p = 0.5
    assert course(ro.Schedule.ramp([layer], steps=4), 4) == [0.125, 0.25, 0.375, 0.5], "and so is one set by hand"


def test_a_refused_schedule_leaves_the_given_p_alone() -> None:
    shake = ro.nn.ShakeShake(0.2)
    with pytest.raises(ValueError, match="at most"):
        ro.Schedule([ro.RotationOut(0.2), shake], lambda step: 2.0)
    assert ro.Schedule.constant([shake]).base == [0.2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.Schedule.constant(nn.Linear(2, 2)), ValueError, "no noise of rotationout to schedule"),
        (lambda: ro.Schedule.constant([]), ValueError, "no noise to schedule"),
        (lambda: ro.Schedule.constant(0.5), TypeError, r"noises must be a model, .*got float$"),
        (lambda: ro.Schedule.constant([nn.Linear(2, 2)]), TypeError, "modules with a strength p"),
        (
            lambda: ro.Schedule.constant([SimpleNamespace(p=0.5)]),
            TypeError,
            r"modules with a strength p can be scheduled, got SimpleNamespace namespace\(p=0\.5\)",
        ),
        (lambda: ro.Schedule(ro.RotationOut(), 0.5), TypeError, r"factor must be a function .* got float 0\.5"),
        (lambda: ro.Schedule(ro.RotationOut(), lambda step: "a"), TypeError, "factor must be a number"),
        (lambda: ro.Schedule(ro.RotationOut(0.5), lambda step: 2.0), ValueError, r"p at step 0 .* got 1\.0"),
        (lambda: ro.Schedule.ramp(ro.RotationOut(), steps=0), ValueError, "steps must be an integer, at least 1"),
        (lambda: ro.Schedule.early(ro.RotationOut(), until=1.5), TypeError, "until must be an integer"),
        (lambda: ro.Schedule.late(ro.RotationOut(), start=-1), ValueError, "start must be an integer, at least 0"),
        (lambda: ro.Schedule.constant(ro.RotationOut()).step(to=-1), ValueError, "to must be an integer, at least 0"),
        (
            lambda: ro.Schedule.constant(ro.RotationOut()).load_state_dict({"last_step": 0, "base": [0.1, 0.1]}),
            ValueError,
            "state is of 2 noises, but this schedule has 1",
        ),
        (lambda: ro.Schedule.constant(ro.RotationOut()).load_state_dict({"lr": 0}), ValueError, "Schedule, .* got lr$"),
    ],
)
def test_bad_schedules(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def network(**choices: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), ro.RotationOut(0.5, **choices), nn.Linear(8, 3), nn.Dropout(0.3)
    )


def test_sampling_turns_on_noises_only_and_restores_everything() -> None:
    model = network(center="running", num_features=8).train()
    model[0].eval()
    modes = [module.training for module in model.modules()]
    model[3].running_mean.normal_()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x = torch.randn(6, 4)
    with ro.sampling(model):
        assert [module.training for module in model] == [False, False, False, True, False, True]
        assert not torch.equal(model(x), model(x))
    with pytest.raises(RuntimeError, match="stop"), ro.sampling(model):  # noqa: PT012
        model(x)
        raise RuntimeError("stop")
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers()), "no statistics move"
    assert torch.backends.mha.get_fastpath_enabled()
    model(x)
    assert not torch.equal(model[3].running_mean, buffers["3.running_mean"]), "afterwards it learns again"


def test_a_fused_transformer_layer_samples_too() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).eval()
    ro.swap(layer)
    x = torch.randn(2, 5, 8)
    with torch.no_grad(), ro.sampling(layer):
        assert not torch.equal(layer(x), layer(x))


def by_hand(model: nn.Module, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), ro.sampling(model):
        samples = torch.stack([model(x) for _ in range(n)])
    return samples.mean(0), samples.std(0)


def test_predict_samples_is_mean_and_deviation_of_what_sampling_gives() -> None:
    model, x = network().eval(), torch.randn(6, 4)
    torch.manual_seed(1)
    mean, std = by_hand(model, x, 5)
    for batch_size in (None, 6):
        torch.manual_seed(1)
        ours = ro.predict_samples(model, x, 5, batch_size=batch_size)
        torch.testing.assert_close(ours.mean, mean)
        torch.testing.assert_close(ours.std, std)
        assert not ours.mean.requires_grad


class SharedByAll(nn.Module):
    """A noise that is none of ours: one draw for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(()) if self.training else x


def inserted(noise: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    ro.insert(model, noise, after="0")
    return model


def test_samples_of_a_noise_that_a_batch_shares_differ() -> None:
    std = ro.predict_samples(inserted(SharedByAll()), torch.randn(5, 4), 200, batch_size=1000).std
    assert 0.7 < std.mean() < 1.3


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4] * 5 + [2] * 5), (13, [12, 12, 6]), (100, [30])])
def test_calls_stay_within_the_batch_size(batch_size: int, sizes: list[int]) -> None:
    """Samples go together where examples have noise of their own, and then the answer is still right."""
    model, x, seen = network().eval(), torch.randn(6, 4), []
    model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    ro.predict_samples(model, x, 5, batch_size=batch_size)
    assert seen == sizes
    for shared in (
        network(pairing="permutation", pairing_per="batch"),
        network(angle_per="batch"),
        network(center="batch"),
        nn.Sequential(ro.nn.GaussianDropout(0.5, center="batch")),
        inserted(SharedByAll()),
    ):
        seen.clear()
        shared.eval().register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
        ro.predict_samples(shared, x, 5, batch_size=batch_size)
        assert max(seen) <= min(batch_size, 6), "what a call shares would be the same in all samples of it"
    seen.clear()
    own = nn.Sequential(ro.nn.GaussianDropout(0.5))
    own.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    ro.predict_samples(own, x, 5, batch_size=batch_size)
    assert seen == sizes


class TimeFirst(nn.Module):
    """Takes (N, T, C), or (N, C) for one step, and works on (T, N, C)."""

    def __init__(self, noise: nn.Module) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        return self.noise(x.transpose(0, 1)).transpose(0, 1) if x.ndim == 3 else self.noise(x)


@pytest.mark.parametrize("steps", [3, 6, 12, 30])
@pytest.mark.parametrize(
    ("noise", "together"),
    [
        (ro.RotationOut(0.3, pairing_per="example", angle_per="example"), False),
        (ro.RotationOut(0.3), True),
        (ro.nn.LockedDropout(0.3, batch_first=True), False),
        (ro.nn.LockedDropout(0.3), True),
        (ro.nn.RotationOutSequence(0.3, batch_first=True, angle_per="example"), False),
        (ro.nn.RotationOutSequence(0.3, angle_per="example"), True),
    ],
    ids=repr,
)
def test_examples_go_together_only_where_the_noise_finds_them(noise: nn.Module, together: bool, steps: int) -> None:
    """Noise that takes time for the batch has one draw for all copies of an example; whatever their sizes."""
    model, x, seen = TimeFirst(noise), torch.randn(6, steps, 4), []
    model.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    std = ro.predict_samples(model, x, 10, batch_size=30).std
    assert seen[-1] == (30 if together else 6)
    assert (std > 0).float().mean() > 0.9
    assert not noise._forward_hooks


def test_a_single_sequence_has_one_mask_for_all_its_rows() -> None:
    x = torch.ones(4, 3)
    std = ro.predict_samples(TimeFirst(ro.nn.LockedDropout(0.3)), x, 60, batch_size=1000).std
    assert (std > 0).all()


def test_noise_in_a_compiled_model_is_watched_too() -> None:
    torch._dynamo.reset()
    model = torch.compile(TimeFirst(ro.nn.LockedDropout(0.3, batch_first=True)), backend="eager")
    x = torch.ones(3, 5, 4)
    with ro.sampling(model):
        model(x)
    assert (ro.predict_samples(model, x, 60, batch_size=1000).std > 0).all()


def test_samples_that_go_together_have_the_moments_of_single_ones() -> None:
    """A dropped feature of value 1: mean 1, deviation √λ; five standard errors at most."""
    model, n = nn.Sequential(nn.Dropout(0.2)), 4000
    x = torch.ones(3, 2)
    mean, std = ro.predict_samples(model, x, n, batch_size=1000)
    assert (mean - 1).abs().max() < 5 * (0.25 / n) ** 0.5
    torch.testing.assert_close(std, torch.full((3, 2), 0.5), rtol=0.06, atol=0)


class Answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, ids: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"logits": self.drop(ids.to(torch.bfloat16)) * scale}


def test_other_inputs_and_outputs() -> None:
    model = Answers()
    inputs = {"ids": torch.ones(3, 4), "scale": 2.0}
    mean, _ = ro.predict_samples(model, inputs, 3, batch_size=2, output=lambda out: out["logits"])
    assert mean.shape == (3, 4)
    assert mean.dtype == torch.float32
    assert ro.predict_samples(network(), torch.ones(3, 4), 2, batch_size=1).mean.shape == (3, 3)
    assert ro.predict_samples(model, (torch.ones(3, 4),), 3, output=lambda out: out["logits"]).std.shape == (3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.predict_samples(network(), torch.ones(2, 4), 1), ValueError, "n must be an integer, at least 2"),
        (lambda: ro.predict_samples(network(), torch.ones(2, 4), 2, batch_size=0), ValueError, "batch_size must be"),
        (lambda: ro.predict_samples(network(), torch.ones(0, 4), 2), ValueError, r"at least 1, got \(0, 4\)"),
        (lambda: ro.predict_samples(network(), (torch.ones(2), torch.ones(3)), 2), ValueError, r"of one size in all"),
        (
            lambda: ro.predict_samples(network(), "text", 2),
            TypeError,
            "at least one tensor, got str; give one batch of a DataLoader",
        ),
        (
            lambda: ro.predict_samples(network(), nn.utils.rnn.pack_sequence([torch.ones(3, 4)]), 2),
            TypeError,
            "at least one tensor, got PackedSequence; give .* convert arrays and packed sequences first",
        ),
        (lambda: ro.predict_samples(network(), {}, 2), TypeError, "got nothing"),
        (lambda: ro.predict_samples(Answers(), torch.ones(2, 4), 2), TypeError, r"got dict; pick it with output"),
        (
            lambda: ro.predict_samples(network(), torch.ones(2, 4), 2, output=torch.fft.fft),
            TypeError,
            r"must return a real tensor .* 2 examples, got torch\.complex64 \(2, ",
        ),
        (
            lambda: ro.predict_samples(network(), torch.ones(2, 4), 2, output=lambda out: out[0]),
            TypeError,
            r"a row for each of its 2 examples, got torch\.float32 \(",
        ),
        (
            lambda: ro.predict_samples(network(), torch.ones(2, 4), 2, output=torch.sum),
            TypeError,
            r"a row for each of its 2 examples, got torch\.float32 \(\)",
        ),
        (lambda: ro.predict_samples(nn.Linear(4, 4), torch.ones(2, 4), 2), ValueError, "no noise to sample"),
    ],
)
def test_bad_samples(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "make",
    [
        ro.Schedule.constant,
        lambda noises: ro.Schedule.ramp(noises, steps=3),
        lambda noises: ro.Schedule.early(noises, until=2),
        lambda noises: ro.Schedule.late(noises, start=2),
        lambda noises: ro.Schedule.fade_out(ro.Schedule.ramp(noises, steps=2), steps=2, start=1),
    ],
)
def test_schedules_go_to_other_processes(make: Callable[[nn.Module], ro.Schedule]) -> None:
    """By pickle, together with the noises that they change."""
    layer = ro.RotationOut(0.5)
    schedule, copied = make(layer), pickle.loads(pickle.dumps(make(ro.RotationOut(0.5))))
    for _ in range(4):
        schedule.step()
        copied.step()
        assert copied.noises[0].p == layer.p


def test_a_report_of_several_noises_in_one_place_or_of_none_is_scheduled() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    both = nn.Sequential(ro.RotationOut(0.2), ro.nn.GaussianDropout(0.1))
    schedule = ro.Schedule.ramp(ro.insert(model, both, before=nn.Linear), steps=4)
    assert [noise.p for noise in schedule.noises] == pytest.approx([0.05, 0.025] * 2)
    ro.remove(model)
    schedule = ro.Schedule.ramp(ro.insert(model, ro.noise("none"), before=nn.Linear), steps=4)
    schedule.step()
    assert repr(schedule) == "Schedule(step 1, p now 0 over 0 layers)"
    ro.remove(model)
    with pytest.raises(TypeError, match="only modules with a strength p can be scheduled, got Tanh"):
        ro.Schedule.ramp(ro.insert(model, nn.Tanh(), before=nn.Linear), steps=4)
