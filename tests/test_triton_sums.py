"""The GPU kernels that add up, against the reference: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.triton_cases import DTYPES, LAYOUTS, assert_near, new_draw, new_features

from rotationout import pairing
from rotationout.kernels import reference
from rotationout.kernels.triton import (
    apply,
    choose,
    feature_sum,
    follow_mean,
    mean_parts,
    rotate_centred,
    sizes,
)
from rotationout.kernels.triton import layout as arrangements
from rotationout.kernels.triton.lanes_sum import signs_kernel
from rotationout.kernels.triton.launch import Program, Sums
from rotationout.kernels.triton.layout import Layout, Plan
from rotationout.kernels.triton.tables import gather_sum_kernel

pytestmark = MARKS


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_feature_sums_equal_the_reference(layout: str) -> None:
    torch.manual_seed(3)
    x, dim = new_features(layout, torch.bfloat16)
    leading = x.movedim(dim, -1).shape[:-1]
    shared = torch.rand([n if i == 0 else 1 for i, n in enumerate(leading)], device=DEVICE).expand(leading)
    for weight in (None, torch.rand(leading, device=DEVICE), shared):
        actual, expected = feature_sum(x, weight, dim), reference.feature_sum(x, weight, dim)
        assert (actual - expected).abs().max() <= 1e-5 * x.numel()
    kept = torch.rand(leading, device=DEVICE) < 0.7
    weight = torch.where(kept, torch.rand(leading, device=DEVICE), 0.0)
    padded = x.movedim(dim, -1).clone()
    padded[~kept] = float("nan")  # padding may hold anything
    expected = reference.feature_sum(torch.where(kept.unsqueeze(-1), x.movedim(dim, -1), 0.0), weight, -1)
    actual = feature_sum(x.copy_(padded.movedim(-1, dim)), weight, dim)
    assert (actual - expected).abs().max() <= 1e-5 * x.numel()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("follow", [False, True])
def test_a_running_mean_follows_the_parts_of_a_batch_mean(
    layout: str, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(17)
    for name, value in {"FOLLOW": follow, "SUM_TILE": (128, 128), "SUM_WARPS": 1, "SMALL": 0}.items():
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(arrangements, "_plans", {})
    monkeypatch.setattr(apply, "_followers", {})
    for momentum, dtype in ((0.1, torch.float32), (0.7, torch.bfloat16), (1.0, torch.float32)):
        x, dim = new_features(layout, dtype)
        parts, expected = mean_parts(x, dim), reference.mean_parts(x.double(), dim)
        assert parts.shape[1:] == (x.size(dim),)
        torch.testing.assert_close(parts.sum(0), expected[0].float(), rtol=1e-4, atol=1e-6)
        running = torch.randn(x.size(dim), device=DEVICE).to(dtype)
        exact, version = running.double(), running._version
        reference.follow_mean(exact, expected, momentum)
        follow_mean(running, parts, momentum)
        assert running._version > version
        tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
        assert (running.double() - exact).abs().max() <= tolerance * exact.abs().max()
    assert len(apply._followers) == (3 if follow else 0)


def test_a_momentum_that_differs_by_feature_is_left_to_torch() -> None:
    running, parts = torch.zeros(3, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    follow_mean(running, parts, torch.tensor([0.0, 0.5, 1.0], device=DEVICE))
    assert running.tolist() == [0.0, 1.0, 2.0]


def test_a_running_mean_that_autograd_follows_is_left_to_torch() -> None:
    """One that stands in for a buffer, say, by ``torch.func.functional_call``."""
    start, parts = torch.zeros(3, device=DEVICE, requires_grad=True), torch.ones(2, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        follow_mean(start, parts, 0.25)
    running = start * 1
    follow_mean(running, parts, 0.25)
    assert running.tolist() == [0.5, 0.5, 0.5]
    assert torch.autograd.grad(running.sum(), start)[0].tolist() == [0.75, 0.75, 0.75]


@pytest.mark.parametrize("size", [1, 2])
def test_a_running_mean_follows_more_parts_than_a_program_adds_at_once(size: int) -> None:
    """From where it lies, aligned or not, contiguous or not."""
    torch.manual_seed(18)
    parts = torch.randn(1500, 11, device=DEVICE)
    memory = torch.ones(2 * 11 + 1, device=DEVICE)
    running = memory[1::size][:11]
    follow_mean(running, parts, 0.25)
    torch.testing.assert_close(running, 0.75 + 0.25 * parts.sum(0), rtol=1e-4, atol=1e-4)
    assert (memory == 1).sum() == memory.numel() - 11, "nothing else is written to"


def test_a_running_mean_of_64_bits_keeps_them() -> None:
    """Also where features have fewer."""
    running, parts = torch.full((3,), 1 / 3, dtype=torch.float64, device=DEVICE), torch.ones(3, 3, device=DEVICE)
    follow_mean(running, parts, 0.1)
    torch.testing.assert_close(running, torch.full_like(running, 0.6), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(
    ("layout", "kind", "pairing_per", "angle_per", "parts"),
    [
        (layout, *pairings, angle_per, parts)
        for layout, pairings, angle_per, parts in crossed(
            ["maps of odd D", "large maps", "channels last", "tokens", "rows of odd D"],
            [("structured", "row"), ("table", "example"), ("table", "batch")],
            ["row", "example"],
            [2, 100],
        )
    ],
)
def test_sums_are_split_over_many_programs(
    layout: str, kind: str, pairing_per: str, angle_per: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of which a thread has several elements, as on a GPU; the smallest programs there are."""
    torch.manual_seed(11)
    for name, value in {
        "SUM_TILE": (128, 128),
        "SUM_WARPS": 1,
        "SUM_PARTS": (parts, parts),
        "ONCE": 0,
        "SMALL": 0,
    }.items():
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(arrangements, "_plans", {})
    x, dim = new_features(layout, torch.float32)
    torch.testing.assert_close(feature_sum(x, None, dim), reference.feature_sum(x, None, dim))
    draw = new_draw(x, dim, kind, pairing_per, angle_per)
    expected = reference.rotate_centred(x, None, *draw, dim, True)
    torch.testing.assert_close(rotate_centred(x, None, *draw, dim, True), expected)
    sums = [sums.program for plan, _ in arrangements._plans.values() for sums in plan.sums.values()]
    assert any(program.constants.get("THREAD", 1) > 1 for program in sums) == (layout != "tokens")  # few rows
    assert any(program.grid[0] > 1 for program in sums)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_a_program_adds_up_several_examples(memory: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five in two programs, of which one has an example less."""
    torch.manual_seed(13)
    for name, value in {"SUM_PARTS": (2, 2), "ONCE": 0, "SMALL": 0}.items():
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(arrangements, "_plans", {})
    x = torch.randn(5, 6, 6, 6, device=DEVICE).contiguous(memory_format=memory)
    draw = new_draw(x, 1, "table", "batch", "example")
    expected = reference.rotate_centred(x, None, *draw, 1, True)
    torch.testing.assert_close(rotate_centred(x, None, *draw, 1, True), expected)
    ((plan, _),) = arrangements._plans.values()
    (sums,) = plan.sums.values()
    assert (sums.parts, sums.program.grid[0]) == (2, 2)


@pytest.mark.usefixtures("_poisoned")
def test_rows_with_pairings_of_their_own_are_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is added up by one program, and by one alone."""
    torch.manual_seed(19)
    for name, value in {"SUM_TILE": (128, 128), "SUM_PARTS": (100, 100)}.items():
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(arrangements, "_plans", {})
    x = torch.randn(41, 48, device=DEVICE)
    draw = new_draw(x, 1, "table", "row", "row")
    expected = reference.rotate_centred(x, None, *draw, 1, True)
    torch.testing.assert_close(rotate_centred(x, None, *draw, 1, True), expected)
    ((plan, _),) = arrangements._plans.values()
    (sums,) = plan.sums.values()
    assert sums.program.kernel is gather_sum_kernel
    assert sums.parts > 1


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [6, 12, 24, 33, 64, 80, 256])
def test_structured_turns_are_added_up(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of lanes, features of 32 bits and words of two, in tiles that do not divide features and rows."""
    torch.manual_seed(10)
    for dtype, tile, programs in zip((*DTYPES, torch.float32), (256, 256, 4096, 4096), (3, 2, 1, 2), strict=True):
        monkeypatch.setattr(sizes, "LANES_SUM_TILE", tile)
        monkeypatch.setattr(sizes, "LANES_SUM_PROGRAMS", (programs, programs))
        monkeypatch.setattr(arrangements, "_plans", {})
        x = torch.randn(11, features, device=DEVICE).to(dtype)
        draw = new_draw(x, 1, "structured", "batch" if programs == 3 else "row", "row")
        arranged = arrangements.arrange(x, *draw, 1, None)
        actual = apply._sums(arranged, turned=True, mean=False).sum(0)
        turned = x.double() - reference.rotate(x.double(), None, *draw, 1, True)
        assert_near(actual, turned.sum(0), torch.float32)


def test_the_bits_of_signs_are_those_of_the_pairing() -> None:
    seed, index = torch.tensor(-(2**62) + 5, device=DEVICE), torch.zeros(7, dtype=torch.int16, device=DEVICE)
    for features in (2, 130, 640):
        expected = pairing.sign_words(seed, index, features)
        words = torch.empty(expected.numel(), dtype=torch.int64, device=DEVICE)
        Program(signs_kernel, 5, words.numel(), BLOCK=8)(seed, words)
        assert torch.equal(words.view_as(expected), expected)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("elements", [0, sizes.SMALL_ROWS])
def test_few_parts_of_a_mean_are_added_up_by_the_programs_that_turn(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(12)
    monkeypatch.setattr(sizes, "SMALL_ROWS", elements)
    monkeypatch.setattr(sizes, "SUM_TILE", (64, 64))
    monkeypatch.setattr(sizes, "FEW_TILE", 64)
    monkeypatch.setattr(arrangements, "_plans", {})
    x, dim = new_features("channels last", torch.bfloat16)
    for pairing_per, adjoint in itertools.product(("example", "batch"), (False, True)):
        draw = new_draw(x, dim, "table", pairing_per, "row")
        expected = reference.rotate_centred(x.float(), None, *draw, dim, adjoint)
        assert_near(rotate_centred(x, None, *draw, dim, adjoint), expected, x.dtype)
    left = [sums for plan, _ in arrangements._plans.values() for sums in plan.sums.values() if sums.finish is None]
    assert len(left) == (3 if elements else 0)  # not where examples have pairings of their own
    assert all(sums.parts > 1 for sums in left)


@pytest.mark.parametrize(
    ("features", "weighted", "dtype", "block"),
    [
        (160, True, torch.bfloat16, 64),
        (160, False, torch.bfloat16, 32),
        (160, True, torch.float32, 32),
        (96, True, torch.bfloat16, 32),
        (48, True, torch.bfloat16, 16),
        (320, True, torch.bfloat16, 64),
        (640, True, torch.bfloat16, 128),
    ],
)
def test_tiles_of_weighted_sums_are_wide(features: int, weighted: bool, dtype: torch.dtype, block: int) -> None:
    x = torch.empty(100_000, features, dtype=dtype, device="meta")
    assert sums_of(x, weighted).program.constants["BLOCK_C"] == block


def test_medium_maps_have_half_the_programs() -> None:
    large = torch.empty(2**17 + 1, 256, dtype=torch.bfloat16, device="meta")
    grids = [sums_of(x, False).program.grid[0] for x in (large, large[:-1], large.float()[:-1])]
    assert grids == [528, 264, 528]


def sums_of(x: torch.Tensor, weighted: bool) -> Sums:
    """The programs that add up rows."""
    weight = torch.empty(1, len(x), device="meta") if weighted else None
    plan = Plan(Layout((), (len(x),), x.size(1), True), (), None, None, weight)
    return choose.sums(plan, x, False, weighted, 1.0, True)
