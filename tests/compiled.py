"""A GPU that compiles programs and runs none: Triton's compiler and NVIDIA's assembler need no device.

Triton's interpreter, which tests what programs compute where there is no GPU, takes some that the compiler does not,
and knows nothing of shared memory and registers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

__all__ = ["SHARED", "Assembled", "Compiler", "assembled"]

SHARED = {80: 166_912, 90: 232_448}
"""The bytes of shared memory that a program may have, by compute capability (CUDA C++ Programming Guide)."""


_numbers = itertools.count()


class Compiler(DriverBase):
    """Triton's driver of a GPU of some compute capability: a launch compiles its program if that is new, and ends.

    Each is another device, and Triton keeps programs by device: to a new one all are new.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.number = next(_numbers)
        self.utils = SimpleNamespace(
            load_binary=lambda *binary: ("module", "function", 0, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": SHARED[capability]},
        )

    @classmethod
    def is_active(cls) -> bool:
        return False

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *launch: None

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        raise NotImplementedError("tensors are on the CPU")

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is launched")


class Assembled(NamedTuple):
    """A program, and the bytes that each of its threads moves to memory and back for want of registers."""

    name: str
    spilled: int


def assembled(log: str) -> list[Assembled]:
    """What the assembler says that it has made."""
    found = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", log, re.DOTALL
    )
    return [Assembled(name, int(stores) + int(loads)) for name, stores, loads in found]
