"""Every noise of the registry through one battery, against what is claimed of it in `noise_cases.py`.

Statistical comparisons raise a false alarm with probability at most 1e-6 over seeds (and none for the fixed seed).
"""

import copy
import pickle

import pytest
import torch
from tests.core.noise_cases import CASES, TORCHVISION, Case, parameters
from tests.core.test_statistics import chi2_limit, chi2_of_mean
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import rotationout as ro
from rotationout.nn.base import Noise
from rotationout.registry import KINDS

every_noise = pytest.mark.parametrize(("kind", "case"), parameters())


def make(kind: str, case: Case, p: float | None = None) -> nn.Module:
    return ro.noise(kind, case.p if p is None else p, **case.options())


def features(case: Case, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(case.shape, dtype=torch.float64).to(dtype) + 0.5


def seeded(case: Case, module: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(11)
    return case.call(module, x)


def sampled(kind: str, case: Case, x: Tensor) -> Tensor:
    """Many outputs for one input, a row each."""
    module = make(kind, case)
    case.call(module, x)  # a running mean has now seen x
    if kind in TORCHVISION or not case.transforms:  # they cannot be vmapped; a bias shows soon
        calls = range(4000 if KINDS[kind].unbiased else 400)
        return torch.stack([case.call(module, x).detach() for _ in calls]).flatten(1)
    return torch.vmap(lambda _: case.call(module, x), randomness="different")(torch.empty(4000)).flatten(1)


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(KINDS), "say in noise_cases.py what is claimed of a new kind"


@every_noise
def test_no_noise_in_eval_mode_and_at_p_0(kind: str, case: Case) -> None:
    x = features(case)
    module = make(kind, case)
    assert kind == "none" or not torch.allclose(case.call(module, x), case.still(x))
    for y in (case.call(module.eval(), x), case.call(make(kind, case, p=0.0), x)):
        assert torch.equal(y, case.still(x))


@every_noise
def test_mean_and_variance(kind: str, case: Case) -> None:
    x = features(case)
    lam = case.p / (1 - case.p)
    outputs, still = sampled(kind, case, x), case.still(x).flatten()
    if KINDS[kind].unbiased:
        statistic, degrees = chi2_of_mean(outputs, still)
        assert statistic < chi2_limit(max(degrees, 1)), "E[x̃ | x] is not x"
    else:
        error = outputs.std(0) / len(outputs) ** 0.5
        assert ((outputs.mean(0) - still).abs() > 10 * error).any(), "E[x̃ | x] is x, though it is not claimed"
    if case.variance is None:
        assert not KINDS[kind].matched, "a noise whose strength is matched has a known variance"
        return
    variance = lam * case.share * case.variance(case.about(x))
    statistic, degrees = chi2_of_mean((outputs - still) ** 2, variance.flatten())
    assert statistic < chi2_limit(max(degrees, 1)), "Var[x̃ | x] is not what is claimed"
    if KINDS[kind].matched:
        torch.testing.assert_close(variance.sum(), lam * case.share * case.about(x).square().sum())


@every_noise
def test_gradients_on_a_fixed_draw(kind: str, case: Case) -> None:
    module, x = make(kind, case).double(), features(case, torch.float64).requires_grad_()
    if getattr(module, "running_mean", None) is not None:
        module.momentum = 1e-300  # the mean about which x is disturbed is not a function of x

    def fixed(x: Tensor) -> Tensor:
        return seeded(case, module, x)

    assert gradcheck(fixed, x, fast_mode=True, raise_exception=False) == case.derivative
    assert gradgradcheck(fixed, x, fast_mode=True, raise_exception=False) == case.second


@every_noise
def test_state_dicts_copies_and_pickles(kind: str, case: Case) -> None:
    x = features(case)
    module = make(kind, case)
    case.call(module, x + 1)
    twin = make(kind, case)
    twin.load_state_dict(module.state_dict())
    twins = [twin, copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    expected = seeded(case, module, x)
    for twin in twins:
        assert torch.equal(seeded(case, twin, x), expected)
        assert repr(twin) == repr(module)


@every_noise
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(kind: str, case: Case, dtype: torch.dtype) -> None:
    """Output and gradient in the input's precision, the same noise as in fp64 within a few roundings."""
    x = features(case, dtype)
    results = []
    for precise in (x.double(), x):
        module = make(kind, case).to(precise.dtype)
        leaf = precise.clone().requires_grad_()
        y = seeded(case, module, leaf)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        results.append((y, gradient))
    for exact, ours in zip(*results, strict=True):
        assert ours.dtype == dtype
        error = 6 * torch.finfo(dtype).eps * exact.abs().max().item()
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=error)


@every_noise
def test_a_schedule_changes_the_noise_and_is_noise_knows_it(kind: str, case: Case) -> None:
    module, x = make(kind, case), features(case)
    assert ro.registry.is_noise(module) == (kind != "none")
    if kind == "none":
        return
    assert module.p == case.p
    module.p = 0.0
    torch.testing.assert_close(case.call(module, x), case.still(x))
    module.p = 0.2
    assert not torch.allclose(case.call(module, x), case.still(x))
    if isinstance(module, Noise):
        assert module._scale.dtype == torch.float32
        with pytest.raises(ValueError, match="p is a drop probability"):
            module.p = 1.0


def disturbed_as_told(kind: str, case: Case, module: nn.Module) -> bool:
    """Whether a module, however it came to be, gives what a fresh one gives with the same seed."""
    x = features(case)
    return torch.equal(seeded(case, module, x), seeded(case, make(kind, case), x))


@every_noise
def test_strength_is_that_of_p_however_a_model_is_loaded(kind: str, case: Case) -> None:
    """Built on meta, given its weights in place of the meta ones, and run without being moved: as transformers does."""
    if kind.endswith("weight-drop"):
        pytest.skip("its module has weights, which the test would have to load")
    with torch.device("meta"):
        module = make(kind, case)
    module.load_state_dict(make(kind, case).state_dict(), assign=True)
    assert disturbed_as_told(kind, case, module)
    if isinstance(module, Noise):
        state = set(module.state_dict())
        assert {name for name, _ in module.named_buffers()} == state, "what is loaded nowhere would be anything"


@every_noise
def test_a_noise_goes_where_its_input_is(kind: str, case: Case) -> None:
    """Meta stands for another device."""
    module = make(kind, case)
    if not isinstance(module, Noise) or not case.transforms or list(module.buffers()):
        pytest.skip("torch's own, or it has a running mean on one device")
    assert case.call(module, features(case).to("meta")).is_meta
    assert disturbed_as_told(kind, case, module)


def test_what_copies_buffers_leaves_the_strength_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ro.RotationOut(0.3))
    schedule = ro.Schedule.late(model, start=2)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(5):
        schedule.step()
        averaged.update_parameters(model)
    noise = averaged.module[1]
    assert (noise.p, noise._scale.item()) == (0.0, 0.0), "as it was when it was copied"
    assert model[1].p == 0.3


def test_a_call_that_must_leave_nothing_behind_leaves_nothing_behind() -> None:
    """On a device without values, and of a skeleton that is given the weights of others, as torch documents it."""
    model, x = nn.Sequential(nn.Linear(6, 6), ro.RotationOut(0.3)), torch.randn(8, 6)
    scale = model[1]._scale
    model[1](x.to("meta"))
    torch.func.grad(lambda x: model[1](x).sum())(x.to("meta"))
    assert model[1]._scale is scale
    weights, skeleton = dict(model.named_parameters()), copy.deepcopy(model).to("meta")

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(skeleton, weights, (x,)).square().sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0), randomness="different")(weights, x)
    assert gradients["0.weight"].shape == (8, 6, 6)
    assert torch.equal(copy.deepcopy(skeleton)[1]._scale, scale)
