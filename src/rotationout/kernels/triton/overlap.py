"""How a kernel starts while the one before it in its stream still runs: CUDA's programmatic dependent launch.

Otherwise a GPU rests between two kernels until the first has ended in all its programs. Two rules make it safe:

- A kernel waits before it writes anything, and before it reads what a kernel before it may have written.
- It lets the next one start only after it has waited. So whatever was launched before a kernel has ended when the next
  one starts; what that kernel itself writes is there once the next one has waited.

What a kernel reads before it waits it reads past the L1 cache: nothing says that this has forgotten by then what memory
held before.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["AFTER", "ALONE", "BESIDE", "possible", "wait_if"]

ALONE: tl.constexpr = tl.constexpr(0)
"""A kernel starts when the one before has ended."""
AFTER: tl.constexpr = tl.constexpr(1)
"""It is there earlier, and waits before it reads."""
BESIDE: tl.constexpr = tl.constexpr(2)
"""Only a mean and a shift are what kernels of the same call have written: it waits before it reads those."""


def possible() -> bool:
    """Whether the current device can do so: NVIDIA's, from compute capability 9 on."""
    if triton.knobs.runtime.interpret or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def wait_if(NOW: tl.constexpr):
    """Wait for the kernel before, and let the next one start."""
    if NOW:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
