"""Block sizes of the narrow kernels by number of channels, chosen for an H200.

``benchmarks/narrow.py`` times alternatives.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ADDED",
    "COMBINED",
    "CONVOLVED",
    "NORMALISED",
    "REVERSED",
    "STRIDED",
    "WEIGHED",
    "WEIGHED_STRIDED",
    "Sums",
    "Tile",
    "choice",
    "fitted",
    "multiplied",
    "power_of_two",
]


class Tile(NamedTuple):
    """The block size of a program of a convolution, and its compiler options.

    Args:
        positions: number of positions of the maps, a power of two.
        taps: number of neighbouring taps in one matrix product, 1 or 3; for the gradient of a weight also 9. With 3 the
            channels of three neighbours, adjacent in memory, are multiplied together, where those of one are too few.
        warps: warps of 32 threads.
        stages: stages of the software pipeline; 1 for no pipeline: loads then go through the L1 cache, which holds what
            neighbouring taps share.
        programs: the largest number of programs for the gradient of a weight; each writes sums, which are read again.
        rows: if not 0, ``positions`` counts columns of the images, and a program works down so many rows of them; taps
            and stages are then not used.
        registers: the largest number of registers per thread; 0 leaves it to the compiler. Fewer may allow one more
            program on a multiprocessor, of this kernel or of another run.
    """

    positions: int
    taps: int
    warps: int
    stages: int = 1
    programs: int = 0
    rows: int = 0
    registers: int = 0

    @property
    def options(self) -> dict[str, int]:
        """The options of Triton's compiler."""
        most = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **most}


class Sums(NamedTuple):
    """The block size of a program of BatchNorm, and its compiler options.

    Args:
        elements: number of elements of the maps, a power of two.
        warps: warps of 32 threads.
        parts: the largest number of programs that compute sums; every program that adds them up reads all parts.
    """

    elements: int
    warps: int
    parts: int


CONVOLVED = {
    3: Tile(64, 1, 2, rows=8),
    16: Tile(64, 1, 2, rows=8),
    32: Tile(128, 1, 4, registers=168),
    64: Tile(64, 1, 4),
}
"""For a convolution and the gradient of its input, by the number of channels that the kernel reads."""
WEIGHED = {
    16: Tile(128, 9, 4, 1, 264),
    32: Tile(128, 9, 8, 1, 132, registers=128),
    64: Tile(64, 1, 4, 3, 96),
}
"""For the gradient of the weight, by the larger of the numbers of input and output channels."""
STRIDED = {16: Tile(128, 1, 4), 32: Tile(64, 1, 4), 64: Tile(64, 1, 4)}
"""As `CONVOLVED`, for a stride of 2: one tap at a time, without rows."""
WEIGHED_STRIDED = {16: Tile(64, 1, 4, 1, 132), 32: Tile(64, 1, 4, 1, 132), 64: Tile(64, 1, 4, 3, 96)}
"""As `WEIGHED`, for a stride of 2: one tap at a time."""
ADDED = 128, 2048
"""For `adding`: the largest number of parts, and the number of elements, that a program reads at once."""
NORMALISED = {16: Sums(2048, 4, 256), 32: Sums(2048, 4, 128), 64: Sums(2048, 2, 128)}
"""For the forward pass of BatchNorm, by its number of channels."""
REVERSED = {16: Sums(2048, 4, 256), 32: Sums(8192, 8, 128), 64: Sums(2048, 4, 128)}
"""For the backward pass of BatchNorm, which reads three maps instead of one or two."""
COMBINED = 8
"""For the statistics of BatchNorm: the channels that a program combines."""


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less than ``number``.

    >>> power_of_two(48)
    64
    """
    return 1 << (number - 1).bit_length()


def multiplied(depth: int) -> int:
    """The padded depth of a matrix product: a power of two, at least the 16 that Triton needs.

    >>> multiplied(9), multiplied(48)
    (16, 64)
    """
    return max(16, power_of_two(depth))


def fitted(table: dict[int, Tile], channels: int, size: int) -> Tile:
    """The tile for so many channels of ``size`` bytes each. For fp32 it is smaller, to fit the registers of a thread.

    >>> fitted({64: Tile(128, 1, 4)}, 48, 4)
    Tile(positions=16, taps=1, warps=8, stages=1, programs=0, rows=0, registers=0)
    """
    key = choice(channels)
    positions = 16 if key == 64 else 32
    tile = table[key]
    return tile if size == 2 else tile._replace(positions=positions, warps=8, stages=1, rows=0, registers=0)


def choice(channels: int) -> int:
    """The key of these tables for so many channels: the next power of two, at least 16; 3 for images."""
    return channels if channels == 3 else max(16, power_of_two(channels))
