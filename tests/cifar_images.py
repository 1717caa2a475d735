"""Random images of CIFAR's size, and files as those of CIFAR-100."""

import pickle
from pathlib import Path

import pytest
import torch

from rotationout.experiments import cifar
from rotationout.experiments.cifar import Images

np = pytest.importorskip("numpy")


def images(count: int, seed: int = 0) -> Images:
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=source)
    return Images(pixels, torch.randint(100, (count,), generator=source))


def write_cifar(folder: Path, split: str, **changes: object) -> Path:
    count = cifar.COUNTS[split]
    content = {
        "data": np.zeros((count, 3072), dtype=np.uint8),
        "fine_labels": [i % 100 for i in range(count)],
        **changes,
    }
    path = folder / "cifar-100-python" / split
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path
