"""Placements that are refused: what is said of them, and that the model is left as it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.placed_networks import IMAGES, Network, state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rotationout as ro


class Refusing(nn.Linear):
    """A module that takes no hooks."""

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


def test_a_model_is_untouched_if_insertion_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Refusing(4, 4), nn.Conv2d(4, 4, 1))
    before = state(model)
    with pytest.raises(RuntimeError, match="no hooks here"):
        ro.insert(model, ro.RotationOut(0.5), before=nn.Linear)
    assert state(model) == before
    with pytest.raises(ValueError, match=r"RotationOut does not fit after '3': Conv2d has maps"):
        ro.insert(model, ro.RotationOut(0.5), after=(nn.Linear, nn.Conv2d))
    assert state(model) == before


def twice() -> None:
    model = Network()
    ro.insert(model, ro.RotationOut(0.5), before="head.0")
    ro.insert(model, ro.RotationOut(0.5), before=nn.Linear)


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def resnet(block: nn.Module, **heads: nn.Module) -> nn.Module:
    stages = {name: nn.Sequential(copy.deepcopy(block)) for name in ("layer3", "layer4")}
    return nn.ModuleDict({**stages, **heads})


NESTED = nn.ModuleDict({"body": nn.Sequential(nn.Conv2d(4, 4, 3)), "shortcut": nn.Conv2d(4, 4, 1)})
FLAT = nn.ModuleDict({"conv1": nn.Conv2d(4, 4, 3)})
VECTORS, MAPS = ro.RotationOut(0.5), ro.RotationOut2d(0.5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ro.insert(Network(), MAPS, before="layer1.0.cnov1"),
            ValueError,
            r"no module name; the nearest are 'layer1\.0\.conv",
        ),
        (lambda: ro.insert(Network(), MAPS, before="conv1"), ValueError, r"the nearest are 'layer1\.0\.conv1'"),
        (lambda: ro.insert(Network(), MAPS, before="zzzz"), ValueError, r"there are 'stem', 'layer1'"),
        (lambda: ro.insert(nn.Linear(2, 2), VECTORS, before="*"), ValueError, "no parts with names: choose it by its"),
        (lambda: ro.insert_in_stages(nn.Linear(2, 2), MAPS), ValueError, "the model has no parts with names"),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Conv2d, within="layre1"),
            ValueError,
            r"within='layre1'.*'layer1'",
        ),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Conv3d),
            ValueError,
            r"matches no module; the model has 7 Conv2d",
        ),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Conv2d, within="head"),
            ValueError,
            r"matches 7 modules, but within",
        ),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Conv2d, where=lambda name, module: False),
            ValueError,
            r"before matches 7 modules, but the predicate where leaves none of them: 'stem', ",
        ),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Conv2d, within="head", where=lambda name, module: True),
            ValueError,
            r"but within='head' and the predicate where leaves none",
        ),
        (
            lambda: ro.insert(Network(), MAPS, before=nn.Linear),
            ValueError,
            r"Linear has features on the last axis; use RotationOut there",
        ),
        (
            lambda: ro.insert(Network(), VECTORS, before=nn.Conv2d),
            ValueError,
            r"maps, with 2 axes after .* use RotationOut2d there",
        ),
        (
            lambda: ro.insert(Network(), VECTORS, after=nn.ReLU),
            ValueError,
            r"the feature axis after 'layer1\.0\.act' cannot be known from its type, ReLU: give it",
        ),
        (lambda: ro.insert(Network(), VECTORS, after=nn.ReLU, dim="last"), TypeError, r"dim must be an integer"),
        (twice, ValueError, r"a noise before 'head\.0' already; rotationout\.remove"),
        (
            lambda: ro.insert(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), VECTORS, before="x"),
            ValueError,
            "^the model is a TopLevelTracedModule, whose code is fixed: change the model that it was made from",
        ),
        (
            lambda: ro.insert(torch.compile(Network()), VECTORS, before=nn.Linear),
            ValueError,
            r"^the model is compiled alr",
        ),
        (lambda: ro.insert(Network(), VECTORS), ValueError, r"say where"),
        (lambda: ro.insert(Network(), VECTORS, before="stem", after="stem"), ValueError, r"not both"),
        *(
            (lambda x=x: ro.insert(Network(), VECTORS, before=nn.Linear, example_inputs=x), RuntimeError, message)
            for x, message in [
                ([IMAGES, torch.arange(2)], r"a tuple or list is passed as several arguments: .* e\.g\. batch\[0\]$"),
                (DataLoader(TensorDataset(IMAGES)), r"one tensor, got DataLoader; give one batch of a DataLoader"),
            ]
        ),
        (
            lambda: ro.insert(Network(), VECTORS, before=Network()),
            TypeError,
            r"types of modules .*got an instance Network\(",
        ),
        (lambda: ro.insert(Network(), VECTORS, before=int), TypeError, r"types of modules .* got type <class 'int'>"),
        (lambda: ro.insert(Network(), VECTORS, before=[]), ValueError, r"before is empty"),
        (lambda: ro.insert(Network(), VECTORS, before="stem", where="stem"), TypeError, r"where must be a function"),
        (lambda: ro.insert(Network(), VECTORS, before="stem", within=[nn.Linear]), TypeError, r"within must be names"),
        (lambda: ro.insert(Network(), 0.5, before=nn.Linear), TypeError, r"noise must be a module, .*, got 0\.5$"),
        (
            lambda: ro.insert(Network(), ro.RotationOut, before=nn.Linear),
            TypeError,
            r"got the class RotationOut; make one, e\.g\. RotationOut\(0\.2\)",
        ),
        (lambda: ro.insert(Network(), nn.PReLU(), before=nn.Linear), TypeError, r"no parameters of its own, got PReLU"),
        (lambda: ro.insert(Network(), ro.nn.ShakeShake(), before=nn.Linear), TypeError, r"must take one tensor"),
        (lambda: ro.insert("resnet", VECTORS, before=nn.Linear), TypeError, r"must be a torch.nn.Module, got str"),
        (
            lambda: ro.insert(nn.ModuleList([Network()]), VECTORS, where=lambda n, m: not n),
            ValueError,
            r"a container: choose the modules in it",
        ),
        (
            lambda: ro.insert(nn.Sequential(), VECTORS, after=nn.Sequential),
            ValueError,
            r"^the model is an empty nn\.Sequential: .*noise after$",
        ),
        (
            lambda: ro.insert(OwnForward(nn.ReLU()), VECTORS, after=OwnForward),
            ValueError,
            r"^the model is a OwnForward, a nn\.Seq.* own",
        ),
        (
            lambda: ro.insert(nn.Embedding(5, 4), VECTORS, before=nn.Embedding),
            ValueError,
            r"^the model is an Embedding, which takes i",
        ),
        (lambda: ro.insert(nn.LSTMCell(4, 4), VECTORS, after=nn.LSTMCell), ValueError, r"is its state too"),
        (
            lambda: ro.insert(nn.LSTM(4, 4), MAPS, after=nn.LSTM),
            TypeError,
            r"noise at the model: .* not take features on the la",
        ),
        (
            lambda: ro.insert(Network(), ro.RotationOut(center="running", num_features=8), before=nn.Linear),
            ValueError,
            r"num_features = 8 of RotationOut does not fit before 'head\.2', which has 16",
        ),
        (lambda: ro.insert_in_stages(nn.Linear(2, 2), MAPS), ValueError, r"are called layer1, layer2"),
        (lambda: ro.insert_in_stages(Network(), MAPS, last=3), ValueError, r"has 2: layer1, layer2$"),
        (lambda: ro.insert_in_stages(Network(), MAPS, last=0), ValueError, r"integer, at least 1, got 0"),
        (lambda: ro.insert_blocks(Network().layer1, linear=True), ValueError, r"are called layer1"),
        (
            lambda: ro.insert_in_stages(resnet(NESTED), MAPS),
            ValueError,
            r"no block of layer4 holds a convolution itself, as layer4\.0\.conv1 would .* within='layer4', where=…\)$",
        ),
        (
            lambda: ro.insert_blocks(resnet(FLAT, classes=nn.Linear(8, 3), boxes=nn.Linear(8, 12))),
            ValueError,
            r"the model has several heads, classes, boxes: linear=False leaves them out",
        ),
        (
            lambda: ro.insert_blocks(Network(), ro.RotationOut2d(0.2)),
            TypeError,
            r"strength p, a number, got RotationOut2d\(.*_stages takes a noise",
        ),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_what_is_found_out_at_the_first_call() -> None:
    class Answer(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": x}

    model = nn.Sequential(Answer())
    ro.insert(model, ro.RotationOut(0.5), after="0", dim=-1)
    with pytest.raises(TypeError, match=r"after '0' takes a tensor, or a tuple .* got dict"):
        model(torch.ones(2, 4))
    model.eval()(torch.ones(2, 4))
    linear = nn.Sequential(nn.Identity())
    ro.insert(linear, ro.RotationOut(0.5), after="0", dim=2)
    with pytest.raises(ValueError, match=r"dim = 2 at '0' is out of range for \(2, 4\)"):
        linear(torch.ones(2, 4))


def test_an_array_is_told_how_to_become_a_tensor() -> None:
    array = pytest.importorskip("numpy").ones((2, 3, 9, 9))
    with pytest.raises(
        RuntimeError, match=r"at least one tensor, got ndarray; .* convert arrays .* torch\.from_numpy\(x\)"
    ):
        ro.insert(Network(), VECTORS, before=nn.Linear, example_inputs=array)
