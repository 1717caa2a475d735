"""Tiles that ``benchmarks/narrow.py`` tries for the kernels for few channels, and how to give it others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rotationout.experiments.narrow import tiles

KINDS: dict[str, dict[int, Any]] = {
    "convolved": tiles.CONVOLVED,
    "weighed": tiles.WEIGHED,
    "normalised": tiles.NORMALISED,
    "reversed": tiles.REVERSED,
}
TOUCHED = {
    "convolved": ("convolution, statistics", "gradient of input at a fork, sums"),
    "weighed": ("gradient of weight",),
    "normalised": ("norm after sums",),
    "reversed": ("norm and gradient after sums",),
}
"""What each of these tables affects."""
SEARCHED: dict[str, dict[int, list[tuple[int, ...]]]] = {
    "convolved": {
        16: [
            (128, 1, 8),
            (32, 1, 1, 1, 0, 16),
            (32, 1, 2, 1, 0, 16),
            (64, 1, 2, 1, 0, 4),
            (64, 1, 2, 1, 0, 16),
            (128, 1, 4, 1, 0, 8),
        ],
        32: [(128, 1, 4), (64, 1, 2), (64, 1, 4), (256, 1, 8), (32, 1, 2, 1, 0, 16)],
        64: [(64, 1, 4, 1, 0, 0, 168), (64, 1, 8), (32, 1, 4)],
    },
    "weighed": {
        16: [(128, 9, 4, 1, 66), (128, 9, 4, 1, 132), (64, 9, 4, 1, 132), (256, 9, 8, 1, 132), (128, 9, 4, 2, 132)],
        32: [(128, 9, 8, 1, 132), (128, 9, 8, 1, 66, 0, 128), (64, 9, 8, 1, 132), (64, 9, 8, 1, 66), (64, 9, 4, 1, 66)],
        64: [(64, 1, 4, 3, 48), (64, 1, 4, 3, 66), (64, 1, 4, 2, 66), (64, 1, 4, 2, 48), (64, 1, 4, 1, 48)],
    },
    "normalised": {
        16: [(4096, 4, 128), (2048, 2, 256), (8192, 8, 256)],
        32: [(4096, 4, 128), (2048, 2, 128), (8192, 8, 128)],
        64: [(4096, 4, 64), (2048, 4, 64), (1024, 2, 128)],
    },
    "reversed": {
        16: [(8192, 8, 128), (4096, 4, 256), (2048, 2, 256)],
        32: [(4096, 4, 128), (2048, 4, 128), (2048, 2, 128)],
        64: [(4096, 4, 64), (2048, 2, 128), (1024, 2, 128)],
    },
}
"""What ``--search`` tries besides the current tiles."""


def parsed(text: str) -> tuple[str, int, tuple[int, ...]]:
    """A table of tiles, channels, and the tile.

    >>> parsed("convolved:16=256,3,8")
    ('convolved', 16, (256, 3, 8))
    """
    where, _, numbers = text.partition("=")
    kind, _, channels = where.partition(":")
    if kind not in KINDS or not channels.isdigit() or int(channels) not in KINDS[kind]:
        known = ", ".join(KINDS)
        raise argparse.ArgumentTypeError(f"{text!r} is no KIND:CHANNELS=NUMBERS, KIND one of {known}, 16, 32 or 64")
    return kind, int(channels), tuple(int(number) for number in numbers.split(","))


@contextmanager
def set_to(kind: str, channels: int, numbers: tuple[int, ...]) -> Iterator[None]:
    """Where a kernel has this tile."""
    table = KINDS[kind]
    kept = table[channels]
    table[channels] = type(kept)(*numbers)
    try:
        yield
    finally:
        table[channels] = kept
