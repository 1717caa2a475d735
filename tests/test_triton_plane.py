"""The GPU programs for gradients in a plane, against the reference: on a GPU, else in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.triton_cases import DTYPES, LAYOUTS, new_draw, new_features
from torch import Tensor

from rotationout.kernels import reference
from rotationout.kernels.triton import sizes, turn_back

pytestmark = MARKS


def assert_turned_back(g: Tensor, z: Tensor, draw: tuple[Tensor, Tensor, Tensor | None], dim: int) -> None:
    """The error beside the largest value is within that of rounding what was turned, and the result."""
    found = turn_back(g, z, *draw, dim)
    exact = reference.turn_back(g.double(), z.double(), *draw, dim)
    assert found.dtype == g.dtype
    assert found.shape == z.shape
    allowed = 4 * torch.finfo(z.dtype).eps if z.dtype != torch.float32 else 4e-6
    assert (found.double() - exact).abs().max() <= allowed * exact.abs().max()
    assert (found - g).norm() > 0.1 * g.norm()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(("layout", "dtype", "kind"), crossed(LAYOUTS, DTYPES, ("table", "structured")))
def test_it_equals_the_reference(layout: str, dtype: torch.dtype, kind: str) -> None:
    z, dim = new_features(layout, dtype)
    assert_turned_back(torch.randn_like(z) + z, z, new_draw(z, dim, kind, "row", "row"), dim)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(
    ("features", "dtype"), crossed((2, 3, 6, 12, 20, 33, 48, 96, 256), (torch.float32, torch.bfloat16, torch.float16))
)
def test_structured_draws_take_one_launch(features: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of several rows and the last of one, whole and not, pairs inside groups and between them."""
    from rotationout.kernels.triton import plane

    monkeypatch.setattr(plane, "turned", refuse)
    z = torch.randn(37, features, device=DEVICE).to(dtype)
    for sharing in (("row", "row"), ("batch", "row"), ("row", "batch")):
        assert_turned_back(torch.randn_like(z) + z, z, new_draw(z, 1, "structured", *sharing), 1)


@pytest.mark.parametrize("sharing", [("row", "example"), ("example", "row"), ("example", "example")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_that_share_what_is_drawn_for_their_example(
    sharing: tuple[str, str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rotationout.kernels.triton import layout, plane

    monkeypatch.setattr(plane, "turned", refuse)
    layout._plans.clear()
    z = torch.randn(3, 40, 24, device=DEVICE).to(dtype)
    assert_turned_back(torch.randn_like(z) + z, z, new_draw(z, 2, "structured", *sharing), 2)
    ((plan, _),) = layout._plans.values()
    assert plan.layout.n == 3
    assert [program.constants["MANY"] for program in plan.programs.values()] == [True]


def refuse(*arguments: object) -> None:
    """In place of a launch that there must not be."""
    raise AssertionError("what is turned is worked out where it is needed")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_inside_a_group_and_between_two(inside: bool, dtype: torch.dtype) -> None:
    """Rows of a tile are all of one kind, as they seldom are by chance."""
    z = torch.randn(24, 64, device=DEVICE).to(dtype)
    tan, index, seed = new_draw(z, 1, "structured", "row", "row")
    index = index % 7 if inside else 7 + index % (63 - 7)
    assert_turned_back(torch.randn_like(z) + z, z, (tan, index, seed), 1)


def test_two_features_are_read_at_once_where_all_start_at_words() -> None:
    from rotationout.kernels.triton import layout, plane

    plane._program.cache_clear()
    aligned = torch.randn(8, 64, device=DEVICE).bfloat16()
    shifted = torch.randn(8 * 64 + 1, device=DEVICE).bfloat16()[1:].view(8, 64)
    assert (aligned.data_ptr() % 4, shifted.data_ptr() % 4) == (0, 2)
    draw = new_draw(aligned, 1, "structured", "row", "row")
    for z, g, packings in (
        (aligned, aligned, {True}),
        (aligned, shifted, {True, False}),
        (shifted, aligned, {False}),
    ):
        layout._plans.clear()
        assert_turned_back(g + z, z, draw, 1)  # a sum starts at a word
        found = turn_back(g, z, *draw, 1)
        exact = reference.turn_back(g.double(), z.double(), *draw, 1)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=float(0.02 * exact.abs().max()))
        ((plan, _),) = layout._plans.values()
        assert plan.programs.keys() == {("plane", packed) for packed in packings}
        for (_, packed), program in plan.programs.items():
            assert (program.words, program.constants["PACKED"] is not None) == (3 * packed, packed)
    assert plane._program.cache_info().currsize == 0
    assert_turned_back(torch.randn(8, 64, device=DEVICE) + aligned, aligned, draw, 1)
    assert plane._program.cache_info().currsize == 1, "a gradient of another dtype takes two launches"


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("kind", ["table", "structured"])
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 70), 1), ((5, 8), 1), ((2, 3, 40, 5), 1), ((2, 70, 3), 1), ((2, 3, 9, 11), 1)]
)
def test_vectors_that_no_tile_holds_are_read_twice(
    shape: tuple[int, ...], dim: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rotationout.kernels.triton import plane

    monkeypatch.setattr(sizes, "PLANE_FEATURES", 16)
    monkeypatch.setattr(sizes, "PLANE_LANES_FEATURES", 16)
    monkeypatch.setattr(sizes, "PLANE_TILE", 64)
    monkeypatch.setattr(sizes, "PLANE_POSITIONS", (8, 4))
    plane._program.cache_clear()
    z = torch.randn(shape, device=DEVICE)
    assert_turned_back(torch.randn_like(z) + z, z, new_draw(z, dim, kind, "row", "row"), dim)
    small = kind == "structured" and shape[-1] < 16 and dim == len(shape) - 1
    assert plane._program.cache_info().currsize == (not small)
    made = plane._program(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]), z.dtype, z.dtype, z.device)
    assert made.constants["WHOLE"] == (shape[dim] < 16)
    plane._program.cache_clear()


