"""The speed tables of the README, from records: ``python -m benchmarks.tables`` prints them."""

from __future__ import annotations

from rotationout.report import speed

from .records import RESULTS


def gpu_table() -> str:
    """Device time of forward + backward relative to nn.Dropout, large tensors."""
    return speed.gpu_table(RESULTS / "ops_nvidia-h200_torch-2.11.0.json").markdown()


def cpu_table() -> str:
    """Time of forward + backward relative to nn.Dropout."""
    return speed.cpu_table(RESULTS / "ops_cpu_torch-2.11.0.json").markdown()


if __name__ == "__main__":
    print(gpu_table(), cpu_table(), sep="\n\n")
