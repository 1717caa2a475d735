"""How large the pieces are that programs of the narrow kernels work on: by channels, meant for an H200.

``benchmarks/narrow.py`` times others beside them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ADDED",
    "CONVOLVED",
    "FINISHED",
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
    """What a program of a convolution does at once.

    Args:
        positions: of the maps, a power of two.
        taps: of a row of the kernel that are one matrix product, 1 or 3. With 3 the channels of three neighbours, which
            lie side by side in memory, are multiplied together: few channels are too few for a product of their own.
            For the gradient of a weight also 9, all in one product.
        warps: threads by 32.
        stages: how far ahead a loop loads; 1 for not at all, and then loads go through the first cache, which holds
            what neighbouring taps share.
        programs: at most so many share a weight's gradient; the sums of each are written, and read again.
        rows: if there are any, positions are columns of the images, of which a program takes so many rows; it needs no
            taps then, and no stages.
        registers: at most so many a thread; 0 for as many as the compiler likes. A few less may be room for one more
            program on a multiprocessor, of this kernel or of another run's.
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
        """What the compiler is told."""
        most = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **most}


class Sums(NamedTuple):
    """What a program of BatchNorm does at once.

    Args:
        elements: of the maps, a power of two.
        warps: threads by 32.
        parts: at most so many programs take sums; all programs that finish them read all parts.
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
"""Of a convolution, and of the gradient of its input, by the channels that it reads."""
WEIGHED = {
    16: Tile(128, 9, 4, 1, 264),
    32: Tile(128, 9, 8, 1, 132, registers=128),
    64: Tile(64, 1, 4, 3, 96),
}
"""Of the gradient of its weight, by the more of the channels that it reads and those that it gives."""
STRIDED = {16: Tile(128, 1, 4), 32: Tile(64, 1, 4), 64: Tile(64, 1, 4)}
"""As `CONVOLVED`, for a stride of 2: a tap at a time, and no rows."""
WEIGHED_STRIDED = {16: Tile(64, 1, 4, 1, 132), 32: Tile(64, 1, 4, 1, 132), 64: Tile(64, 1, 4, 3, 96)}
"""As `WEIGHED`, for a stride of 2: a tap at a time."""
ADDED = 128, 2048
"""Parts at most, and numbers in all, that a program reads at once where sums for gradients are finished."""
NORMALISED = {16: Sums(2048, 4, 256), 32: Sums(2048, 4, 128), 64: Sums(2048, 2, 128)}
"""Of BatchNorm, by its channels."""
REVERSED = {16: Sums(2048, 4, 256), 32: Sums(8192, 8, 128), 64: Sums(2048, 4, 128)}
"""Of its gradients, which read three maps instead of one or two."""
FINISHED = 512, 8
"""Parts at most, and channels, that a program reads at once where statistics are finished."""


def power_of_two(number: int) -> int:
    """The next one that is as large.

    >>> power_of_two(48)
    64
    """
    return 1 << (number - 1).bit_length()


def multiplied(depth: int) -> int:
    """So many numbers are multiplied where there are this many: a product needs 16.

    >>> multiplied(9), multiplied(48)
    (16, 64)
    """
    return max(16, power_of_two(depth))


def fitted(table: dict[int, Tile], channels: int, size: int) -> Tile:
    """The tile for this many channels of so many bytes each: numbers of 32 bits take more registers than a thread has.

    >>> fitted({64: Tile(128, 1, 4)}, 48, 4)
    Tile(positions=16, taps=1, warps=8, stages=1, programs=0, rows=0, registers=0)
    """
    key = choice(channels)
    positions = 16 if key == 64 else 32
    tile = table[key]
    return tile if size == 2 else tile._replace(positions=positions, warps=8, stages=1, rows=0, registers=0)


def choice(channels: int) -> int:
    """The key of the tables here for this many channels: 48 are taken as 64 are, and images have 3."""
    return channels if channels == 3 else max(16, power_of_two(channels))
