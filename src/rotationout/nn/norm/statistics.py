"""Means and variances of the chunks of a batch, and of a chunk without one example, in a fixed number of passes.

The input is read once, for the mean and the sum of squares of each example and channel; everything after that works on
these (N, C) numbers. For vectors the means are the input itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Examples", "chunk_moments", "chunks", "cross_moments", "example_moments"]


class Examples(NamedTuple):
    """The moments of every example by itself.

    Attributes:
        mean: of its positions, (…, C).
        squares: the sum of squares about that mean, likewise; None where there is one position.
        positions: how many values an example has per channel.
    """

    mean: Tensor
    squares: Tensor | None
    positions: int


def example_moments(x: Tensor) -> Examples:
    """Mean and squares of every example and channel of (N, C, …)."""
    positions = math.prod(x.shape[2:])
    if positions == 1:
        return Examples(x.flatten(1), None, 1)
    variance, mean = torch.var_mean(x, dim=tuple(range(2, x.ndim)), correction=0)
    return Examples(mean, variance * positions, positions)


def chunks(examples: Examples, size: int | None) -> Iterator[Examples]:
    """Consecutive chunks of ``size`` examples as (chunks, size, C); what is left over joins the last chunk.

    All chunks of equal size come at once, so there are at most two items: those, and a longer last chunk.
    """
    count = examples.mean.size(0)
    if size is None or count < 2 * size:
        size = count
    cut = count if count % size == 0 else (count // size - 1) * size
    for start, stop, length in ((0, cut, size), (cut, count, count - cut)):
        if start < stop:
            mean, squares, positions = examples
            mean = mean[start:stop].unflatten(0, (-1, length))
            squares = squares if squares is None else squares[start:stop].unflatten(0, (-1, length))
            yield Examples(mean, squares, positions)


def chunk_moments(examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every chunk, (chunks, 1, C)."""
    between, mean = torch.var_mean(examples.mean, dim=1, correction=0, keepdim=True)
    if examples.squares is None:
        return mean, between
    return mean, between + examples.squares.mean(1, keepdim=True) / examples.positions


def cross_moments(examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and (unbiased) variance of the others in its chunk, for every example: (chunks, size, C).

    Cross-Normalization (appendix B), with 1 / (n − 1) for the mean of n − 1 others and 1 / (n − 2) for their variance:
    with the printed 1 / B it is not invariant to shifts. The share of an example is subtracted from the sums over its
    chunk. Where that is almost the whole sum few digits are left, so this is done in fp64 on devices that have it.
    """
    wide = torch.float32 if examples.mean.device.type == "mps" else torch.float64
    mean = examples.mean.to(wide)
    size = mean.size(1)
    centre = mean.mean(1, keepdim=True)
    about = mean - centre
    others_mean = centre - about / (size - 1)
    squared = about**2
    others = examples.positions * (squared.sum(1, keepdim=True) - squared * (size / (size - 1)))
    if examples.squares is not None:
        inside = examples.squares.to(wide)
        others = others + (inside.sum(1, keepdim=True) - inside)
    variance = others.clamp_min(0) / ((size - 1) * examples.positions - 1)
    return others_mean.to(examples.mean.dtype), variance.to(examples.mean.dtype)
