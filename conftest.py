"""What all tests share.

Every test starts from the same seed: failures can be repeated, and statistical tests always give the same answer.
Doctests are collected from every module; those of the GPU kernels can be imported only where triton is.
"""

import gc
import importlib.util

import pytest
import torch

pytest.register_assert_rewrite("tests.training_runs")  # its assertions say as much as those of tests

KERNELS = (
    "kernels/triton/*",
    "experiments/speech/step_kernels.py",
    "experiments/narrow/[abcw]*.py",
    "experiments/narrow/taps.py",
)
collect_ignore_glob = [] if importlib.util.find_spec("triton") else [f"src/rotationout/{path}" for path in KERNELS]


def pytest_collection_finish() -> None:
    """What has been imported stays: runs that end collect garbage, and need not look through all of torch for it."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20191118)
