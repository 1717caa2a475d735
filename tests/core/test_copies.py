"""Copies of a layer have a strength of their own: made by copy, pickle, other processes, torch.fx and torch.export."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from tests.core.test_layers import seeded
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.nn import functional as F

import rotationout as ro


def pickled(layer: nn.Module, **options: object) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False, **options)


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("inference", [False, True])
def test_a_copy_can_be_changed_without_the_original(made: Callable[[nn.Module], nn.Module], inference: bool) -> None:
    layer = ro.RotationOut(0.5)
    with torch.inference_mode(inference):
        twin = made(layer)
    twin.p = 0.1
    assert (layer._scale.item(), layer.p) == (1.0, 0.5)
    assert (twin._scale.item(), twin.p) == (pytest.approx(1 / 3), 0.1)


def test_a_copy_that_is_loaded_without_memory_has_a_strength() -> None:
    layer = pickled(ro.RotationOut(0.5), map_location="meta")
    assert layer._scale.item() == 1.0
    assert torch.vmap(layer, randomness="different")(torch.randn(2, 3, 4)).shape == (2, 3, 4)


def _weaken(layer: nn.Module) -> None:
    layer.p = 0.1


def test_another_process_changes_its_own_strength() -> None:
    """Processes share the memory of the tensors that they send each other."""
    layer = ro.RotationOut(0.5)
    process = get_context("spawn").Process(target=_weaken, args=(layer,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert layer._scale.item() == 1.0


@pytest.mark.parametrize("move", [nn.Module.cpu, nn.Module.float, lambda layer: layer.to("cpu"), nn.Module.half])
def test_a_move_to_the_same_place_keeps_the_tensor(move: Callable[[nn.Module], nn.Module]) -> None:
    """A CUDA graph may read it, as it reads weights."""
    layer = ro.RotationOut(0.5)
    before = layer._scale
    assert move(layer)._scale is before


class Mixed(nn.Module):
    """Noises of several kinds, on sequences and on the maps that they become."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.rows, self.sequences, self.locked = (
            ro.RotationOut(0.3),
            ro.RotationOutSequence(0.3),
            ro.nn.LockedDropout(0.3),
        )
        self.maps, self.cut, self.shaken = ro.RotationOut2d(0.3), ro.nn.Cutout(0.3), ro.nn.ShakeShake()

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        x = self.locked(self.sequences(F.relu(self.rows(self.linear(x))), real))
        x = x.unflatten(-1, (2, 3)).movedim(1, 2)
        return self.shaken(self.cut(self.maps(x)), x)


@pytest.mark.parametrize("training", [False, True])
def test_torch_fx_records_every_noise_as_a_layer(training: bool) -> None:
    """As it does with torch's own layers: whatever the mode it was traced in, the copy has both."""
    model = Mixed().train(training)
    traced = torch.fx.symbolic_trace(model)
    inputs = torch.randn(5, 4, 6), torch.ones(5, 4, dtype=torch.bool)
    for mode in (True, False):
        torch.testing.assert_close(seeded(traced.train(mode), *inputs), seeded(model.train(mode), *inputs))
    traced.train()
    assert not torch.equal(traced(*inputs), traced(*inputs))
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["linear", "rows", "sequences", "locked", "maps", "cut", "shaken"]


class Block(nn.Module):
    """Not a layer to torch.fx, which follows its code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("side", "dim"), [("before", -1), ("after", -1), ("after", 1)])
def test_torch_fx_records_noise_that_was_inserted_at_a_block(side: str, dim: int, training: bool) -> None:
    model, x = nn.Sequential(Block(), Block()), torch.randn(5, 6, 6)
    ro.insert(model, ro.RotationOut(0.3), **{side: Block}, dim=dim)
    traced = torch.fx.symbolic_trace(model.train(training))
    for mode in (True, False):
        torch.testing.assert_close(seeded(traced.train(mode), x), seeded(model.train(mode), x))
    traced.train()
    assert not torch.equal(traced(x), traced(x))


class Recurrent(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.network(x)
        return output


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "network",
    [
        ro.nn.NoisyLSTM(4, 6, 2, layer_noise=ro.RotationOutSequence(0.3), weight_drop=0.3),
        ro.nn.NoisyGRU(4, 6, weight_drop=0.3),
        ro.nn.WeightDrop(nn.LSTM(4, 6), 0.3),
    ],
)
def test_torch_fx_records_recurrent_networks_as_layers(network: nn.Module, training: bool) -> None:
    """As it does with nn.LSTM."""
    model, x = Recurrent(network).train(training), torch.randn(3, 2, 4)
    traced = torch.fx.symbolic_trace(model)
    for mode in (True, False):
        torch.testing.assert_close(seeded(traced.train(mode), x), seeded(model.train(mode), x))
    traced.train()
    assert not torch.equal(traced(x), traced(x))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["network"]


def test_functions_cannot_be_recorded() -> None:
    class Function(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ro.functional.rotation_out(x, 0.3)

    with pytest.raises(TypeError, match=r"got Proxy; torch.fx can record noise as a layer, such as RotationOut"):
        torch.fx.symbolic_trace(Function())


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_keeps_its_strength(strict: bool) -> None:
    layer, x = ro.RotationOut(0.5), torch.randn(2000, 16)
    program = torch.export.export(nn.Sequential(layer), (x,), strict=strict).module()
    layer.p = 0.01
    energy = ((program(x) - x).square().sum() / x.square().sum()).item()
    assert energy == pytest.approx(1.0, abs=0.2)  # about six standard errors
