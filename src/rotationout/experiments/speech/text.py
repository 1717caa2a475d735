"""Transcripts as labels for CTC (Graves et al. 2006), and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["ALPHABET", "WSJ_ALPHABET", "decode", "encode", "frames_needed"]

ALPHABET = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What transcripts are written in. Label 0 is CTC's blank, label i the character ``alphabet[i - 1]``."""
WSJ_ALPHABET = ALPHABET + '!"&()*,-./:;?_`{}~'
"""That of the WSJ corpus, whose speakers read punctuation out, as in ``,COMMA``."""


def encode(text: str, alphabet: str = ALPHABET) -> list[int]:
    """A transcript as labels.

    >>> encode("A B")
    [3, 1, 4]
    """
    unknown = sorted(set(text) - set(alphabet))
    if unknown:
        raise ValueError(f"text holds {', '.join(map(repr, unknown))}, the alphabet is {alphabet!r}, got {text!r}")
    return [alphabet.index(character) + 1 for character in text]


def decode(path: Iterable[int], alphabet: str = ALPHABET) -> str:
    """What a path of labels, one for each frame, says: repeats merged, then blanks removed.

    >>> decode([0, 3, 3, 0, 3, 1, 1, 4])
    'AA B'
    """
    labels = list(path)
    merged = [label for label, before in zip(labels, [0, *labels], strict=False) if label != before]
    return "".join(alphabet[label - 1] for label in merged if label)


def frames_needed(labels: Sequence[int]) -> int:
    """The frames of the shortest path that says ``labels``: one for each, and a blank between equal neighbours.

    >>> frames_needed(encode("BOOK")), len(decode([4, 17, 0, 17, 13]))
    (5, 4)
    """
    return len(labels) + sum(label == before for label, before in zip(labels[1:], labels, strict=False))
