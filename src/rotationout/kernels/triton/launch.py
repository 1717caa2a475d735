"""A kernel with all arguments fixed but its tensors: from the second launch on it costs the host half as much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Program", "Sums"]


class Program:
    """A kernel, its grid and every argument but the tensors, which come first in its signature.

    Triton looks at each argument of each launch to find the kernel compiled for it. All that may differ from one launch
    of a program to the next is whether the tensors start at multiples of 16 bytes, so the compiled kernel is kept for
    every such pattern and called directly. Dtypes and the device must be those of the first launch. The first ``words``
    tensors are read as words of 32 bits. ``registers`` is the most a thread may have on an NVIDIA GPU, 0 for no limit:
    with fewer of them, more programs run at once. A constant FOLLOWS other than 0 says that the kernel may start early,
    see `overlap`.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int,
        *numbers: float,
        words: int = 0,
        num_warps: int = 4,
        registers: int = 0,
        **constants: Any,
    ) -> None:
        self.kernel, self.grid, self.words = kernel, (grid, 1, 1), words
        self.numbers, self.constants = numbers, constants
        self.options: dict[str, int] = {"num_warps": num_warps}
        if registers and torch.version.hip is None:
            self.options["maxnreg"] = registers
        if constants.get("FOLLOWS"):
            self.options["launch_pdl"] = True
        names = kernel.arg_names
        self.tensors = len(names) - len(numbers) - len(constants)
        self.fixed = (*numbers, *(constants[name] for name in names[len(names) - len(constants) :]))
        self.compiled: dict[tuple[bool, ...], Callable[..., None]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        """Launch it on the current stream of the current device; it takes as many of the tensors as it reads."""
        tensors = tensors[: self.tensors]
        aligned = tuple([tensor.data_ptr() % 16 == 0 for tensor in tensors])
        run = self.compiled.get(aligned)
        if run is not None:
            run(*tensors, *self.fixed)
            return
        read = [triton.reinterpret(tensor, tl.int32) for tensor in tensors[: self.words]] + [*tensors[self.words :]]
        kernel = self.kernel[self.grid](*read, *self.numbers, **self.constants, **self.options)
        if kernel is not None:  # Triton's interpreter compiles nothing
            self.compiled[aligned] = kernel[self.grid]


class Sums(NamedTuple):
    """A program that adds up features in parts, and the one that adds up the parts if that is not left to others."""

    parts: int
    program: Program
    finish: Program | None
    signs: Program | None = None
    """What makes the ``words`` of random bits that the first program reads, if it does."""
    words: int = 0
