"""The utterances of a split on one device, and batches of them with about equal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problems import Problem, refuse_if_many, report_all
from .features import Features
from .text import encode, frames_needed

__all__ = ["Batch", "Speech", "bucketed", "select", "without_speakers"]

ROUND = 64
"""Batches are padded to a multiple of so many frames: so few lengths can have a CUDA graph each."""
JITTER = 0.1
"""Utterances are sorted by lengths with a random relative error up to this, so that batches differ between epochs."""
SHOWN = 60
"""The number of characters of a transcript that a report shows."""
HELD_OUT_SEED = 0
"""The seed that chooses held-out speakers: the same ones in every run."""


@dataclass(frozen=True)
class Batch:
    """Padded utterances.

    Attributes:
        features: (T, N, 40), fp32; zero after the end of an utterance.
        lengths: number of frames of each utterance, (N,), int32.
        labels: (N, S), int32; 0 after the end of a transcript.
        sizes: number of labels of each transcript, (N,), int32.
    """

    features: Tensor
    lengths: Tensor
    labels: Tensor
    sizes: Tensor


class Speech:
    """Utterances with their features and labels on one device.

    Utterances are left out, reported, and listed in ``problems``, if their transcript is empty, has a character that
    the alphabet lacks, or is too long for their frames (CTC needs a frame for every character and one more between
    equal ones).

    Args:
        features: the features of the corpus.
        chosen: the numbers of the utterances to use.
        alphabet: the characters of transcripts.
        device: the device to keep them on.
    """

    def __init__(self, features: Features, chosen: Sequence[int], alphabet: str, device: torch.device | str) -> None:
        self.problems: list[Problem] = []
        kept: list[int] = []
        labels: list[list[int]] = []
        for index in chosen:
            problem = _problem_of_text(features, index, alphabet)
            if problem is None:
                kept.append(index)
                labels.append(encode(features.texts[index], alphabet))
            else:
                self.problems.append(problem)
        report_all(self.problems)
        refuse_if_many(self.problems, (features.splits[index] for index in chosen), "utterances")
        if not kept:
            raise ValueError("there are no utterances to choose from")
        self.alphabet = alphabet
        self.names = [features.names[index] for index in kept]
        self.texts = [features.texts[index] for index in kept]
        pieces = features.frames.split(features.lengths.tolist())
        self.frames = torch.cat([pieces[index] for index in kept]).to(device)
        self.durations = features.lengths[kept]
        self.lengths = self.durations.to(device, torch.int32)
        self.starts = (self.durations.cumsum(0) - self.durations).to(device)
        self.label_counts = torch.tensor([len(row) for row in labels])
        self.sizes = self.label_counts.to(device, torch.int32)
        rows = [torch.tensor(row, dtype=torch.int32) for row in labels]
        self.labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def device(self) -> torch.device:
        """The device of the utterances."""
        return self.frames.device

    def padded_length(self, indices: Tensor) -> int:
        """The number of frames to which a batch is padded. ``indices`` are on the CPU: nothing waits for a GPU."""
        return -(-int(self.durations[indices].max()) // ROUND) * ROUND

    def batch(self, indices: Tensor, frames: int) -> Batch:
        """The batch of the utterances ``indices``, padded to ``frames``: one gather, on the device."""
        lengths = self.lengths[indices]
        time = torch.arange(frames, device=self.device).unsqueeze(1)
        outside = time >= lengths
        rows = (self.starts[indices] + time).masked_fill(outside, 0)
        features = self.frames[rows].float().masked_fill(outside.unsqueeze(2), 0)
        return Batch(features, lengths, self.labels[indices], self.sizes[indices])


def _problem_of_text(features: Features, index: int, alphabet: str) -> Problem | None:
    text, name, split = features.texts[index], features.names[index], features.splits[index]
    if not text.strip():
        return Problem(split, name, "empty transcript", f"{name}: its transcript is empty")
    try:
        needed = frames_needed(encode(text, alphabet))
    except ValueError as error:
        return Problem(split, name, "unknown character", f"{name}: {error}")
    frames = int(features.lengths[index])
    if needed > frames:
        start = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        return Problem(
            split,
            name,
            "transcript too long",
            f"{name}: its {frames} frames are too few for {start!r}: CTC needs {needed}, counting a blank "
            "between equal letters",
        )
    return None


def select(features: Features, split: str) -> list[int]:
    """The numbers of the utterances of a split."""
    found = [index for index, name in enumerate(features.splits) if name == split]
    if not found:
        raise ValueError(f"split must be one of {', '.join(sorted(set(features.splits)))}, got {split!r}")
    return found


def without_speakers(features: Features, chosen: Sequence[int], held_out: int) -> tuple[list[int], list[int]]:
    """Split utterances by speaker: all but those of ``held_out`` speakers, and those; the same ones in every run."""
    speakers = sorted({features.speakers[index] for index in chosen})
    if not 0 < held_out < len(speakers):
        raise ValueError(f"held_out must be at least 1 and less than the {len(speakers)} speakers, got {held_out!r}")
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(HELD_OUT_SEED)).tolist()
    away = {speakers[place] for place in order[:held_out]}
    kept = [index for index in chosen if features.speakers[index] not in away]
    return kept, [index for index in chosen if features.speakers[index] in away]


def bucketed(durations: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """The batches of an epoch, (batches, batch): each of utterances with about equal lengths, in random order.

    All batches are whole. The utterances left over, others in every epoch, are not used.

    >>> lengths = torch.tensor([90, 10, 50, 12, 88, 11, 52, 13])
    >>> batches = bucketed(lengths, 2, torch.Generator().manual_seed(0))
    >>> sorted(lengths[batches].amax(1).tolist())
    [11, 13, 52, 90]
    """
    count = len(durations) // batch
    chosen = torch.randperm(len(durations), generator=generator)[: count * batch]
    blur = 1 + JITTER * (2 * torch.rand(len(chosen), generator=generator) - 1)
    rows = chosen[(durations[chosen] * blur).argsort()].view(count, batch)
    return rows[torch.randperm(count, generator=generator)]
