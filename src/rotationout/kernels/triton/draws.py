"""A draw on a GPU in two launches: torch's generator gives a seed, a kernel makes pairing and angles from it.

The seed is torch's own, so seeding, checkpointing and CUDA graphs behave as they do for ``torch.rand``. The
numbers are those of Philox (Salmon et al. 2011), not the ones that `rotationout.rotation` draws with torch.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ... import pairing
from ..angles import tan_of_uniform
from ..opaque import SORT_LIMIT
from . import choose
from .launch import Program
from .layout import cdiv
from .overlap import AFTER, wait_if

__all__ = ["draw", "sample"]

SORT_TILE = 512
"""Keys a program sorts at once, if one draw has fewer."""
TAN_BLOCK = 256


def sample(
    pairs: tuple[int, ...],
    angles: tuple[int, ...],
    features: int,
    scale: float | Tensor,
    *,
    structured: bool,
    law: str = "gaussian_tan",
    one_sided: bool = False,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw tan θ of shape ``angles``, the index of ``pairs`` pairings, and the seed of signs if structured.

    Args:
        pairs: the leading shape of the pairings.
        angles: the shape of the angles.
        features: D.
        scale: the parameter of the law, a number or a tensor with one element on the device.
        structured: draw one of the structured pairings instead of a permutation, see `rotationout.pairing`.
        law: one of `rotationout.strength.LAWS`.
        one_sided: only positive angles.
        generator: where the seed comes from; torch's default generator of ``device`` if not given.
        device: where the draw lives.
    """
    seed = torch.randint(2**63 - 1, (), generator=generator, device=device)
    tan, index = draw(seed, pairs, angles, features, scale, structured=structured, law=law, one_sided=one_sided)
    if not structured and features > SORT_LIMIT:
        keys = torch.randint(2**63 - 1, (*pairs, features), generator=generator, device=device)
        index = pairing.from_permutation(keys.argsort(-1))
    return tan, index, seed if structured else None


def draw(
    seed: Tensor,
    pairs: tuple[int, ...],
    angles: tuple[int, ...],
    features: int,
    scale: float | Tensor,
    *,
    structured: bool,
    law: str,
    one_sided: bool,
) -> tuple[Tensor, Tensor]:
    """Draw tan θ and the index from a seed; permutations only of up to SORT_LIMIT features."""
    tan = torch.empty(angles, dtype=torch.float32, device=seed.device)
    shape = pairs if structured else (*pairs, features)
    index = torch.empty(shape, dtype=pairing.index_dtype(features), device=seed.device)
    # With odd D one feature is idle in every draw, and the others make up for it.
    gain = math.sqrt(features / (features - 1)) if features % 2 else 1.0
    direct = law in ("gaussian_tan", "uniform_tan")
    given = scale if direct and isinstance(scale, Tensor) else None
    factor = gain if given is not None else scale * gain if direct and not isinstance(scale, Tensor) else 1.0
    key = (
        pairs,
        angles,
        features,
        structured,
        law,
        one_sided,
        factor,
        seed.device,
        None if given is None else given.dtype,
    )
    with torch.cuda.device_of(seed):  # Triton launches on the current device
        program = _programs.get(key)
        if program is None:
            if len(_programs) >= 1024:
                _programs.clear()
            program = _programs[key] = _program(
                pairs, angles, features, structured, law, one_sided, factor, given is not None
            )
        program(seed, index, tan, tan if given is None else given)
    return tan if direct else tan_of_uniform(tan, law, scale) * gain, index


_programs: dict[tuple[object, ...], Program] = {}
"""By all that decides them."""


def _program(
    pairs: tuple[int, ...],
    angles: tuple[int, ...],
    features: int,
    structured: bool,
    law: str,
    one_sided: bool,
    factor: float,
    given: bool,
) -> Program:
    sorts = not structured and features <= SORT_LIMIT
    log = max(1, (features - 1).bit_length()) if sorts else 1
    draws, count = math.prod(pairs), math.prod(angles)
    per_program = max(1, SORT_TILE >> log) if sorts else 4 * TAN_BLOCK
    pair_programs = cdiv(draws, per_program) if structured or sorts else 0
    return Program(
        _draw_kernel, pair_programs + cdiv(count, 4 * TAN_BLOCK),
        factor, draws, features, pairing.count_structured(features), count, pair_programs,
        STRUCTURED=structured, NORMAL=law == "gaussian_tan", ONE_SIDED=one_sided, GIVEN=given, LOG=log,
        DRAWS=per_program, BLOCK=TAN_BLOCK, FOLLOWS=choose.follows(AFTER),
        num_warps=8 if sorts and per_program << log > 1024 else 4,
    )  # fmt: skip


@triton.jit
def _words(seed, position, STREAM: tl.constexpr):
    """Four random 32-bit words for every position (int64); streams are independent of each other."""
    low = position.to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    zero = low * 0
    return tl.philox(seed, low, high, zero + STREAM, zero)


