"""Convert transcripts to labels for CTC (Graves et al. 2006), and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["ALPHABET", "WSJ_ALPHABET", "decode", "encode", "frames_needed"]

ALPHABET = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The characters of transcripts. Label 0 is CTC's blank, label i the character ``alphabet[i - 1]``."""
WSJ_ALPHABET = ALPHABET + '!"&()*,-./:;?_`{}~'
"""The characters of the WSJ corpus, whose speakers read punctuation out, as in ``,COMMA``."""


def encode(text: str, alphabet: str = ALPHABET) -> list[int]:
    """A transcript as labels.

    >>> encode("A B")
    [3, 1, 4]
    """
    unknown = sorted(set(text) - set(alphabet))
    if unknown:
        raise ValueError(
            f"text has {', '.join(map(repr, unknown))}, which the alphabet {alphabet!r} lacks, got {text!r}"
        )
    return [alphabet.index(character) + 1 for character in text]


def decode(path: Iterable[int], alphabet: str = ALPHABET) -> str:
    """The text of a path of labels, one for each frame: repeats are merged, then blanks removed.

    >>> decode([0, 3, 3, 0, 3, 1, 1, 4])
    'AA B'
    """
    labels = list(path)
    merged = [label for label, before in zip(labels, [0, *labels], strict=False) if label != before]
    return "".join(alphabet[label - 1] for label in merged if label)


def frames_needed(labels: Sequence[int]) -> int:
    """The length of the shortest CTC path for ``labels``: a frame for each, and a blank between equal neighbours.

    >>> frames_needed(encode("BOOK")), len(decode([4, 17, 0, 17, 13]))
    (5, 4)
    """
    return len(labels) + sum(label == before for label, before in zip(labels[1:], labels, strict=False))
