"""The GPU kernels that turn, against the reference: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.devices import DEVICE, MARKS, crossed
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from tests.triton_cases import DTYPES, LAYOUTS, PER, assert_near, new_draw, new_features
from torch import Tensor

from rotationout import pairing
from rotationout.kernels import reference
from rotationout.kernels.triton import (
    choose,
    rotate,
    rotate_centred,
    sizes,
)
from rotationout.kernels.triton import layout as arrangements
from rotationout.kernels.triton.launch import Program
from rotationout.kernels.triton.once import once_kernel
from rotationout.kernels.triton.rows import rows_kernel
from rotationout.kernels.triton.tables import gather_kernel

pytestmark = MARKS


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_sharing_of_a_draw_equals_the_reference(layout: str) -> None:
    torch.manual_seed(0)
    cases = itertools.product(("table", "structured"), PER, PER)
    for (kind, pairing_per, angle_per), dtype in zip(cases, itertools.cycle(DTYPES), strict=False):
        x, dim = new_features(layout, dtype)
        draw = new_draw(x, dim, kind, pairing_per, angle_per)
        y = rotate(x, None, *draw, dim, False)
        assert_near(y, reference.rotate(x, None, *draw, dim, False), dtype)
        if x.is_contiguous() or x.permute(*reversed(range(x.ndim))).is_contiguous():
            assert y.stride() == x.stride()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("adjoint", [False, True])
def test_mean_and_adjoint_equal_the_reference(layout: str, adjoint: bool) -> None:
    torch.manual_seed(1)
    cases = [("table", "row", torch.float32), ("table", "batch", torch.bfloat16), ("table", "batch", torch.float32)]
    cases += [("structured", "row", torch.float16), ("structured", "batch", torch.float32)]
    for kind, pairing_per, dtype in cases:
        x, dim = new_features(layout, dtype)
        draw = new_draw(x, dim, kind, pairing_per, "row")
        mean = torch.randn(x.size(dim), device=DEVICE)
        expected = reference.rotate(x, mean, *draw, dim, adjoint)
        assert_near(rotate(x, mean, *draw, dim, adjoint), expected, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_arrangement_that_is_known_is_used_with_new_tensors(layout: str) -> None:
    for kind, pairing_per in (("table", "example"), ("structured", "row")):
        for _ in range(2):
            x, dim = new_features(layout, torch.float32)
            draw = new_draw(x, dim, kind, pairing_per, "row")
            assert_near(rotate(x, None, *draw, dim, False), reference.rotate(x, None, *draw, dim, False), x.dtype)


def test_tables_and_draws_need_not_be_contiguous() -> None:
    """Twice, since what is known of an arrangement is used the second time."""
    for _ in range(2):
        x, dim = new_features("rows", torch.float32)
        tan, table, _ = new_draw(x, dim, "table", "batch", "row")
        shared = (tan, table.expand(7, 24), None)
        tan, k, seed = new_draw(x, dim, "structured", "row", "row")
        strided = (tan, torch.stack([k, k + 1], 1)[:, 0], seed)
        for draw in (shared, strided):
            assert_near(rotate(x, None, *draw, dim, False), reference.rotate(x, None, *draw, dim, False), x.dtype)


def test_a_mean_for_every_example_equals_the_reference() -> None:
    x, dim = new_features("tokens", torch.float32)
    draw = new_draw(x, dim, "table", "batch", "row")
    mean = torch.randn(3, 1, 48, device=DEVICE)
    assert_near(rotate(x, mean, *draw, dim, False), reference.rotate(x, mean, *draw, dim, False), torch.float32)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_centred_and_its_adjoint_equal_the_reference(layout: str, weighted: bool) -> None:
    torch.manual_seed(2)
    combinations = [*itertools.product(("table", "structured"), PER), ("table", "batch")]
    dtypes = [*[torch.float32] * 6, torch.bfloat16]
    for (kind, pairing_per), adjoint, dtype in zip(combinations, [True, True, False] * 2 + [True], dtypes, strict=True):
        x, dim = new_features(layout, dtype)
        tan, index, seed = new_draw(x, dim, kind, pairing_per, "example" if weighted else "row")
        weight = None
        if weighted:
            weight = (torch.rand(x.movedim(dim, -1).shape[:-1], device=DEVICE) < 0.7).float()
            tan = tan * weight
        expected = reference.rotate_centred(x.float(), weight, tan, index, seed, dim, adjoint)
        actual = rotate_centred(x, weight, tan, index, seed, dim, adjoint)
        tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", ["maps of odd D", "large maps", "many small maps"])
@pytest.mark.parametrize("elements", [0, sizes.ONCE])
def test_small_maps_about_their_mean_in_one_launch_or_more(
    layout: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(9)
    monkeypatch.setattr(sizes, "ONCE", elements)
    monkeypatch.setattr(arrangements, "_plans", {})
    launched: list[object] = []
    call = Program.__call__

    def noted(program: Program, *tensors: Tensor) -> None:
        launched.append(program.kernel)
        call(program, *tensors)

    monkeypatch.setattr(Program, "__call__", noted)
    for adjoint, angle_per, dtype in itertools.product([False, True], PER, DTYPES[:2]):
        x, dim = new_features(layout, dtype)
        draw = new_draw(x, dim, "table", "batch", angle_per)
        expected = reference.rotate_centred(x.float(), None, *draw, dim, adjoint)
        launched.clear()
        actual = rotate_centred(x, None, *draw, dim, adjoint)
        assert (launched == [once_kernel]) == (elements > 0)
        assert_near(actual, expected, dtype)
        assert actual.stride() == x.stride()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [4, 12, 40, 64])
@pytest.mark.parametrize(("adjoint", "weighted"), [(False, False), (True, False), (True, True)])
def test_structured_turns_about_a_mean_in_words_and_parts(
    features: int, adjoint: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all pairings of lanes inside their group and some of groups, in tiles of one row and of several."""
    torch.manual_seed(14)
    inside = pairing.lanes(features) - 1
    k = torch.cat([torch.arange(inside), torch.randint(inside, pairing.count_structured(features), (6,))])
    k = k.to(DEVICE, pairing.index_dtype(features))
    tan, seed = torch.randn(len(k), device=DEVICE), torch.randint(2**63 - 1, (), device=DEVICE)
    weight = None
    if weighted:
        weight = (torch.rand(len(k), device=DEVICE) < 0.7).float()
        tan = tan * weight
    for dtype, tile, asm in itertools.product(DTYPES, (64, 512), {False, sizes.LANES_ASM}):
        if (dtype == torch.float16) == (tile == 64):
            continue
        monkeypatch.setattr(sizes, "LANES_TILE", (tile,) * 3)
        monkeypatch.setattr(sizes, "LANES_ASM", asm)
        monkeypatch.setattr(sizes, "LANES_LATE", tile == 64)
        monkeypatch.setattr(arrangements, "_plans", {})
        x = (torch.randn(len(k), features, device=DEVICE) + 3).to(dtype)
        expected = reference.rotate_centred(x.float(), weight, tan, k, seed, 1, adjoint)
        assert_near(rotate_centred(x, weight, tan, k, seed, 1, adjoint), expected, dtype)
        ((plan, _),) = arrangements._plans.values()
        (program,) = plan.programs.values()
        assert (program.constants["PACKED"] is not None) == (dtype != torch.float32)
        assert program.constants["PARTS"] == (dtype == torch.float32)
        assert program.constants["LATE"] == (tile == 64)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [24, 33, 64])
