"""Scores of recognised text: greedy CTC decoding, edit distances and the character error rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .text import decode

__all__ = ["examples", "greedy", "score", "torchmetrics_text"]

SHOWN = 6


def greedy(paths: Tensor, lengths: Sequence[int], alphabet: str) -> list[str]:
    """Greedy decoding: the text of each utterance from the likeliest label of every frame, (T, N)."""
    return [decode(path[:length], alphabet) for path, length in zip(paths.T.tolist(), lengths, strict=True)]


def score(heard: Sequence[str], said: Sequence[str]) -> dict[str, float]:
    """The mean edit distance per utterance, in characters, and the character error rate in per cent.

    The rate is the sum of all distances over the sum of all lengths; both come from torchmetrics.

    >>> score(["YES", "N"], ["YES", "NO"])
    {'distance': 0.5, 'cer': 20.0}
    """
    text = torchmetrics_text()
    distances = text.edit_distance(heard, said, reduction="none")
    rate = 100 * float(text.char_error_rate(heard, said))
    return {"distance": round(float(distances.double().mean()), 4), "cer": round(rate, 4)}


def examples(heard: Sequence[str], said: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """A few recognised texts with their references, evenly spread over the utterances, good or bad."""
    chosen = range(0, len(said), max(1, len(said) // SHOWN))[:SHOWN]
    return [{"name": names[i], "said": said[i], "heard": heard[i]} for i in chosen]


def torchmetrics_text() -> Any:
    """The part of torchmetrics that scores text, or an error that says how to install it."""
    try:
        from torchmetrics.functional import text
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("edit distances need torchmetrics: pip install 'rotationout[speech]'") from error
    return text
