"""Values of `rotate` and `rotation_out`: against matrices, layouts, precisions, centring, masks, blocks."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rotationout as ro
from rotationout.functional import rotate, rotation_out
from rotationout.kernels import cpu, small

MAPS = ro.Draw(pairing_per="example", side="one")
STRUCTURED = ro.Draw(pairing="structured")
PADDED = torch.tensor([[True, True, False], [True, True, True]])


def by_matrix(x: Tensor, rotation: ro.Rotation, mean: Tensor | None, dim: int) -> Tensor:
    """R(x − m) + m by matrix multiplication in fp64."""
    features = x.double().movedim(dim, -1)
    about = torch.zeros(()) if mean is None else mean.double()
    turned = (rotation.matrix().double() @ (features - about).unsqueeze(-1)).squeeze(-1) + about
    return turned.movedim(-1, dim)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, int, int | None, ro.Draw, bool, str]:
    """Tensors of any shape and stride, with a feature axis anywhere."""
    ndim = draw(st.integers(1, 4))
    dim = draw(st.integers(0, ndim - 1))
    shape = [draw(st.integers(1, 5)) for _ in range(ndim)]
    shape[dim] = draw(st.one_of(st.integers(2, 9), st.sampled_from([16, 32, 33, 48])))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    order = draw(st.permutations(range(ndim)))
    step = draw(st.integers(1, 2))
    base = torch.randn([shape[axis] * step for axis in order]).to(dtype)
    x = base[tuple(slice(None, None, step) for _ in order)].permute([order.index(axis) for axis in range(ndim)])
    if draw(st.booleans()) and dim:  # the same example over and over, with stride 0
        x = x[:1].expand(x.shape)
    others = [axis for axis in range(ndim) if axis != dim]
    batch_dim = draw(st.sampled_from([None, *others]))
    choice = ro.Draw(
        pairing=draw(st.sampled_from(["permutation", "structured"])),
        pairing_per=draw(st.sampled_from(["row", "example", "batch"])),
        angle_per=draw(st.sampled_from(["row", "example", "batch"])),
    )
    return x, dim, batch_dim, choice, draw(st.booleans()), draw(st.sampled_from(["reference", "small", "cpu"]))


TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5, torch.float64: 1e-12}


@settings(max_examples=400, deadline=None)
@given(case=cases())
def test_any_shape_stride_axis_and_dtype_equals_the_matrix_form(
    case: tuple[Tensor, int, int | None, ro.Draw, bool, str],
) -> None:
    x, dim, batch_dim, choice, centred, backend = case
    rotation = ro.sample_rotation(x.shape, 0.4, dim=dim, batch_dim=batch_dim, draw=choice)
    mean = torch.randn(x.size(dim), dtype=torch.promote_types(x.dtype, torch.float32)) if centred else None
    y = rotate(x, rotation, mean, dim=dim, backend=backend)
    expected = by_matrix(x, rotation, mean, dim)
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("features", [16, 48, 1024, 2064])
@pytest.mark.parametrize("backend", ["reference", "small", "cpu"])
def test_structured_rows_of_every_width(features: int, backend: str) -> None:
    x, mean = torch.randn(3, 5, features), torch.randn(features)
    rotation = ro.sample_rotation(x.shape, 0.4, draw=STRUCTURED)
    y = rotate(x, rotation, mean, backend=backend)
    torch.testing.assert_close(y.double(), by_matrix(x, rotation, mean, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("backend", "tables"), [("small", small._tables), ("cpu", cpu._all_lane_tables)])
def test_a_network_of_many_widths_makes_its_tables_once(backend: str, tables: Any) -> None:
    """They take longer to make than the rotations themselves."""

    def call_all() -> int:
        for features in range(16, 16 * 33, 16):
            x = torch.randn(4, features)
            rotate(x, ro.sample_rotation(x.shape, 0.4, draw=STRUCTURED), backend=backend)
        return int(tables.cache_info().misses)

    assert call_all() == call_all()


@pytest.mark.parametrize("backend", ["reference", "small", "cpu"])
def test_structured_rows_with_an_axis_of_size_one(backend: str) -> None:
    """The signs of a draw lie along an axis of size 1, which torch calls contiguous whatever its stride."""
    x = torch.randn(3, 16, 1).permute(1, 2, 0)
    rotation = ro.sample_rotation(x.shape, 0.4, dim=0, draw=STRUCTURED)
    y = rotate(x, rotation, dim=0, backend=backend)
    torch.testing.assert_close(y.double(), by_matrix(x, rotation, None, 0), rtol=1e-5, atol=1e-5)


def test_a_mean_for_every_row() -> None:
    x, mean = torch.randn(4, 6, 3), torch.randn(4, 1, 6)
    rotation = ro.sample_rotation(x.shape, 0.4, dim=1)
    for backend in ("reference", "small", "cpu"):
        y = rotate(x, rotation, mean, dim=1, backend=backend)
        torch.testing.assert_close(y.double(), by_matrix(x, rotation, mean, 1), rtol=1e-5, atol=1e-5)


def test_one_rotation_for_all() -> None:
    x = torch.randn(5, 4, 3)
    rotation = ro.Rotation.from_permutation([2, 1, 0, 3], 0.3)
    torch.testing.assert_close(
        rotate(x, rotation, dim=1).double(), by_matrix(x, rotation, None, 1), rtol=1e-5, atol=1e-5
    )


def test_infinite_features_stay_where_they_are() -> None:
    x = torch.randn(2, 16)
    x[0, 3] = torch.inf
    rotation = ro.sample_rotation(x.shape, 0.4, draw=STRUCTURED)
    y = rotate(x, rotation)
    partner = rotation.partner[0, 3].item()
    finite = [i for i in range(16) if i not in (3, partner)]
    assert torch.isfinite(y[0, finite]).all()
    assert torch.isfinite(y[1]).all()


@pytest.mark.parametrize("dim", [0, 1, -3])
def test_any_axis_with_defaults(dim: int) -> None:
    x = torch.randn(6, 4, 5)
    assert not torch.equal(rotation_out(x, 0.5, dim=dim), x)


def test_other_devices_and_modes_leave_no_trace() -> None:
    """Tables are kept between calls: they must not be made on whatever device or mode happens to be active."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn(8, 48)
    with FakeTensorMode():
        assert rotation_out(torch.empty(8, 80), 0.5, draw=STRUCTURED).shape == (8, 80)
        if torch.backends.cuda.is_built():  # a fake tensor needs no GPU, but a build that knows of them
            assert rotation_out(torch.empty(8, 80, device="cuda"), 0.5, draw=STRUCTURED).device.type == "cuda"
    real = [torch.randn(8, 176), torch.randn(4000, 176)]  # few elements have an implementation of their own
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert {rotation_out(plain, 0.5, draw=STRUCTURED).shape[1] for plain in real} == {176}
    with torch.inference_mode():
        rotation_out(torch.randn(8, 112), 0.5, draw=STRUCTURED)
    with torch.device("meta"):
        rotation = ro.sample_rotation((8, 48), 0.5, draw=STRUCTURED, device="cpu")
        rotate(x, rotation, backend="cpu")
    assert torch.isfinite(rotation_out(x, 0.5, draw=STRUCTURED)).all()
    assert {type(rotation_out(plain, 0.5, draw=STRUCTURED)) for plain in real} == {Tensor}
    for features in (80, 112):
        y = rotation_out(torch.randn(8, features, requires_grad=True), 0.5, draw=STRUCTURED)
        y.sum().backward()
        assert torch.isfinite(y).all()


