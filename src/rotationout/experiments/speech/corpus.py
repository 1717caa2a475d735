"""Read the list of utterances of a corpus: a folder with a manifest, or Kaldi's data directories.

*Manifest*: ``manifest.tsv`` with at least the columns of `COLUMNS`, and the audio in ``flac/<split>/<utt>.flac``: the
layout in which CMU's AN4 can be had. *Kaldi*: a folder for each split, which holds ``wav.scp``, ``text``, ``utt2spk``
and perhaps ``segments`` (https://kaldi-asr.org/doc/data_prep.html).

Mistakes in these files are errors that name the file and the line. Problems of single utterances are found later, when
`features` reads their audio and `batches` their text.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["Utterance", "read_corpus", "read_kaldi", "read_manifest"]

COLUMNS = ("utt", "split", "speaker", "text")

T = TypeVar("T")


@dataclass(frozen=True)
class Utterance:
    """A recording, or a piece of it from ``start`` to ``end`` in seconds, with its transcript."""

    name: str
    split: str
    speaker: str
    text: str
    path: Path
    start: float = 0.0
    end: float | None = None


def read_corpus(folder: Path | str, splits: Sequence[str] | None = None) -> list[Utterance]:
    """The utterances of a corpus in either layout: of these splits, by default of all."""
    root = Path(folder)
    if (root / "manifest.tsv").is_file():
        return read_manifest(root) if splits is None else [u for split in splits for u in read_manifest(root, split)]
    found = sorted(path.parent.name for path in root.glob("*/wav.scp"))
    if not found:
        raise FileNotFoundError(
            f"{root} has neither a manifest.tsv nor a folder with a wav.scp: it must be a corpus with a manifest, or "
            "hold Kaldi's data directories, one for each split"
        )
    missing = sorted(set(splits or ()) - set(found))
    if missing:
        raise FileNotFoundError(f"{root} has no {', '.join(missing)}; of Kaldi's data directories it has {found}")
    return [utterance for split in splits or found for utterance in read_kaldi(root, split)]


def read_manifest(folder: Path | str, split: str | None = None) -> list[Utterance]:
    """The utterances of a corpus with a manifest, in its order: of one split, by default of all."""
    root = Path(folder)
    manifest = root / "manifest.tsv"
    if not manifest.is_file():
        raise FileNotFoundError(f"{root} has no manifest.tsv; folder must hold that and flac/<split>/<utt>.flac")
    with manifest.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            missing, rows = set(COLUMNS).difference(table.fieldnames or ()), [(table.line_num, row) for row in table]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{manifest} must be UTF-8 text, columns between tabs: {error}") from error
    if missing:
        raise ValueError(f"{manifest} needs the columns {', '.join(COLUMNS)}; it lacks {', '.join(sorted(missing))}")
    seen: set[tuple[str, str]] = set()
    for number, row in rows:
        if any(row[column] is None for column in COLUMNS) or None in row:
            raise ValueError(f"{manifest}, line {number}: the columns do not match those of the first line")
        if (row["split"], row["utt"]) in seen:
            raise ValueError(f"{manifest}, line {number}: {row['utt']!r} of {row['split']!r} is there twice")
        seen.add((row["split"], row["utt"]))
    splits = sorted({row["split"] for _, row in rows})
    if split is not None and split not in splits:
        raise ValueError(f"split must be one of {', '.join(map(repr, splits))}, got {split!r}")
    return [
        Utterance(
            row["utt"], row["split"], row["speaker"], row["text"], root / "flac" / row["split"] / f"{row['utt']}.flac"
        )
        for _, row in rows
        if split in (None, row["split"])
    ]


def read_kaldi(folder: Path | str, split: str) -> list[Utterance]:
    """The utterances of ``folder/split``, a Kaldi data directory, in the order of its ``text``.

    All tables must have the same utterances. Transcripts are converted to capitals, and words in angle brackets, as
    ``<NOISE>``, are removed, as nobody said them. Relative paths start at the directory. A command instead of a path,
    ``sph2pipe … |``, is an error; it is never run.
    """
    directory = Path(folder) / split
    recordings = _each(directory / "wav.scp", _path)
    texts, speakers = _read(directory / "text"), _read(directory / "utt2spk")
    pieces: dict[str, tuple[str, float, float | None]] = {name: (name, 0.0, None) for name in recordings}
    listed = "wav.scp"
    if (directory / "segments").is_file():
        listed = "segments"
        pieces = _each(directory / "segments", _piece)
    if not texts:
        raise ValueError(f"{directory / 'text'} is empty; it must have a line for each utterance of {split!r}")
    for file, names in ((listed, pieces), ("utt2spk", speakers)):
        for one, other, missing in (("text", file, texts.keys() - names), (file, "text", names.keys() - texts)):
            if missing:
                raise ValueError(f"{directory / one} has an utterance {min(missing)!r} that {other} lacks")
    for name in texts:
        if pieces[name][0] not in recordings:
            raise ValueError(f"{directory / 'segments'} has a recording {pieces[name][0]!r} that wav.scp lacks")
    return [
        Utterance(name, split, speakers[name], _words(text), recordings[pieces[name][0]], *pieces[name][1:])
        for name, text in texts.items()
    ]


def _read(path: Path) -> dict[str, str]:
    """Read a Kaldi table: every line is a name, space, and the rest."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a data directory of Kaldi's has wav.scp, text and utt2spk")
    table: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from error
    for number, line in enumerate(lines, start=1):
        name, *rest = line.split(maxsplit=1) or [""]
        if not name or name in table:
            raise ValueError(f"{path}, line {number}: {f'{name!r} is there twice' if name else 'the line is empty'}")
        table[name] = rest[0].strip() if rest else ""
    return table


def _each(path: Path, convert: Callable[[Path, str], T]) -> dict[str, T]:
    """Read a Kaldi table, and convert what follows each name; a ValueError names the file, the line and the name."""
    table: dict[str, T] = {}
    for number, (name, rest) in enumerate(_read(path).items(), start=1):  # each line has a name of its own
        try:
            table[name] = convert(path.parent, rest)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {name!r} {error}") from error
    return table


def _path(directory: Path, rest: str) -> Path:
    if rest.endswith("|"):
        raise ValueError(
            f"has a command, {rest!r}, and commands are not run; convert the audio to WAV or FLAC files of one channel "
            "at 16 kHz and give their paths"
        )
    if not rest:
        raise ValueError("has no path")
    return directory / rest


def _piece(_: Path, rest: str) -> tuple[str, float, float | None]:
    try:
        recording, *times = rest.split()
        start, end = map(float, times)
    except ValueError as error:
        raise ValueError(f"must have a recording, a start and an end in seconds, got {rest!r}") from error
    if not math.isfinite(start) or not math.isfinite(end):
        raise ValueError(f"must start and end at finite numbers of seconds, got {rest!r}")
    if start < 0 or 0 <= end <= start:
        raise ValueError(f"must end after it starts, got {rest!r}")
    return recording, start, None if end < 0 else end  # −1 stands for the end


def _words(text: str) -> str:
    return " ".join(word for word in text.upper().split() if not re.fullmatch(r"<[^<>]*>", word))