def of_maps(count: int, features: int, positions: int) -> dict[str, int]:
    """The constants of the program for maps."""
    from rotationout.kernels.triton import plane

    made = plane._program(count, features, positions, torch.float32, torch.float32, torch.device(DEVICE))
    return {"PROGRAMS": made.grid[0], **made.constants}


def test_few_maps_are_in_more_programs_of_fewer_positions() -> None:
    assert of_maps(1024, 64, 1024)["BLOCK_P"] == 64
    assert of_maps(20, 64, 1024)["BLOCK_P"] == 32
    assert of_maps(1, 64, 1024)["BLOCK_P"] == 16
    for count in (1024, 20, 1):
        made = of_maps(count, 64, 1024)
        assert made["PROGRAMS"] == count * 1024 // made["BLOCK_P"]


def test_32_bits_count_what_is_in_a_tile() -> None:
    for positions in (2**20, 324**3, 2**27, 2**31 - 2**17):
        block = of_maps(1, 64, positions)["BLOCK_C"]
        assert 1 <= block <= max(1, 2**30 // positions)
        assert block.bit_count() == 1, "a power of two"


@pytest.mark.parametrize(("features", "positions"), [(64, 16), (512, 4), (128, 9)])
def test_small_maps_are_read_once(features: int, positions: int) -> None:
    for count in (1, 1024):
        assert of_maps(count, features, positions)["WHOLE"]


def test_gradients_in_another_memory_format() -> None:
    z = torch.randn(2, 6, 4, 3, device=DEVICE).to(memory_format=torch.channels_last)
    draw = new_draw(z, 1, "table", "row", "row")
    for g in (torch.randn(2, 6, 4, 3, device=DEVICE), torch.randn(6, 1, 1, device=DEVICE).expand(2, 6, 4, 3)):
        assert_turned_back(g, z, draw, 1)
        assert turn_back(g, z, *draw, 1).stride() == z.stride()


def test_a_vector_of_zeros_leaves_its_gradient_alone() -> None:
    z, g = torch.randn(3, 16, device=DEVICE), torch.randn(3, 16, device=DEVICE)
    z[1] = 0
    found = turn_back(g, z, *new_draw(z, 1, "structured", "row", "row"), 1)
    assert torch.equal(found[1], g[1])
    assert not torch.allclose(found, g, atol=0.1)


def test_what_the_program_does_not_take_is_the_references() -> None:
    z, g = torch.randn(2, 3, 8, device=DEVICE, dtype=torch.float64), torch.randn(3, 8, device=DEVICE).double()
    draw = new_draw(z[0], 1, "table", "row", "row")
    assert torch.equal(turn_back(g, z[0], *draw, 1), reference.turn_back(g, z[0], *draw, 1))
    assert turn_back(g[:0], z[0, :0], *new_draw(z[0, :0], 1, "table", "batch", "batch"), 1).shape == (0, 8)
