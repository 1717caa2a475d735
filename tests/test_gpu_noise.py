"""Every noise of the registry on a GPU: strength, gradients, and one captured graph for a whole schedule."""

import functools
import math

import pytest
import torch
from tests.core.noise_cases import Case, parameters

import rotationout as ro
from rotationout.nn.base import Noise
from rotationout.registry import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
SCATTERED = pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
"""Torch gathers the weights of a recurrent module in one buffer, but not in bf16, and then warns that they are not."""
every_noise = pytest.mark.parametrize(("kind", "case"), parameters())


@every_noise
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=SCATTERED)])
def test_noise_on_the_device(kind: str, case: Case, dtype: torch.dtype) -> None:
    """Quiet in eval mode, a gradient in training, and of matched noises E|x̃ − x|² = λ·|x − m|² (z below 4.9)."""
    module = ro.noise(kind, case.p, **case.options()).to(DEVICE, dtype)
    x = torch.randn(case.shape).to(DEVICE, dtype).requires_grad_()
    y = case.call(module, x)
    assert (y.device, y.dtype) == (x.device, dtype)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(gradient).all()
    if KINDS[kind].matched:
        exact, wide = x.detach().double(), x.detach().float()  # noise in fp32: bf16 adds its roundings
        module.to(torch.float32)
        energies = torch.stack([(case.call(module, wide) - exact).square().sum() for _ in range(1000)])
        expected = case.p / (1 - case.p) * case.share * case.about(exact).square().sum()
        assert abs((energies.mean() - expected) / energies.std()) < 4.9 / math.sqrt(len(energies))
    still = case.still(x.detach().float().cpu()).to(DEVICE, dtype)
    # cuDNN computes with the ten bits of TF32, or rounds every state to bf16.
    loose = {"rtol": 1e-2, "atol": 5e-3 if dtype == torch.float32 else 3e-2} if kind.endswith("weight-drop") else {}
    torch.testing.assert_close(case.call(module.to(dtype).eval(), x.detach()), still, **loose)


@every_noise
def test_a_captured_graph_gives_fresh_noise_and_follows_a_schedule(kind: str, case: Case) -> None:
    module = ro.noise(kind, 0.24, **case.options()).to(DEVICE)
    if not isinstance(module, Noise) or not case.transforms:
        pytest.skip("not a layer of ours, or made of torch's recurrent modules")
    x = torch.randn(case.shape, device=DEVICE, requires_grad=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(case.call(module, x).sum(), x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.call(module, x)
        torch.autograd.grad(y.sum(), x)
    energies = []
    for p in (0.24, 0.05):
        module.p = p
        outputs = []
        for _ in range(40):
            graph.replay()
            outputs.append(y.detach().clone())
        assert any(not torch.equal(output, outputs[0]) for output in outputs), "every replay draws anew"
        energies.append(sum((output - case.still(x.detach())).square().sum().item() for output in outputs))
    assert energies[1] < energies[0]


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
def test_zeros_stay_zero_on_the_device(format_: torch.memory_format) -> None:
    x = torch.randn(8, 64, 8, 8).relu().to(DEVICE, torch.bfloat16, memory_format=format_).requires_grad_()
    outputs = []
    for keep in (True, False):
        torch.manual_seed(0)
        outputs.append(ro.RotationOut2d(0.5, keep_zeros=keep).to(DEVICE)(x))
    kept, turned = outputs
    assert torch.equal(kept, torch.where(x == 0, 0, turned))
    assert kept.is_contiguous(memory_format=format_)
    (gradient,) = torch.autograd.grad(kept.sum(), x)
    assert torch.isfinite(gradient).all()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")
def test_a_layer_traced_in_training_draws_fresh_noise() -> None:
    """Tracing records torch's own operators: kernels would be recorded with the sizes of one batch."""
    layer = ro.RotationOut2d(0.5).to(DEVICE)
    traced = torch.jit.trace(layer, torch.randn(4, 16, 5, 5, device=DEVICE), check_trace=False)
    x = torch.randn(7, 16, 5, 5, device=DEVICE)
    first, second = traced(x), traced(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, x)
    energy = (first - x).square().sum() / (x - x.mean((0, 2, 3), keepdim=True)).square().sum()
    assert 0.5 < energy < 2, "λ = 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("layer", "shape"), [("vectors", (4096, 512)), ("maps", (16, 64, 14, 14))])
def test_the_gradient_in_the_plane_on_the_device(
    layer: str, shape: tuple[int, ...], compiled: bool, dtype: torch.dtype
) -> None:
    """It is what the features say: g + (w·g x − x·g w) / |x|²; and nothing but x and the draw is kept."""
    dim = 1
    kind = ro.RotationOut if layer == "vectors" else functools.partial(ro.RotationOut2d, side="symmetric")
    module = kind(0.3, gradient="plane", center=None).to(DEVICE)
    x, g = (torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))
    x.requires_grad_()
    before = torch.cuda.memory_allocated()
    y = (torch.compile(module, fullgraph=True) if compiled else module)(x)
    assert compiled or torch.cuda.memory_allocated() - before < 1.3 * y.nbytes + 2**16
    (slope,) = torch.autograd.grad(y, x, g)
    z, w, exact = x.detach().double(), y.detach().double(), g.double()
    wg, zg, zz = ((a * b).sum(dim, keepdim=True) for a, b in ((w, exact), (z, exact), (z, z)))
    expected = exact + (wg * z - zg * w) / zz
    assert slope.dtype == dtype
    assert (slope.double() - expected).norm() <= (1e-5 if dtype == torch.float32 else 0.01) * expected.norm()
    assert (expected - exact).norm() > 0.02 * exact.norm()