def test_identity_when_not_training_or_without_strength() -> None:
    x = torch.randn(4, 6)
    assert rotation_out(x, 0.5, training=False) is x
    assert rotation_out(x, 0.0) is x


@pytest.mark.parametrize("center", [None, "batch"])
@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 6, 0)])
def test_empty_batches(center: str | None, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    y = rotation_out(x, 0.5, dim=1, center=center)
    y.sum().backward()
    assert y.shape == x.shape
    assert rotate(x, ro.sample_rotation(shape, 0.5, dim=1), dim=1).shape == x.shape


@pytest.mark.parametrize("center", [None, "batch"])
@pytest.mark.parametrize("choice", [MAPS, STRUCTURED, ro.Draw()])
def test_memory_format_is_kept(center: str | None, choice: ro.Draw) -> None:
    x = torch.randn(2, 16, 3, 5).to(memory_format=torch.channels_last).requires_grad_()
    y = rotation_out(x, 0.5, dim=1, draw=choice, center=center)
    assert y.stride() == x.stride()
    y.backward(torch.ones_like(x))
    assert x.grad is not None
    assert x.grad.stride() == x.stride()
    assert rotation_out(torch.randn(2, 16, 3, 5), 0.5, dim=1, center=center).is_contiguous()


def test_layouts_agree_for_the_same_draw() -> None:
    x = torch.randn(2, 16, 3, 5)
    for choice in (MAPS, STRUCTURED):
        rotation = ro.sample_rotation(x.shape, 0.5, dim=1, draw=choice)
        last = rotate(x.to(memory_format=torch.channels_last), rotation, dim=1)
        torch.testing.assert_close(rotate(x, rotation, dim=1), last)


@pytest.mark.parametrize("backend", ["reference", "small", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_rounded_once(dtype: torch.dtype, backend: str) -> None:
    for draw, shape, dim in ((ro.Draw(), (8, 16), 1), (STRUCTURED, (8, 16), 1), (MAPS, (3, 6, 4), 1)):
        x = torch.randn(shape).to(dtype)
        rotation = ro.sample_rotation(x.shape, 0.4, dim=dim, draw=draw)
        for mean in (None, torch.randn(x.size(dim))):
            turned = rotate(x, rotation, mean, dim=dim, backend=backend)
            assert turned.dtype == dtype
            assert torch.equal(turned, rotate(x.float(), rotation, mean, dim=dim, backend=backend).to(dtype))


def test_the_draw_does_not_depend_on_the_dtype() -> None:
    x = torch.randn(8, 16, dtype=torch.float64)
    outputs = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(7)
        outputs.append(rotation_out(x.to(dtype), 0.4).double())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs[2], outputs[0], rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("content", [1e3, torch.inf, torch.nan])
@pytest.mark.parametrize("center", [None, "batch"])
def test_padding_is_left_alone_and_not_averaged(center: str | None, content: float) -> None:
    x = torch.randn(2, 3, 8)
    torch.manual_seed(2)
    y = rotation_out(x, 0.5, mask=PADDED, center=center)
    assert torch.equal(y[0, 2], x[0, 2])
    assert not torch.equal(y[0, 1], x[0, 1])
    disturbed = x.clone()
    disturbed[0, 2] = content
    disturbed.requires_grad_()
    torch.manual_seed(2)
    again = rotation_out(disturbed, 0.5, mask=PADDED, center=center)
    torch.testing.assert_close(again[PADDED], y[PADDED])
    torch.testing.assert_close(again[0, 2], disturbed[0, 2], equal_nan=True)
    (gradient,) = torch.autograd.grad(again[PADDED].sum(), disturbed)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("backend", ["reference", "small", "cpu"])
def test_a_batch_of_padding_alone_has_gradients_too(backend: str) -> None:
    x = torch.randn(2, 3, 8, requires_grad=True)
    y = rotation_out(x, 0.5, mask=torch.zeros(2, 3, dtype=torch.bool), center="batch", backend=backend)
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


def rows_that_change(center: str | Tensor | None) -> int:
    """How many of 4 × 3 rows of the output change when one row of the input does."""
    x = torch.randn(4, 3, 8)
    outputs = []
    for offset in (0.0, 1.0):
        x[1, 1] += offset
        torch.manual_seed(9)
        outputs.append(rotation_out(x, 0.5, center=center, draw=ro.Draw(pairing_per="example", side="one")))
    return int((outputs[0] != outputs[1]).any(-1).sum())


def test_no_example_and_no_time_step_sees_another_unless_centred_on_the_batch() -> None:
    assert rows_that_change(None) == 1
    assert rows_that_change(torch.randn(8)) == 1
    assert rows_that_change("batch") == 12


def test_blocks_turn_only_some_positions() -> None:
    x = torch.randn(64, 6, 9, 9)
    changed = (rotation_out(x, 0.5, dim=1, draw=MAPS, block_size=3, coverage=0.2) != x).any(1)
    assert 0.1 < changed.float().mean() < 0.3
    everywhere = (rotation_out(x, 0.5, dim=1, draw=MAPS, block_size=30, coverage=1.0) != x).any(1)
    assert everywhere.all()
