"""Every GPU program compiles, down to instructions of NVIDIA's GPUs: tested where there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.devices import GPU, crossed

pytest.importorskip("triton")
if GPU or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("a GPU's own tests compile, and interpreted programs cannot be", allow_module_level=True)

from tests.compiled import SHARED, Compiler, assembled
from tests.triton_cases import DTYPES, LAYOUTS, new_draw, new_features
from triton import knobs
from triton.runtime.driver import driver

from rotationout.experiments.narrow import conditions
from rotationout.experiments.networks import ResNet
from rotationout.experiments.speech.step_kernels import Recurrence
from rotationout.kernels import triton as programs
from rotationout.kernels.triton import apply, choose, draws, layout, plane

SIZES: dict[str, tuple[tuple[int, ...], int, str]] = {
    "rows of 512": ((8192, 512), 1, "contiguous"),
    "rows of 4096": ((512, 4096), 1, "contiguous"),
    "rows of 8192": ((64, 8192), 1, "contiguous"),
    "rows of 20,000": ((64, 20_000), 1, "contiguous"),
    "tokens of 768": ((16, 128, 768), 2, "contiguous"),
    "tokens of 1001": ((16, 128, 1001), 2, "contiguous"),
    "maps of 32 × 32": ((128, 64, 32, 32), 1, "contiguous"),
    "maps of 14 × 14": ((64, 256, 14, 14), 1, "contiguous"),
    "maps of 7 × 7": ((16, 512, 7, 7), 1, "contiguous"),
    "maps of 32 × 32, channels last": ((32, 64, 32, 32), 1, "channels_last"),
}
"""Features of networks, in other tiles than the small ones of `LAYOUTS`, which are interpreted."""
TOGETHER = {"tokens of 1001": 1, "maps of 14 × 14": 4, "maps of 7 × 7": 1}
"""Elements that can be loaded together; of all others a thread loads 16 bytes at once."""
SMALL = ("maps of odd D", "one vector", "maps of one position", "features first")
"""Of these some numbers are 1, which Triton makes constants of."""
SIZES |= {name: LAYOUTS[name] for name in SMALL}
EXAMPLES = ["tokens of 768", "tokens of 1001"]
"""Of these, rows of an example can share what is drawn."""
SHARING = [("batch", "batch"), ("batch", "row"), ("example", "example"), ("row", "row")]
"""What has one pairing, and what has one angle."""
MEASURED, SPILLED = 90, 128
"""Where sizes were found by measurement, no program spills more bytes. Some do: with fewer registers, more of them run
at once."""


@pytest.fixture(autouse=True)
def _compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Programs are compiled for a GPU of the test's ``capability``, and none is known from another test."""
    capability = request.node.callspec.params["capability"]
    monkeypatch.setattr(driver, "_active", Compiler(capability))
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(knobs.nvidia, "dump_ptxas_log", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10))
    monkeypatch.setattr(choose, "possible", lambda: capability >= 90)

    def forget() -> None:
        for known in (layout._plans, draws._programs, apply._followers):
            known.clear()
        plane._program.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize(
    ("size", "dtype", "kind", "sharing", "adjoint", "capability"),
    crossed(SIZES, DTYPES, ("table", "structured"), SHARING, (False, True), SHARED),
)
def test_the_operator(
    size: str,
    dtype: torch.dtype,
    kind: str,
    sharing: tuple[str, str],
    adjoint: bool,
    capability: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(LAYOUTS, size, SIZES[size])
    x, dim = new_features(size, dtype)
    draw = new_draw(x, dim, kind, *sharing)
    mean = torch.zeros(x.size(dim))
    programs.rotate(x, None, *draw, dim, adjoint)
    programs.rotate(x, mean, *draw, dim, adjoint)
    programs.rotate_centred(x, None, *draw, dim, adjoint)
    programs.rotate_centred(x, torch.ones(x.movedim(dim, -1).shape[:-1]), *draw, dim, adjoint)
    programs.follow_mean(mean, programs.mean_parts(x, dim), 0.1)
    made = assembled(capfd.readouterr().out)
    assert len(made) >= 4
    assert capability != MEASURED or max(program.spilled for program in made) <= SPILLED


@pytest.mark.parametrize(
    ("size", "dtype", "kind", "capability"), crossed(SIZES, DTYPES, ("table", "structured"), SHARED)
)
def test_the_gradient_in_the_plane(
    size: str,
    dtype: torch.dtype,
    kind: str,
    capability: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(LAYOUTS, size, SIZES[size])
    z, dim = new_features(size, dtype)
    programs.turn_back(torch.empty_like(z), z, *new_draw(z, dim, kind, "row", "row"), dim)
    made = {program.name: program.spilled for program in assembled(capfd.readouterr().out)}
    last = z.movedim(dim, -1).is_contiguous()
    name = "plane_lanes_kernel" if kind == "structured" and last and z.size(dim) <= 8192 else "plane_kernel"
    assert made[name] == 0
    if size not in SMALL:
        (code,) = tmp_path.rglob(f"{name}.ptx")
        words = {16: "b16", 32: "b32", 64: "v2.b32", 128: "v4.b32"}
        bits = min(128, 8 * z.element_size() * TOGETHER.get(size, 16))
        loads = set(re.findall(r"ld\.global\.(\S+)", code.read_text()))
        assert words[bits] in loads if name == "plane_lanes_kernel" else {words[bits]} == loads


@pytest.mark.parametrize(("size", "dtype", "capability"), crossed(EXAMPLES, DTYPES, SHARED))
def test_the_gradient_in_the_plane_of_examples(
    size: str,
    dtype: torch.dtype,
    capability: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(LAYOUTS, size, SIZES[size])
    z, dim = new_features(size, dtype)
    programs.turn_back(torch.empty_like(z), z, *new_draw(z, dim, "structured", "example", "row"), dim)
    made = {program.name: program.spilled for program in assembled(capfd.readouterr().out)}
    assert made == {"plane_lanes_kernel": 0}
    ((plan, _),) = layout._plans.values()
    assert plan.programs["plane", dtype != torch.float32 and z.size(dim) % 4 == 0].constants["MANY"]


@pytest.mark.parametrize("capability", SHARED)
def test_draws(capability: int, capfd: pytest.CaptureFixture[str]) -> None:
    scale = torch.tensor(0.5)
    for structured, law, one_sided, features in crossed(
        (False, True), ("gaussian_tan", "uniform_tan", "uniform_angle"), (False, True), (7, 64, 768)
    ):
        given = scale if features == 64 else 0.5
        programs.sample((64,), (64, 1), features, given, structured=structured, law=law, one_sided=one_sided)
    made = assembled(capfd.readouterr().out)
    assert {program.name for program in made} == {"_draw_kernel"}
    assert len(made) > 6
    assert not any(program.spilled for program in made)


@pytest.mark.parametrize(("dtype", "capability"), [(torch.float16, 80), (torch.bfloat16, 90), (torch.float32, 90)])
def test_networks_of_few_channels(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conditions, "_on_gpu", lambda x: True)
    network = ResNet(2, authors=True, fused=True).to(memory_format=torch.channels_last)
    x = torch.zeros(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        network(x).sum().backward()
        with torch.no_grad():
            network.eval()(x)
    made = assembled(capfd.readouterr().out)
    expected = {"convolve_kernel", "normalise_kernel", "gradient_kernel", "_weigh_kernel"}
    assert expected | ({"strip_kernel"} if dtype != torch.float32 else set()) <= {program.name for program in made}
    assert capability != MEASURED or max(program.spilled for program in made) <= SPILLED


@pytest.mark.parametrize("capability", SHARED)
def test_lstms_frame_by_frame(capability: int, capfd: pytest.CaptureFixture[str]) -> None:
    for dtype in (torch.float32, torch.float16):
        gates = torch.zeros(2, 3, 16, 4 * 512, dtype=dtype, requires_grad=True)
        weight = torch.zeros(2, 4 * 512, 512, dtype=dtype, requires_grad=True)
        Recurrence.apply(gates, weight).sum().backward()
    made = assembled(capfd.readouterr().out)
    assert {program.name for program in made} == {"_forward", "_backward"}
    assert not any(program.spilled for program in made)