def test_structured_turns_of_features_that_do_not_start_at_a_word(features: int) -> None:
    torch.manual_seed(15)
    x = torch.randn(9 * features + 1, device=DEVICE).bfloat16()[1:].view(9, features)
    draw = new_draw(x, 1, "structured", "row", "row")
    mean = torch.randn(features, device=DEVICE)
    for adjoint in (False, True):
        expected = reference.rotate(x.float(), mean, *draw, 1, adjoint)
        assert_near(rotate(x, mean, *draw, 1, adjoint), expected, x.dtype)
        expected = reference.rotate_centred(x.float(), None, *draw, 1, adjoint)
        assert_near(rotate_centred(x, None, *draw, 1, adjoint), expected, x.dtype)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [64, 70, 257, 600])
def test_rows_meet_in_shared_memory(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(12)
    monkeypatch.setattr(arrangements, "_plans", {})
    cases = ("example", torch.bfloat16, False), ("batch", torch.float16, True), ("batch", torch.float32, False)
    for pairing_per, dtype, adjoint in cases:
        x = torch.randn(3, features, 5, 3, device=DEVICE).to(dtype, memory_format=torch.channels_last)
        draw = new_draw(x, 1, "table", pairing_per, "row")
        expected = reference.rotate_centred(x.float(), None, *draw, 1, adjoint)
        assert_near(rotate_centred(x, None, *draw, 1, adjoint), expected, dtype)
    programs = [program for plan, _ in arrangements._plans.values() for program in plan.programs.values()]
    assert [program.kernel for program in programs] == [rows_kernel] * 3


def assert_turned_about_all(x: Tensor, mean: Tensor, weight: Tensor, pairing_per: str, adjoint: bool) -> None:
    """Rows about the origin, a mean that is given, and the batch's, with rows of weight 0 and without."""
    tan, index, _ = new_draw(x, 2, "table", pairing_per, "row")
    for about in (None, mean):
        expected = reference.rotate(x.float(), about, tan, index, None, 2, adjoint)
        assert_near(rotate(x, about, tan, index, None, 2, adjoint), expected, x.dtype)
    for rows in (None, weight):
        angles = tan if rows is None else tan * rows
        expected = reference.rotate_centred(x.float(), rows, angles, index, None, 2, adjoint)
        assert_near(rotate_centred(x, rows, angles, index, None, 2, adjoint), expected, x.dtype)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(
    ("features", "dtype", "adjoint"), crossed([1025, 2100, 4096, 4097, 5000], DTYPES, [False, True]), ids=str
)
def test_long_rows_meet_in_shared_memory(
    features: int, dtype: torch.dtype, adjoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(16)
    monkeypatch.setattr(arrangements, "_plans", {})
    x = (torch.randn(2, 3, features, device=DEVICE) + 1).to(dtype)
    mean = torch.randn(features, device=DEVICE)
    weight = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], device=DEVICE)
    assert_turned_about_all(x, mean, weight, "batch" if adjoint else "example", adjoint)
    kernels = {program.kernel for plan, _ in arrangements._plans.values() for program in plan.programs.values()}
    assert kernels == {gather_kernel if features == 4097 else rows_kernel}


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize(
    ("shape", "dtype", "adjoint"),
    crossed([(1, 8, 2048), (1, 13, 1032), (2, 11, 1032), (2, 2, 2048)], DTYPES, [False, True]),
    ids=str,
)
def test_a_program_turns_long_rows_one_after_the_other(
    shape: tuple[int, int, int], dtype: torch.dtype, adjoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole walks, walks that end early and among examples, and tiles of which half are rows."""
    torch.manual_seed(17)
    monkeypatch.setattr(sizes, "ROW_WALK_PROGRAMS", 1)
    monkeypatch.setattr(arrangements, "_plans", {})
    x = (torch.randn(shape, device=DEVICE) + 1).to(dtype)
    mean = torch.randn(shape[2], device=DEVICE)
    weight = (torch.arange(shape[0] * shape[1], device=DEVICE) % 4 != 1).float().view(shape[:2])
    assert_turned_about_all(x, mean, weight, "example", adjoint)
    programs = [program for plan, _ in arrangements._plans.values() for program in plan.programs.values()]
    assert {program.kernel for program in programs} == {rows_kernel}
    tiles = {program.constants["BACKWARDS"]: program.constants["TILES"] for program in programs}
    assert tiles == {False: 1, True: 8 if dtype == torch.float32 else 4}  # about a mean, which needs a sum before


@pytest.mark.parametrize(
    ("rows", "features", "tiles"),
    [(65536, 4096, 4), (8441, 1032, 4), (8440, 1032, 1), (65536, 1024, 1), (65536, 2052, 1), (65536, 8192, 1)],
)
def test_only_many_long_rows_are_turned_one_after_the_other(rows: int, features: int, tiles: int) -> None:
    x = torch.empty(rows, features, dtype=torch.bfloat16, device="meta")
    tan, table = torch.empty(rows, device="meta"), torch.empty(1, features, dtype=torch.int16, device="meta")
    plan = arrangements.arrange(x, tan, table, None, 1, None).plan
    program = choose.turn(plan, x, False, (1, 0), weighted=False, packed=True, centred=False)
    assert program.constants["TILES"] == tiles
    assert program.grid[0] * tiles * program.constants["BLOCK_R"] * 2 >= rows


def test_ideas_that_benchmarks_take_back_are_constants_of_the_programs() -> None:
    """What was planned is forgotten, and the constants come back."""
    from benchmarks.centred import IDEAS, noises, without

    constants = {name: value for name, value in vars(sizes).items() if name.isupper()}
    for name, idea in IDEAS.items():
        assert all(idea.noise in noises(shape) for _, shape, _ in idea.cases)
        asm = "LANES_ASM" in idea.values  # which the interpreter has not
        assert asm or any(value != constants[constant] for constant, value in idea.values.items())
        x, dim = new_features("rows", torch.float32)
        rotate(x, None, *new_draw(x, dim, "table", "batch", "row"), dim, False)
        with without(name):
            assert not arrangements._plans
            for constant, value in idea.values.items():
                assert getattr(sizes, constant) == value
                assert isinstance(value, tuple) == isinstance(constants[constant], tuple)
                assert not isinstance(value, tuple) or len(value) == len(constants[constant])
        assert constants == {name: value for name, value in vars(sizes).items() if name.isupper()}
