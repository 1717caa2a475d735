"""On a GPU: running means, which kernels move while others turn about them."""

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES: list[tuple[int, ...]] = [(128, 64, 8, 8), (40, 256, 14, 14), (3000, 4096)]


def layer_for(shape: tuple[int, ...], center: str | None = "running", backend: str | None = None) -> nn.Module:
    layer = ro.RotationOut2d if len(shape) == 4 else ro.RotationOut
    features = {"num_features": shape[1]} if center else {}
    return layer(0.3, center=center, backend=backend, **features).cuda()


def mean_of(x: Tensor) -> Tensor:
    return x.float().mean([axis for axis in range(x.ndim) if axis != 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_used_before_it_follows_a_batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ours, theirs = layer_for(shape), layer_for(shape, backend="reference")
    expected = torch.zeros(shape[1], device="cuda")
    for step in range(4):
        x = (torch.randn(shape, device="cuda") + step).to(dtype)
        outputs = []
        for layer in (ours, theirs):
            layer.running_mean.copy_(expected)
            torch.manual_seed(step)
            outputs.append(layer(x).float())
        error = (outputs[0] - outputs[1]).abs().max()
        assert error <= max(2 * torch.finfo(dtype).eps, 1e-5) * outputs[1].abs().max()
        expected = expected.lerp(mean_of(x), 0.1)
        torch.testing.assert_close(ours.running_mean, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_follows_in_a_graph_and_takes_two_launches(
    shape: tuple[int, ...], channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rotationout.kernels.triton.launch import Program

    launched: list[object] = []
    call = Program.__call__

    def noted(program: Program, *tensors: Tensor) -> None:
        launched.append(program.kernel)
        call(program, *tensors)

    monkeypatch.setattr(Program, "__call__", noted)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16) + 1
    if channels_last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    counts = []
    for layer in (layer_for(shape, None), layer_for(shape)):
        launched.clear()
        layer(x)
        counts.append(len(launched))
    assert counts[1] == counts[0] + 2
    layer.running_mean.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x)
    for _ in range(5):
        graph.replay()
    torch.testing.assert_close(layer.running_mean, (1 - 0.9**5) * mean_of(x), rtol=1e-4, atol=1e-5)