@triton.jit
def _partners(keys, BIT: tl.constexpr):
    """The keys at the positions that differ in one bit."""
    halves = tl.reshape(keys, (keys.shape[0] // 2 ** (BIT + 1), 2, 2**BIT))
    return tl.reshape(tl.sum(halves, axis=1, keep_dims=True) - halves, keys.shape)  # exact: integers wrap


@triton.jit
def _sort(keys, LOG: tl.constexpr):
    """Sort every run of 2^LOG keys: Batcher's bitonic network (1968)."""
    position = tl.arange(0, keys.shape[0])
    for stage in tl.static_range(1, LOG + 1):
        for step in tl.static_range(stage):
            other = _partners(keys, stage - 1 - step)
            larger = (position >> (stage - 1 - step)) & 1
            if stage < LOG:  # every other run falls, so that two make one bitonic run
                larger = larger ^ ((position >> stage) & 1)
            keys = tl.where(larger != 0, tl.maximum(keys, other), tl.minimum(keys, other))
    return keys


@triton.jit
def _permute(seed, index, first, draws, features, LOG: tl.constexpr, DRAWS: tl.constexpr):
    """Tables of uniformly random pairings: sort random keys, and pair features that end up side by side."""
    size: tl.constexpr = DRAWS * 2**LOG
    position = tl.arange(0, size)
    feature = position & (2**LOG - 1)
    key, _, _, _ = _words(seed, first * 2**LOG + position, 0)
    key = (key >> (LOG + 1) << LOG).to(tl.int32)
    # Equal keys are told apart by the feature, its bits flipped at random: neither of two is favoured.
    flips, _, _, _ = _words(seed, first + position // 2**LOG, 2)
    flips = flips.to(tl.int32) & (2**LOG - 1)
    key = tl.where(feature < features, key | (feature ^ flips), 2**31 - 1)  # what is no feature goes to the end
    order = _sort(key, LOG) & (2**LOG - 1) ^ flips
    one, two = tl.split(tl.reshape(order, (size // 2, 2)))
    pair = tl.arange(0, size // 2)
    row = first + pair // 2 ** (LOG - 1)
    pair = pair & (2 ** (LOG - 1) - 1)
    half = features // 2
    kind = index.dtype.element_ty
    tl.store(index + row * features + one, (two + 1).to(kind), mask=(row < draws) & (pair < half))
    tl.store(index + row * features + two, (-1 - one).to(kind), mask=(row < draws) & (pair < half))
    idle = (row < draws) & (pair == half) & (features % 2 == 1)
    tl.store(index + row * features + one, (one * 0).to(kind), mask=idle)


@triton.jit
def _choose(seed, index, first, draws, count, BLOCK: tl.constexpr):
    """Structured draws, uniform in 0 … count − 1 to 2⁻³²: the upper half of a product with a 64-bit word."""
    position = first + tl.arange(0, BLOCK)
    a, b, _, _ = _words(seed, position, 0)
    size = tl.full((BLOCK,), 0, tl.uint64) + count  # a count of 1 arrives as a compile-time constant
    k = (a.to(tl.uint64) * size + ((b.to(tl.uint64) * size) >> 32)) >> 32
    tl.store(index + position, k.to(index.dtype.element_ty), mask=position < draws)


@triton.jit
def _store_tan(tan, value, start, count, scale, BLOCK: tl.constexpr, ONE_SIDED: tl.constexpr):
    position = start + tl.arange(0, BLOCK)
    value = tl.abs(value) if ONE_SIDED else value
    tl.store(tan + position, value * scale, mask=position < count)


@triton.jit
def _angles(seed, tan, first, count, scale, NORMAL: tl.constexpr, ONE_SIDED: tl.constexpr, BLOCK: tl.constexpr):
    """Normal or uniform numbers times ``scale``, four from each call of the generator."""
    a, b, c, d = _words(seed, first + tl.arange(0, BLOCK), 1)
    a = tl.uint_to_uniform_float(a)
    b = tl.uint_to_uniform_float(b)
    c = tl.uint_to_uniform_float(c)
    d = tl.uint_to_uniform_float(d)
    if NORMAL:
        a, b = tl.pair_uniform_to_normal(a, b)
        c, d = tl.pair_uniform_to_normal(c, d)
    elif not ONE_SIDED:
        a, b, c, d = 2 * a - 1, 2 * b - 1, 2 * c - 1, 2 * d - 1
    _store_tan(tan, a, first, count, scale, BLOCK, ONE_SIDED)
    _store_tan(tan, b, first + BLOCK, count, scale, BLOCK, ONE_SIDED)
    _store_tan(tan, c, first + 2 * BLOCK, count, scale, BLOCK, ONE_SIDED)
    _store_tan(tan, d, first + 3 * BLOCK, count, scale, BLOCK, ONE_SIDED)


@triton.jit
def _draw_kernel(
    seed,
    index,
    tan,
    scale,
    factor,
    draws,
    features,
    count,
    angles,
    pair_programs,
    STRUCTURED: tl.constexpr,
    NORMAL: tl.constexpr,
    ONE_SIDED: tl.constexpr,
    GIVEN: tl.constexpr,
    LOG: tl.constexpr,
    DRAWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FOLLOWS: tl.constexpr,
):
    """The first programs draw pairings, the others angles."""
    program = tl.program_id(0)
    wait_if(FOLLOWS == AFTER)
    word = tl.load(seed)
    if program < pair_programs:
        first = program.to(tl.int64) * DRAWS
        if STRUCTURED:
            _choose(word, index, first, draws, count, DRAWS)
        else:
            _permute(word, index, first, draws, features, LOG, DRAWS)
    else:
        first = (program - pair_programs).to(tl.int64) * (4 * BLOCK)
        if GIVEN:
            factor *= tl.load(scale).to(tl.float32)
        _angles(word, tan, first, angles, factor, NORMAL, ONE_SIDED, BLOCK)
