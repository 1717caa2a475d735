"""torch.jit.trace: a traced layer is the layer, in training with fresh noise for batches of any size."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")

Make = Callable[[int], Tensor]


def vectors(rows: int) -> Tensor:
    return torch.randn(rows, 16)


def odd(rows: int) -> Tensor:
    return torch.randn(rows, 15)


def many(rows: int) -> Tensor:
    return torch.randn(2000 * rows, 16)


def maps(rows: int) -> Tensor:
    return torch.randn(rows, 16, 5, 4).to(memory_format=torch.channels_last)


CASES: list[tuple[nn.Module, Make]] = [
    (ro.RotationOut(), vectors),
    (ro.RotationOut(), odd),
    (ro.RotationOut(), many),
    (ro.RotationOut(preset="paper"), vectors),
    (ro.RotationOut(preset="paper"), many),
    (ro.RotationOut(pairing_per="batch", law="gaussian_angle", center="batch"), vectors),
    (ro.RotationOut(center="running", num_features=16), vectors),
    (ro.RotationOut2d(), maps),
    (ro.RotationOut2d(pairing="structured", block_size=3, coverage=0.5), maps),
    (ro.RotationOutSequence(), lambda rows: torch.randn(5, rows, 16)),
    (ro.nn.Uout(center="batch"), vectors),
    (ro.nn.LockedDropout(), lambda rows: torch.randn(5, rows, 16)),
]


@pytest.mark.parametrize(("layer", "make"), CASES)
def test_a_layer_traced_in_training_draws_the_noise_of_the_layer(layer: nn.Module, make: Make) -> None:
    layer.train()
    traced = torch.jit.trace(layer, make(4), check_trace=False)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    for rows in (3, 7):
        x = make(rows).requires_grad_()
        ahead = torch.randn_like(x)
        found = []
        for call in (traced, layer):
            layer.load_state_dict(state)
            torch.manual_seed(0)
            output = call(x)
            found.append(
                (output, *torch.autograd.grad(output, x, ahead), *map(torch.clone, layer.state_dict().values()))
            )
        torch.testing.assert_close(found[0], found[1])
        assert not torch.equal(traced(x), found[0][0]), "the next draw is another one"


@pytest.mark.parametrize(("layer", "make"), CASES)
def test_a_layer_traced_in_eval_mode_is_the_identity(layer: nn.Module, make: Make) -> None:
    layer.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(nn.Sequential(layer), make(4))
    x = make(3)
    assert torch.equal(traced(x), x)
    layer.train()
    assert torch.equal(traced(x), x), "a trace has one mode"


def test_a_trace_has_the_p_that_it_was_made_with(tmp_path: Path) -> None:
    """Also after it was saved, whatever has become of the layer."""
    layer, x = ro.RotationOut(0.3), torch.randn(500, 16)
    traced = torch.jit.trace(layer, x, check_trace=False)
    layer.p = 0.9
    torch.jit.save(traced, str(tmp_path / "traced.pt"))
    for module in (traced, torch.jit.load(str(tmp_path / "traced.pt"))):
        for _ in range(3):
            assert ((module(x) - x).square().sum() / x.square().sum()).item() == pytest.approx(0.3 / 0.7, rel=0.3)


@pytest.mark.parametrize("model", [ro.RotationOut(), nn.Sequential(nn.Linear(4, 4), ro.nn.LockedDropout())])
def test_torch_jit_script_says_what_to_use_instead(model: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"torch.jit.script does not support (RotationOut|LockedDropout); use torch"):
        torch.jit.script(model)


def test_torch_jit_script_says_what_works_for_weight_drop() -> None:
    layer, x = ro.nn.WeightDrop(nn.LSTM(4, 5), 0.4), torch.randn(6, 3, 4)
    with pytest.raises(TypeError, match=r"WeightDrop; use torch.export, or torch.jit.trace, .* eval mode, and fails"):
        torch.jit.script(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nn.LSTM's own
        with pytest.raises(RuntimeError):
            torch.jit.trace(layer, (x,))
        exported = torch.export.export(layer, (x,)).module()
        assert not torch.equal(exported(x)[0], exported(x)[0])
        traced = torch.jit.trace(layer.eval(), (x,))
    torch.testing.assert_close(traced(x), layer(x))
