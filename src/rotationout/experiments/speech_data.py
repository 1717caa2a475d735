"""Transcribed speech for CTC: a folder of utterances, their log filter-bank features, and text as labels.

A data set is a folder with ``manifest.tsv`` (columns utt, split, speaker, seconds, frames, text, of which those in
`COLUMNS` are read) and ``flac/<split>/<utt>.flac``: the layout in which CMU's AN4 can be had. Reading audio needs the
extra ``speech``.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = [
    "ALPHABET",
    "FEATURES",
    "Utterance",
    "decode",
    "encode",
    "features_of",
    "log_filter_banks",
    "read_audio",
    "read_manifest",
]

COLUMNS = ("utt", "split", "speaker", "text")
SAMPLE_RATE = 16_000
WINDOW, HOP = 400, 160
"""A frame of 25 ms every 10 ms, in samples."""
FEATURES = 40
"""Filter banks, as many as the paper's network has inputs."""
ALPHABET = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What transcripts are written in. Label 0 is CTC's blank, label i the character ``ALPHABET[i - 1]``."""


@dataclass(frozen=True)
class Utterance:
    """One recording and what was said."""

    name: str
    split: str
    speaker: str
    text: str
    path: Path


def read_manifest(folder: Path | str, split: str | None = None) -> list[Utterance]:
    """The utterances of a data set, of one split if it is named, in the order of the manifest."""
    root = Path(folder)
    manifest = root / "manifest.tsv"
    if not manifest.is_file():
        raise FileNotFoundError(f"{root} has no manifest.tsv; folder must hold that and flac/<split>/<utt>.flac")
    with manifest.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        missing = set(COLUMNS).difference(table.fieldnames or ())
        if missing:
            raise ValueError(
                f"{manifest} needs the columns {', '.join(COLUMNS)}; it lacks {', '.join(sorted(missing))}"
            )
        rows = list(table)
    for number, row in enumerate(rows, start=2):
        if any(row[column] is None for column in COLUMNS) or None in row:
            raise ValueError(f"{manifest}, line {number}: the columns do not fit those of the first line")
    splits = sorted({row["split"] for row in rows})
    if split is not None and split not in splits:
        raise ValueError(f"split must be one of {', '.join(map(repr, splits))}, got {split!r}")
    return [
        Utterance(
            row["utt"], row["split"], row["speaker"], row["text"], root / "flac" / row["split"] / f"{row['utt']}.flac"
        )
        for row in rows
        if split in (None, row["split"])
    ]


def read_audio(utterance: Utterance) -> Tensor:
    """The samples of an utterance, fp32 in [−1, 1)."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading audio needs soundfile: pip install 'rotationout[speech]'") from error
    if not utterance.path.is_file():
        raise FileNotFoundError(f"the audio of utterance {utterance.name!r} is not at {utterance.path}")
    samples, rate = soundfile.read(utterance.path, dtype="float32", always_2d=True)
    if rate != SAMPLE_RATE or samples.shape[1] != 1:
        raise ValueError(
            f"{utterance.path} must have one channel at {SAMPLE_RATE} Hz, got {samples.shape[1]} at {rate} Hz"
        )
    return torch.from_numpy(samples[:, 0])


def log_filter_banks(samples: Tensor, features: int = FEATURES) -> Tensor:
    """The logarithm of the energy in bands that are equally wide on the mel scale, (frames, features)."""
    if samples.ndim != 1 or samples.numel() < WINDOW:
        raise ValueError(f"samples must be a vector of at least {WINDOW}, one frame, got shape {tuple(samples.shape)}")
    frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW, dtype=samples.dtype, device=samples.device)
    power = torch.fft.rfft(frames).abs().square()
    energy: Tensor = power @ _mel_bands(features).to(power)
    return energy.clamp(min=1e-10).log()  # digital silence has no energy, and its logarithm no bound


def features_of(utterance: Utterance) -> Tensor:
    """The features of an utterance, each with mean 0 and variance 1 over its frames, (frames, 40)."""
    features = log_filter_banks(read_audio(utterance))
    return (features - features.mean(0)) / features.std(0).clamp(min=1e-5)


@functools.lru_cache(maxsize=4)
def _mel_bands(features: int) -> Tensor:
    """The weight of every frequency of a frame's spectrum in each band, (WINDOW // 2 + 1, features).

    Bands are triangles that reach from the peak of the one before to the peak of the next; their peaks are equally far
    apart in mel(f) = 2595 · log10(1 + f / 700) (O'Shaughnessy 1987), from 0 to half the sample rate.
    """
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, features + 2, dtype=torch.float64) / 2595) - 1)
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    frequency = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1, dtype=torch.float64).unsqueeze(1)
    rise, fall = (frequency - low) / (peak - low), (high - frequency) / (high - peak)
    return torch.minimum(rise, fall).clamp(min=0)


def encode(text: str) -> Tensor:
    """A transcript as labels.

    >>> encode("A B").tolist()
    [3, 1, 4]
    """
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise ValueError(f"text holds {', '.join(map(repr, unknown))}, the alphabet is {ALPHABET!r}, got {text!r}")
    return torch.tensor([ALPHABET.index(character) + 1 for character in text], dtype=torch.long)


def decode(path: Iterable[int]) -> str:
    """What a path of labels, one for each frame, says: repeats merged, then blanks removed (Graves et al. 2006).

    >>> decode([0, 3, 3, 0, 3, 1, 1, 4])
    'AA B'
    """
    labels = list(path)
    merged = [label for label, before in zip(labels, [0, *labels], strict=False) if label != before]
    return "".join(ALPHABET[label - 1] for label in merged if label)
