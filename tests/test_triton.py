"""The GPU kernels against the reference: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.interpreted import DEVICE, MARKS
from tests.interpreted import _interpreter as _interpreter  # fixtures
from tests.interpreted import _poisoned as _poisoned
from torch import Tensor

from rotationout import pairing
from rotationout.kernels import reference
from rotationout.kernels.triton import (
    apply,
    feature_sum,
    follow_mean,
    mean_parts,
    rotate,
    rotate_centred,
    sample,
    sizes,
)
from rotationout.kernels.triton import layout as arrangements
from rotationout.kernels.triton.lanes_sum import signs_kernel
from rotationout.kernels.triton.launch import Program
from rotationout.kernels.triton.once import once_kernel
from rotationout.kernels.triton.rows import rows_kernel
from rotationout.kernels.triton.tables import gather_kernel

pytestmark = MARKS

PER = ("row", "example", "batch")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Shape, feature axis, memory format: odd and even D, every number of lanes, maps above and below the size
# that is turned pair by pair, rows, and axes in an order of their own.
LAYOUTS: dict[str, tuple[tuple[int, ...], int, str]] = {
    "maps of odd D": ((3, 5, 4, 7), 1, "contiguous"),
    "large maps": ((2, 16, 5, 40), 1, "contiguous"),
    "many small maps": ((19, 6, 4, 4), 1, "contiguous"),
    "channels last": ((3, 6, 4, 7), 1, "channels_last"),
    "rows": ((7, 24), 1, "contiguous"),
    "rows of odd D": ((6, 33), 1, "contiguous"),
    "tokens": ((3, 5, 48), 2, "contiguous"),
    "tokens with gaps": ((3, 4, 32), 2, "sliced"),
    "backwards": ((2, 3, 2, 16), 3, "reversed"),
    "features first": ((4, 3, 2), 0, "contiguous"),
    "maps of one position": ((3, 16, 1, 1), 1, "contiguous"),
    "one vector": ((12,), 0, "contiguous"),
}


def _features(layout: str, dtype: torch.dtype) -> tuple[Tensor, int]:
    shape, dim, memory = LAYOUTS[layout]
    if memory == "sliced":
        x = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    elif memory == "reversed":
        x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    elif memory == "channels_last":
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    else:
        x = torch.randn(shape)
    return x.to(DEVICE, dtype), dim


def _draw(x: Tensor, dim: int, kind: str, pairing_per: str, angle_per: str) -> tuple[Tensor, Tensor, Tensor | None]:
    features = x.size(dim)
    leading = x.movedim(dim, -1).shape[:-1]

    def shared(per: str) -> tuple[int, ...]:
        return tuple(n if per == "row" or (per == "example" and i == 0) else 1 for i, n in enumerate(leading))

    tan = torch.randn(shared(angle_per), device=DEVICE)
    if kind == "table":
        return (
            tan,
            pairing.from_permutation(torch.rand(*shared(pairing_per), features, device=DEVICE).argsort(-1)),
            None,
        )
    k = torch.randint(pairing.count_structured(features), shared(pairing_per), device=DEVICE)
    return tan, k.to(pairing.index_dtype(features)), torch.randint(2**63 - 1, (), device=DEVICE)


def _assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within two roundings of the output, relative to its largest value."""
    assert actual.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-6
    assert (actual.double() - expected.double()).abs().max() <= tolerance * expected.double().abs().max()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_sharing_of_a_draw_equals_the_reference(layout: str) -> None:
    torch.manual_seed(0)
    cases = itertools.product(("table", "structured"), PER, PER)
    for (kind, pairing_per, angle_per), dtype in zip(cases, itertools.cycle(DTYPES), strict=False):
        x, dim = _features(layout, dtype)
        draw = _draw(x, dim, kind, pairing_per, angle_per)
        y = rotate(x, None, *draw, dim, False)
        _assert_close(y, reference.rotate(x, None, *draw, dim, False), dtype)
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
        x, dim = _features(layout, dtype)
        draw = _draw(x, dim, kind, pairing_per, "row")
        mean = torch.randn(x.size(dim), device=DEVICE)
        expected = reference.rotate(x, mean, *draw, dim, adjoint)
        _assert_close(rotate(x, mean, *draw, dim, adjoint), expected, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_arrangement_that_is_known_is_used_with_new_tensors(layout: str) -> None:
    for kind, pairing_per in (("table", "example"), ("structured", "row")):
        for _ in range(2):
            x, dim = _features(layout, torch.float32)
            draw = _draw(x, dim, kind, pairing_per, "row")
            _assert_close(rotate(x, None, *draw, dim, False), reference.rotate(x, None, *draw, dim, False), x.dtype)


def test_tables_and_draws_need_not_be_contiguous() -> None:
    """Twice, since what is known of an arrangement is used the second time."""
    for _ in range(2):
        x, dim = _features("rows", torch.float32)
        tan, table, _ = _draw(x, dim, "table", "batch", "row")
        shared = (tan, table.expand(7, 24), None)
        tan, k, seed = _draw(x, dim, "structured", "row", "row")
        strided = (tan, torch.stack([k, k + 1], 1)[:, 0], seed)
        for draw in (shared, strided):
            _assert_close(rotate(x, None, *draw, dim, False), reference.rotate(x, None, *draw, dim, False), x.dtype)


def test_a_mean_for_every_example_equals_the_reference() -> None:
    x, dim = _features("tokens", torch.float32)
    draw = _draw(x, dim, "table", "batch", "row")
    mean = torch.randn(3, 1, 48, device=DEVICE)
    _assert_close(rotate(x, mean, *draw, dim, False), reference.rotate(x, mean, *draw, dim, False), torch.float32)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_centred_and_its_adjoint_equal_the_reference(layout: str, weighted: bool) -> None:
    torch.manual_seed(2)
    combinations = [*itertools.product(("table", "structured"), PER), ("table", "batch")]
    dtypes = [*[torch.float32] * 6, torch.bfloat16]
    for (kind, pairing_per), adjoint, dtype in zip(combinations, [True, True, False] * 2 + [True], dtypes, strict=True):
        x, dim = _features(layout, dtype)
        tan, index, seed = _draw(x, dim, kind, pairing_per, "example" if weighted else "row")
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
        x, dim = _features(layout, dtype)
        draw = _draw(x, dim, "table", "batch", angle_per)
        expected = reference.rotate_centred(x.float(), None, *draw, dim, adjoint)
        launched.clear()
        actual = rotate_centred(x, None, *draw, dim, adjoint)
        assert (launched == [once_kernel]) == (elements > 0)
        _assert_close(actual, expected, dtype)
        assert actual.stride() == x.stride()


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_feature_sums_equal_the_reference(layout: str) -> None:
    torch.manual_seed(3)
    x, dim = _features(layout, torch.bfloat16)
    leading = x.movedim(dim, -1).shape[:-1]
    shared = torch.rand([n if i == 0 else 1 for i, n in enumerate(leading)], device=DEVICE).expand(leading)
    for weight in (None, torch.rand(leading, device=DEVICE), shared):
        actual, expected = feature_sum(x, weight, dim), reference.feature_sum(x, weight, dim)
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
        x, dim = _features(layout, dtype)
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


def test_a_running_mean_of_64_bits_keeps_them() -> None:
    """Also where features have fewer."""
    running, parts = torch.full((3,), 1 / 3, dtype=torch.float64, device=DEVICE), torch.ones(3, 3, device=DEVICE)
    follow_mean(running, parts, 0.1)
    torch.testing.assert_close(running, torch.full_like(running, 0.6), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("layout", ["maps of odd D", "large maps", "channels last", "tokens", "rows of odd D"])
@pytest.mark.parametrize("parts", [2, 100])
def test_sums_are_split_over_many_programs(layout: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    x, dim = _features(layout, torch.float32)
    torch.testing.assert_close(feature_sum(x, None, dim), reference.feature_sum(x, None, dim))
    for kind, pairing_per in (("structured", "row"), ("table", "example"), ("table", "batch")):
        for angle_per in ("row", "example"):
            draw = _draw(x, dim, kind, pairing_per, angle_per)
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
    draw = _draw(x, 1, "table", "batch", "example")
    expected = reference.rotate_centred(x, None, *draw, 1, True)
    torch.testing.assert_close(rotate_centred(x, None, *draw, 1, True), expected)
    ((plan, _),) = arrangements._plans.values()
    (sums,) = plan.sums.values()
    assert (sums.parts, sums.program.grid[0]) == (2, 2)


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
        draw = _draw(x, 1, "structured", "batch" if programs == 3 else "row", "row")
        arranged = arrangements.arrange(x, *draw, 1, None)
        actual = apply._sums(arranged, turned=True, mean=False).sum(0)
        turned = x.double() - reference.rotate(x.double(), None, *draw, 1, True)
        _assert_close(actual, turned.sum(0), torch.float32)


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
        monkeypatch.setattr(arrangements, "_plans", {})
        x = (torch.randn(len(k), features, device=DEVICE) + 3).to(dtype)
        expected = reference.rotate_centred(x.float(), weight, tan, k, seed, 1, adjoint)
        _assert_close(rotate_centred(x, weight, tan, k, seed, 1, adjoint), expected, dtype)
        ((plan, _),) = arrangements._plans.values()
        (program,) = plan.programs.values()
        assert (program.constants["PACKED"] is not None) == (dtype != torch.float32)
        assert program.constants["PARTS"] == (dtype == torch.float32)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [24, 33, 64])
def test_structured_turns_of_features_that_do_not_start_at_a_word(features: int) -> None:
    torch.manual_seed(15)
    x = torch.randn(9 * features + 1, device=DEVICE).bfloat16()[1:].view(9, features)
    draw = _draw(x, 1, "structured", "row", "row")
    mean = torch.randn(features, device=DEVICE)
    for adjoint in (False, True):
        expected = reference.rotate(x.float(), mean, *draw, 1, adjoint)
        _assert_close(rotate(x, mean, *draw, 1, adjoint), expected, x.dtype)
        expected = reference.rotate_centred(x.float(), None, *draw, 1, adjoint)
        _assert_close(rotate_centred(x, None, *draw, 1, adjoint), expected, x.dtype)


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
    x, dim = _features("channels last", torch.bfloat16)
    for pairing_per, adjoint in itertools.product(("example", "batch"), (False, True)):
        draw = _draw(x, dim, "table", pairing_per, "row")
        expected = reference.rotate_centred(x.float(), None, *draw, dim, adjoint)
        _assert_close(rotate_centred(x, None, *draw, dim, adjoint), expected, x.dtype)
    left = [sums for plan, _ in arrangements._plans.values() for sums in plan.sums.values() if sums.finish is None]
    assert len(left) == (3 if elements else 0)  # not where examples have pairings of their own
    assert all(sums.parts > 1 for sums in left)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("features", [64, 70, 257, 600])
def test_rows_meet_in_shared_memory_or_by_shuffles(
    features: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(12)
    monkeypatch.setattr(sizes, "ROW_SHARED", shared)
    monkeypatch.setattr(arrangements, "_plans", {})
    cases = ("example", torch.bfloat16, False), ("batch", torch.float16, True), ("batch", torch.float32, False)
    for pairing_per, dtype, adjoint in cases:
        x = torch.randn(3, features, 5, 3, device=DEVICE).to(dtype, memory_format=torch.channels_last)
        draw = _draw(x, 1, "table", pairing_per, "row")
        expected = reference.rotate_centred(x.float(), None, *draw, 1, adjoint)
        _assert_close(rotate_centred(x, None, *draw, 1, adjoint), expected, dtype)
    programs = [program for plan, _ in arrangements._plans.values() for program in plan.programs.values()]
    assert [program.kernel for program in programs] == [rows_kernel] * 3
    assert all(program.constants["FLAT"] == shared for program in programs)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("features", [1025, 2100, 4096, 4097, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_meet_in_shared_memory(features: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """About the origin, a mean that is given, and the batch's, with rows of weight 0 and without."""
    torch.manual_seed(16)
    monkeypatch.setattr(arrangements, "_plans", {})
    x = (torch.randn(2, 3, features, device=DEVICE) + 1).to(dtype)
    mean = torch.randn(features, device=DEVICE)
    weight = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], device=DEVICE)
    for adjoint, pairing_per in ((False, "example"), (True, "batch")):
        tan, index, _ = _draw(x, 2, "table", pairing_per, "row")
        for about in (None, mean):
            expected = reference.rotate(x.float(), about, tan, index, None, 2, adjoint)
            _assert_close(rotate(x, about, tan, index, None, 2, adjoint), expected, dtype)
        for rows in (None, weight):
            angles = tan if rows is None else tan * rows
            expected = reference.rotate_centred(x.float(), rows, angles, index, None, 2, adjoint)
            _assert_close(rotate_centred(x, rows, angles, index, None, 2, adjoint), expected, dtype)
    kernels = {program.kernel for plan, _ in arrangements._plans.values() for program in plan.programs.values()}
    assert kernels == {gather_kernel if features == 4097 else rows_kernel}


@pytest.mark.parametrize("features", [2, 3, 6, 33, 64])
def test_drawn_tables_are_pairings(features: int) -> None:
    torch.manual_seed(4)
    _, index, seed = sample((5, 3), (1,), features, 1.0, structured=False, device=DEVICE)
    assert seed is None
    assert index.dtype == pairing.index_dtype(features)
    partner, sign = pairing.partner_and_sign(index, None, features)
    assert torch.equal(partner.gather(-1, partner), torch.arange(features, device=DEVICE).expand_as(partner))
    assert torch.equal(sign.gather(-1, partner), -sign)
    assert ((sign == 0).sum(-1) == features % 2).all()


def test_every_signed_partner_is_equally_likely() -> None:
    torch.manual_seed(5)
    draws, features = 1500, 6
    _, index, _ = sample((draws,), (1,), features, 1.0, structured=False, device=DEVICE)
    counts = torch.stack([(index == code).sum(0) for code in range(-features, features + 1) if code]).cpu()
    possible = counts.flatten()[counts.flatten() > 0]
    assert possible.numel() == 2 * features * (features - 1)
    expected = draws / (2 * (features - 1))
    assert ((possible - expected) ** 2 / expected).sum() < 2 * features * (features - 1) + 60  # p < 1e-3


def test_structured_draws_are_uniform() -> None:
    torch.manual_seed(6)
    draws, features = 20_000, 33
    _, index, seed = sample((draws,), (1,), features, 1.0, structured=True, device=DEVICE)
    assert seed is not None
    counts = index.long().bincount(minlength=features)
    assert counts.numel() == features
    assert ((counts - draws / features) ** 2 / (draws / features)).sum() < 70  # 32 degrees of freedom, p < 1e-4


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize(("law", "scale", "lam"), [("gaussian_tan", 0.5, 0.25), ("uniform_tan", 0.6, 0.12)])
def test_angles_have_the_moments_of_their_law(law: str, scale: float, lam: float, one_sided: bool) -> None:
    torch.manual_seed(7)
    for given, features in ((scale, 4), (torch.tensor(scale, device=DEVICE), 5)):
        tan, _, _ = sample(
            (1,), (8_001,), features, given, structured=True, law=law, one_sided=one_sided, device=DEVICE
        )
        tan = tan / (5 / 4) ** 0.5 if features % 2 else tan
        assert tan.square().mean().item() == pytest.approx(lam, rel=0.08)
        if one_sided:
            assert (tan >= 0).all()
        else:
            assert abs(tan.mean().item()) < 5 * (lam / 8_001) ** 0.5


@pytest.mark.parametrize("law", ["uniform_angle", "gaussian_angle"])
def test_laws_of_the_angle_stay_inside_their_range(law: str) -> None:
    tan, _, _ = sample((1,), (2000,), 4, 0.5, structured=True, law=law, device=DEVICE)
    limit = 0.5 if law == "uniform_angle" else 5 * torch.pi / 12
    assert (tan.atan().abs() <= limit + 1e-6).all()
    assert abs(tan.mean().item()) < 0.1


def test_the_seed_decides_the_draw() -> None:
    def draw() -> list[Tensor]:
        generator = torch.Generator(DEVICE).manual_seed(8)
        tan, index, _ = sample((3,), (5,), 8, 1.0, structured=False, generator=generator, device=DEVICE)
        return [tan, index]

    assert all(torch.equal(a, b) for a, b in zip(draw(), draw(), strict=True))


def test_ideas_that_benchmarks_take_back_are_constants_of_the_programs() -> None:
    """What was planned is forgotten, and the constants come back."""
    from benchmarks.centred import IDEAS, noises, without

    constants = {name: value for name, value in vars(sizes).items() if name.isupper()}
    for name, idea in IDEAS.items():
        assert all(idea.noise in noises(shape) for _, shape, _ in idea.cases)
        asm = "LANES_ASM" in idea.values  # which the interpreter has not
        assert asm or any(value != constants[constant] for constant, value in idea.values.items())
        x, dim = _features("rows", torch.float32)
        rotate(x, None, *_draw(x, dim, "table", "batch", "row"), dim, False)
        with without(name):
            assert not arrangements._plans
            for constant, value in idea.values.items():
                assert getattr(sizes, constant) == value
                assert isinstance(value, tuple) == isinstance(constants[constant], tuple)
                assert not isinstance(value, tuple) or len(value) == len(constants[constant])
        assert constants == {name: value for name, value in vars(sizes).items() if name.isupper()}
