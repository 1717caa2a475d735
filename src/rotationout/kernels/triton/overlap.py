"""Start a kernel while the previous one in its stream still runs: CUDA's programmatic dependent launch.

Otherwise a GPU idles between two kernels until all programs of the first have ended. Two rules make it safe:

- A kernel waits before it writes anything, and before it reads what a kernel before it may have written.
- It lets the next one start only after it has waited. So when a kernel starts, all but the one directly before it have
  ended; and what that one writes is there once the kernel has waited.

Reads before the wait bypass the L1 cache, which is not guaranteed to have dropped old contents of memory by then.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["AFTER", "ALONE", "BESIDE", "possible", "wait_if"]

ALONE: tl.constexpr = tl.constexpr(0)
"""The kernel starts when the previous one has ended."""
AFTER: tl.constexpr = tl.constexpr(1)
"""The kernel starts early, and waits before it reads anything."""
BESIDE: tl.constexpr = tl.constexpr(2)
"""The kernel starts early, and waits before it reads a mean or a shift, which kernels of the same call have written."""


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
