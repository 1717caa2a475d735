"""torch.compile, torch.export and ONNX: as with nn.Dropout."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import rotationout as ro
from rotationout.functional import rotate

LAYERS = {
    "vectors": (ro.RotationOut(0.3), (32, 64)),
    "maps": (ro.RotationOut2d(0.3), (8, 16, 5, 5)),
    "blocks, running mean": (
        ro.RotationOut2d(0.3, block_size=3, coverage=0.9, center="running", num_features=16),
        (4, 16, 5, 5),
    ),
    "paper": (ro.RotationOut2d(0.3, preset="paper"), (4, 15, 5, 5)),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_serves_a_whole_schedule(name: str) -> None:
    """What is traced, by the backend that is quickly done; below by the one that generates code."""
    layer, shape = LAYERS[name]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(shape, requires_grad=True)
    energies = []
    for p in (0.1, 0.3, 0.6):
        layer.p = p
        y = compiled(x)
        y.square().sum().backward()
        energies.append((y - x).square().mean().item())
    assert counters["stats"]["unique_graphs"] == 1, "a schedule must not recompile"
    assert energies[0] < energies[1] < energies[2], "and the strength must reach the graph"
    layer.p = 0.0
    torch.testing.assert_close(compiled(x), x)
    assert counters["stats"]["unique_graphs"] == 2


def test_blocks_are_compiled_for_maps_of_any_size() -> None:
    layer = ro.RotationOut2d(0.5, block_size=3, coverage=0.5)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (5, 7, 2):
        assert compiled(torch.randn(2, 6, size, size)).shape == (2, 6, size, size)


@pytest.mark.parametrize("dynamic", [None, True])
def test_masked_batches_of_any_size_are_compiled_and_a_running_mean_follows_them(dynamic: bool | None) -> None:
    """Batches come first whose sizes the compiler learns to be any, then masks whose sizes it has not seen."""
    layer = ro.RotationOut(0.3, center="running", num_features=6, momentum=1.0)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows, masked in ((50, False), (5, False), (5, True), (7, True), (0, False)):
        x, mask = torch.randn(rows, 6), torch.arange(rows) % 3 != 1 if masked else None
        expected = x[mask].mean(0) if masked else x.mean(0) if rows else layer.running_mean.clone()
        compiled(x, mask)
        torch.testing.assert_close(layer.running_mean, expected)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("vectors", "inductor"), ("blocks, running mean", "inductor"), ("maps", "aot_eager"), ("paper", "aot_eager")],
)
def test_compiled_noise_is_fresh_follows_p_and_its_gradient_is_right(name: str, backend: str) -> None:
    """The operator is linear, so ⟨grad, x⟩ = ⟨1, y⟩ whatever the draw."""
    layer, shape = LAYERS[name]
    layer.p = 0.3
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(shape, requires_grad=True)
    y = compiled(x)
    weight = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, weight)
    if layer.center != "running":  # about a constant the operator is affine
        torch.testing.assert_close((gradient * x).sum(), (weight * y).sum(), rtol=1e-4, atol=1e-2)
    assert not torch.equal(compiled(x), y)
    layer.p = 0.7
    assert (compiled(x) - x).square().mean() > (y - x).square().mean()
    assert counters["stats"]["unique_graphs"] == 1, "another p must not recompile"


@pytest.mark.parametrize(
    ("features", "pairing"), [(8, "structured"), (15, "structured"), (200, "structured"), (12, "permutation")]
)
def test_compiled_rotations_equal_eager_ones(features: int, pairing: str) -> None:
    x = torch.randn(5, features, requires_grad=True)
    rotation = ro.sample_rotation(x.shape, 0.4, draw=ro.Draw(pairing=pairing))
    compiled = torch.compile(lambda x: rotate(x, rotation), fullgraph=True)
    weight = torch.randn_like(x)
    for function in (compiled, lambda x: rotate(x, rotation)):
        y = function(x)
        torch.testing.assert_close(y, rotate(x, rotation, backend="reference"))
        torch.testing.assert_close(*(torch.autograd.grad(z, x, weight)[0] for z in (y, rotate(x, rotation))))


class Network(nn.Module):
    """A convolutional network with both kinds of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), ro.RotationOut2d(0.2), nn.Conv2d(8, 4, 3)
        )
        self.head = nn.Sequential(nn.Linear(4, 8), ro.RotationOut(0.2), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


def test_torch_export_of_the_eval_model() -> None:
    model, x = Network().eval(), torch.randn(2, 3, 9, 9)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))
    assert not any("rand" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.filterwarnings("ignore")
def test_onnx_export_of_the_eval_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    model, x = Network().eval(), torch.randn(2, 3, 9, 9)
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    graph = onnx.load(tmp_path / "model.onnx")
    session = ReferenceEvaluator(graph)
    (output,) = session.run(None, {graph.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), model(x), rtol=1e-4, atol=1e-5)


def test_a_whole_network_compiles_and_trains() -> None:
    model = Network()
    compiled = torch.compile(model, fullgraph=True)
    loss = compiled(torch.randn(4, 3, 9, 9)).square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
