"""Speech for tests: made-up features, files of audio, whole and cut off, and where the AN4 corpus is."""

import importlib.util
from pathlib import Path

import pytest
import torch

from rotationout.experiments.speech.features import Features

AN4 = Path(__file__).parents[2] / "shared" / "data" / "an4"


has_soundfile = importlib.util.find_spec("soundfile") is not None
needs_soundfile = pytest.mark.skipif(not has_soundfile, reason="soundfile, of the extra 'speech', is not installed")


needs_an4 = pytest.mark.skipif(not AN4.is_dir(), reason=f"the AN4 corpus is not at {AN4}")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def rewrite(path: Path, samples: torch.Tensor, rate: int = 16_000, subtype: str | None = None) -> None:
    import soundfile

    soundfile.write(path, samples.numpy(), rate, subtype=subtype)


def made(count: int, texts: dict[int, str] | None = None) -> Features:
    """Utterances of 70, 73, … frames, by five speakers."""
    lengths = torch.tensor([70 + 3 * i for i in range(count)])
    return Features(
        frames=torch.randn(int(lengths.sum()), 40).half(),
        lengths=lengths,
        names=[f"u{i}" for i in range(count)],
        splits=["train"] * count,
        speakers=[f"s{i % 5}" for i in range(count)],
        texts=[(texts or {}).get(i, "YES" if i % 2 else "GO ON") for i in range(count)],
    )
