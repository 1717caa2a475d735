"""On a GPU: layers through the kernels, captured and compiled, in low precision and beyond 2³¹ elements."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.functional import rotate, rotation_out

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STRUCTURED = ro.Draw(pairing="structured")
MAPS = ro.Draw(pairing_per="example", side="one")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vectors": (lambda: ro.RotationOut(0.3), (64, 96)),
    "odd": (lambda: ro.RotationOut(0.3), (64, 33)),
    "tokens": (lambda: ro.RotationOut(0.3, center="batch"), (4, 17, 64)),
    "long rows": (lambda: ro.RotationOut(0.3, pairing="permutation", pairing_per="batch"), (9, 4096)),
    "long rows about a mean": (
        lambda: ro.RotationOut(0.3, pairing="permutation", pairing_per="batch", center="batch"),
        (3, 5, 4096),
    ),
    "odd long rows": (lambda: ro.RotationOut(0.3, preset="authors"), (40, 1025)),
    "maps": (lambda: ro.RotationOut2d(0.3), (6, 24, 9, 11)),
    "blocks": (lambda: ro.RotationOut2d(0.3, block_size=3, coverage=0.5), (6, 24, 20, 20)),
    "running": (lambda: ro.RotationOut2d(0.3, center="running", num_features=24), (6, 24, 9, 11)),
    "paper": (lambda: ro.RotationOut2d(0.3, preset="paper"), (6, 24, 20, 20)),
    "authors": (lambda: ro.RotationOut2d(0.3, preset="authors"), (6, 24, 20, 20)),
}


def run(layer: nn.Module, x: Tensor, backend: str | None) -> tuple[Tensor, Tensor]:
    """Output and gradient with the draw of a fixed seed."""
    layer.backend = backend
    x = x.detach().requires_grad_()
    torch.manual_seed(3)
    y = layer(x)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y) * x.detach().cos())[0]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_kernels_equal_the_reference_forward_and_backward(name: str, dtype: torch.dtype, channels_last: bool) -> None:
    """In low precision at most twice the error that plain torch makes at that precision."""
    make, shape = LAYERS[name]
    if channels_last and len(shape) != 4:
        pytest.skip("maps only")
    x = torch.randn(shape, device="cuda", dtype=torch.float64)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    exact = run(make().cuda(), x.to(dtype).double(), None)  # fp64 runs on the reference
    fused = run(make().cuda(), x.to(dtype), "triton")
    plain = run(make().cuda(), x.to(dtype), "reference")
    for ours, theirs, truth in zip(fused, plain, exact, strict=True):
        floor = 1e-6 * truth.abs().max()
        assert (ours - truth).abs().max() <= 2 * (theirs - truth).abs().max() + floor
        assert ours.stride() == truth.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_backend_that_cannot_run_says_so(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, device="cuda", dtype=dtype)
    with pytest.raises(ValueError, match="runs on CPU tensors"):
        rotation_out(x, 0.3, backend="cpu")
    if dtype == torch.float64:
        with pytest.raises(ValueError, match=r"computes in fp32, got a tensor of torch\.float64"):
            rotation_out(x, 0.3, backend="triton")


@pytest.mark.parametrize("draw", [STRUCTURED, ro.Draw(), MAPS], ids=["structured", "permutation", "one-sided"])
@pytest.mark.parametrize("features", [6, 7, 64])
def test_draws_made_on_the_gpu_have_the_moments_of_lemma_1(draw: ro.Draw, features: int) -> None:
    samples = 200_000
    x = torch.randn(features, device="cuda").double()
    rotation = ro.sample_rotation((samples, features), 0.5, draw=draw, device="cuda")
    noise = rotate(x.expand(samples, -1), rotation) - x
    for w in (torch.randn(features, device="cuda").double(), x, torch.eye(features, device="cuda").double()[0]):
        along = noise @ w
        expected = ((x @ x) * (w @ w) - (w @ x) ** 2).item() / (features - 1)
        mean_z = along.mean() / along.std().clamp(min=1e-12) * math.sqrt(samples)
        square_z = (along.square().mean() - expected) / along.square().std().clamp(min=1e-9) * math.sqrt(samples)
        assert abs(mean_z) < 4.9
        if expected > 1e-9:
            assert abs(square_z) < 4.9


def test_seeds_and_generators_decide_the_draw() -> None:
    x = torch.randn(8, 64, device="cuda")
    layer = ro.RotationOut(0.3).cuda()
    torch.manual_seed(1)
    first = layer(x)
    assert not torch.equal(first, layer(x))
    torch.manual_seed(1)
    assert torch.equal(first, layer(x))
    draws = [ro.sample_rotation((8, 64), 0.3, generator=torch.Generator("cuda").manual_seed(5)).tan for _ in range(2)]
    assert torch.equal(*draws)


@pytest.mark.parametrize("name", LAYERS)
def test_a_captured_graph_gives_fresh_noise_and_follows_a_schedule(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make().cuda(), torch.randn(shape, device="cuda", requires_grad=True)
    weight = torch.randn(shape, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(layer(x), x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
        (gradient,) = torch.autograd.grad(y, x, weight)
    outputs = []
    for p in (0.3, 0.3, 0.02):
        layer.p = p
        graph.replay()
        outputs.append((y.clone(), gradient.clone()))
    torch.cuda.synchronize()
    assert not torch.equal(outputs[0][0], outputs[1][0])
    assert not torch.equal(outputs[0][1], outputs[1][1])
    noise = [(output - x).norm() for output, _ in outputs]
    assert noise[2] < 0.7 * noise[1]


@pytest.mark.parametrize("name", ["vectors", "maps", "blocks"])
def test_torch_compile_keeps_it_whole(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make().cuda(), torch.randn(shape, device="cuda", requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    weight = torch.randn(shape, device="cuda")
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y, x, weight)
    torch.testing.assert_close((gradient * x).sum(), (weight * y).sum(), rtol=1e-4, atol=1e-1)
    assert not torch.equal(compiled(x), y)


def test_forward_mode_and_vmap() -> None:
    x = torch.randn(5, 8, 64, device="cuda")
    rotation = ro.sample_rotation((8, 64), 0.3, draw=STRUCTURED, device="cuda")
    _, tangent = torch.func.jvp(lambda x: rotate(x, rotation), (x[0],), (x[1],))
    torch.testing.assert_close(tangent, rotate(x[1], rotation))
    batched = torch.vmap(lambda x: rotate(x, rotation))(x)
    torch.testing.assert_close(batched[2], rotate(x[2], rotation))
    noisy = torch.vmap(lambda x: rotation_out(x, 0.3), randomness="different")(x[:1].expand(3, -1, -1))
    assert not torch.equal(noisy[0], noisy[1])


@pytest.mark.parametrize("channels_last", [False, True])
def test_more_than_two_to_the_31_elements(channels_last: bool) -> None:
    shape = (33, 1024, 256, 256)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    assert x.numel() > 2**31
    rotation = ro.sample_rotation(shape, 0.3, dim=1, draw=MAPS, device="cuda")
    y = rotate(x, rotation, dim=1)
    last = ro.Rotation(rotation.tan[-1:], rotation.index[-1:], 1024)
    expected = rotate(x[-1:].contiguous(), last, dim=1, backend="reference")
    torch.testing.assert_close(y[-1:].contiguous(), expected, rtol=2e-2, atol=2e-2)
    rows = x.flatten()[: 2**31 + 2**20].view(-1, 1024)
    rotation = ro.sample_rotation(rows.shape, 0.3, draw=STRUCTURED, device="cuda")
    y = rotate(rows, rotation)
    assert torch.isfinite(y[-8:]).all()
    norms = rows[-64:].float().norm(dim=1) * (1 + rotation.tan[-64:] ** 2).sqrt()
    torch.testing.assert_close(y[-64:].float().norm(dim=1), norms, rtol=1e-2, atol=1e-2)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """To a hundredth of the largest number."""
    assert (actual.float() - expected).abs().max() <= 1e-2 * expected.abs().max()


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_mean_over_more_than_two_to_the_31_elements(channels_last: bool) -> None:
    """Only the last example is not 0: what arrives in the first has gone through the mean."""
    from rotationout.kernels import reference
    from rotationout.kernels.triton import rotate_centred, sample

    order = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.empty(33, 1024, 256, 256, device="cuda", dtype=torch.bfloat16, memory_format=order).zero_()
    x[-1] = torch.randn(1024, 256, 256, device="cuda") + 1
    tan, index, _ = sample((33, 1, 1), (33, 256, 256), 1024, 0.3, structured=False, device="cuda")
    last = x[-1:].float()
    mean = last.mean((0, 2, 3)) / 33
    y = rotate_centred(x, None, tan, index, None, 1, False)
    assert_near(y[:1], reference.rotate(torch.zeros_like(last), mean, tan[:1], index[:1], None, 1, False))
    assert_near(y[-1:], reference.rotate(last, mean, tan[-1:], index[-1:], None, 1, False))
    turned = reference.rotate(last, None, tan[-1:], index[-1:], None, 1, True)
    back = (last - turned).mean((0, 2, 3)) / 33
    y = rotate_centred(x, None, tan, index, None, 1, True)
    assert_near(y[:1].movedim(1, -1), back)
    assert_near(y[-1:], turned + back[:, None, None])


def test_a_mean_of_structured_turns_over_more_than_two_to_the_31_elements() -> None:
    """The same for rows; the tables of their draws tell the reference what those at either end are."""
    from rotationout.kernels import reference
    from rotationout.kernels.triton import layout, rotate_centred, sample

    rows, some = 2**21 + 2**10, 2048
    x = torch.zeros(rows, 1024, device="cuda", dtype=torch.bfloat16)
    assert x.numel() > 2**31
    x[-some:] = torch.randn(some, 1024, device="cuda") + 1
    tan, index, seed = sample((rows,), (rows,), 1024, 0.3, structured=True, device="cuda")
    assert seed is not None
    table = layout._table(index, seed, 1024)
    first, last = ((x[part].float(), tan[part], table[part]) for part in (slice(some), slice(-some, None)))
    mean = last[0].sum(0) / rows
    y = rotate_centred(x, None, tan, index, seed, 1, False)
    for made, (given, angles, pairs) in ((y[:some], first), (y[-some:], last)):
        assert_near(made, reference.rotate(given, mean, angles, pairs, None, 1, False))
    turned = reference.rotate(last[0], None, *last[1:], None, 1, True)
    back = (last[0] - turned).sum(0) / rows
    y = rotate_centred(x, None, tan, index, seed, 1, True)
    assert_near(y[:some], back)
    assert_near(y[-some:], turned + back)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("structured", [False, True])
def test_the_operators_that_torch_compile_sees(channels_last: bool, structured: bool) -> None:
    """Schema, fake implementation and what they really return agree."""
    from rotationout.kernels import opaque

    x = torch.randn(3, 6, 5, 4, device="cuda")
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    seed = torch.randint(2**63 - 1, (), device="cuda")
    scale = torch.tensor(0.5, device="cuda")
    torch.library.opcheck(opaque.draw, (seed, scale, [3, 1, 1], [3, 5, 4], 6, structured, "gaussian_tan", True))
    tan, index = opaque.draw(seed, scale, [3, 1, 1], [3, 5, 4], 6, structured, "gaussian_tan", True)
    sign_seed = seed if structured else None
    for mean in (None, torch.randn(6, device="cuda"), torch.randn(3, 1, 1, 6, device="cuda")):
        torch.library.opcheck(opaque.rotate, (x, mean, tan, index, sign_seed, 1, False))
    weight = (torch.rand(3, 5, 4, device="cuda") < 0.5).float()
    torch.library.opcheck(opaque.rotate_centred, (x, None, tan, index, sign_seed, 1, True))
    torch.library.opcheck(opaque.rotate_centred, (x, weight, tan * weight, index, sign_seed, 1, False))
    torch.library.opcheck(opaque.feature_sum, (x, weight, 1))


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_turn_by_the_kernels(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make().cuda(), torch.randn(shape, device="cuda")
    torch._dynamo.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph.code)
        return graph.forward

    torch.compile(layer, backend=backend, fullgraph=True)(x)
    assert len(graphs) == 1
    assert "rotationout.draw" in graphs[0]
    assert "rotationout.rotate" in graphs[0]


def turned_again_and_again(x: Tensor) -> list[tuple[Tensor, ...]]:
    """Input, output, adjoint and draw of turns about a batch mean, each of what the one before has made."""
    from rotationout.kernels.triton import rotate_centred, sample

    examples, features, height, width = x.shape
    steps = []
    for _ in range(10):
        tan, index, _ = sample(
            (examples, 1, 1), (examples, height, width), features, 0.3, structured=False, device="cuda"
        )
        y = rotate_centred(x, None, tan, index, None, 1, False)
        back = rotate_centred(y, None, tan, index, None, 1, True)
        steps.append((x, y, back, tan, index))
        x = back
    return steps


def assert_turned(steps: list[tuple[Tensor, ...]]) -> None:
    from rotationout.kernels import reference

    for x, y, back, tan, index in steps:
        for given, made, adjoint in ((x, y, False), (y, back, True)):
            expected = reference.rotate_centred(given.float(), None, tan, index, None, 1, adjoint)
            assert (made - expected).abs().max() <= 2 * torch.finfo(made.dtype).eps * expected.abs().max()


@pytest.mark.parametrize("shape", [(128, 64, 8, 8), (64, 256, 14, 14), (33, 640, 7, 7)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_kernels_that_overlap_on_two_streams(shape: tuple[int, ...], channels_last: bool) -> None:
    """Kernels start before those before them have ended: one by one and in graphs, nothing is read too early."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    inputs = [torch.empty(shape, device="cuda", dtype=torch.bfloat16, memory_format=order) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in inputs]
    graphs = [torch.cuda.CUDAGraph() for _ in inputs]

    def alone(x: Tensor) -> list[tuple[Tensor, ...]]:
        return turned_again_and_again(x.normal_())

    for _ in range(3):
        made = []
        for x, stream in zip(inputs, streams, strict=True):
            with torch.cuda.stream(stream):
                made.append(alone(x))
        torch.cuda.synchronize()
        for steps in made:
            assert_turned(steps)
    captured = []
    for x, graph in zip(inputs, graphs, strict=True):
        with torch.cuda.graph(graph):
            captured.append(alone(x))
    for _ in range(20):
        for _ in range(10):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for steps in captured:
            assert_turned(steps)


@pytest.mark.parametrize("joined", [False, True])
def test_kernels_that_overlap_follow_copies_and_other_streams(joined: bool) -> None:
    """What comes before in a graph need not be a kernel: a copy, or the end of another stream's work."""
    from rotationout.kernels.triton import rotate_centred, sample

    source = torch.empty(128, 64, 8, 8, device="cuda", dtype=torch.bfloat16).normal_()
    x, side = torch.empty_like(source), torch.cuda.Stream()
    tan, index, _ = sample((128, 1, 1), (128, 8, 8), 64, 0.3, structured=False, device="cuda")

    def work() -> tuple[Tensor, ...]:
        current = torch.cuda.current_stream()
        if joined:
            side.wait_stream(current)
            with torch.cuda.stream(side):
                x.copy_(source)
            current.wait_stream(side)
        else:
            x.copy_(source)
        y = rotate_centred(x, None, tan, index, None, 1, False)
        return x, y, rotate_centred(y, None, tan, index, None, 1, True), tan, index

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made = work()
    torch.cuda.synchronize()
    assert_turned([made])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for _ in range(20):
        source.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x, source)
        assert_turned([captured])
