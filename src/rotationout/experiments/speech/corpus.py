"""Read the list of utterances of a corpus: a folder with a manifest, or Kaldi's data directories.

*Manifest*: ``manifest.tsv`` with at least the columns of `COLUMNS`, and the audio in ``flac/<split>/<utt>.flac``: the
layout in which CMU's AN4 can be had. *Kaldi*: a folder for each split, which holds ``wav.scp``, ``text``, ``utt2spk``
and perhaps ``segments`` (https://kaldi-asr.org/doc/data_prep.html).

Mistakes in these files are errors that name the file and the line. Problems of single utterances are found later, when
`features` reads their audio and `batches` their text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Utterance", "read_corpus", "read_kaldi", "read_manifest"]

COLUMNS = ("utt", "split", "speaker", "text")


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
            missing, rows = set(COLUMNS).difference(table.fieldnames or ()), list(table)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{manifest} must be UTF-8 text, columns between tabs: {error}") from error
    if missing:
        raise ValueError(f"{manifest} needs the columns {', '.join(COLUMNS)}; it lacks {', '.join(sorted(missing))}")
    for number, row in enumerate(rows, start=2):
        if any(row[column] is None for column in COLUMNS) or None in row:
            raise ValueError(f"{manifest}, line {number}: the columns do not match those of the first line")
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


def read_kaldi(folder: Path | str, split: str) -> list[Utterance]:
    """The utterances of ``folder/split``, a Kaldi data directory, in the order of its ``text``.

    Transcripts are converted to capitals, and words in angle brackets, as ``<NOISE>``, are removed, as nobody said
    them. Relative paths start at the directory. A command instead of a path, ``sph2pipe … |``, is an error; it is never
    run.
    """
    directory = Path(folder) / split
    recordings = {name: _path(directory, name, rest) for name, rest in _read(directory / "wav.scp").items()}
    texts, speakers = _read(directory / "text"), _read(directory / "utt2spk")
    pieces: dict[str, tuple[str, float, float | None]] = {name: (name, 0.0, None) for name in recordings}
    listed = "wav.scp"
    if (directory / "segments").is_file():
        listed = "segments"
        pieces = {name: _piece(directory, name, rest) for name, rest in _read(directory / "segments").items()}
    for name in texts:
        for file, names in ((listed, pieces), ("utt2spk", speakers)):
            if name not in names:
                raise ValueError(f"{directory / 'text'} has an utterance {name!r} that {file} lacks")
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


def _path(directory: Path, name: str, rest: str) -> Path:
    if rest.endswith("|"):
        raise ValueError(
            f"{directory / 'wav.scp'}: {name!r} has a command, {rest!r}, and commands are not run; convert the audio "
            "to WAV or FLAC files of one channel at 16 kHz and give their paths"
        )
    if not rest:
        raise ValueError(f"{directory / 'wav.scp'}: {name!r} has no path")
    return directory / rest


def _piece(directory: Path, name: str, rest: str) -> tuple[str, float, float | None]:
    try:
        recording, start, end = rest.split()
        piece = recording, float(start), None if float(end) < 0 else float(end)  # −1 stands for the end
    except ValueError as error:
        raise ValueError(
            f"{directory / 'segments'}: {name!r} must have a recording, a start and an end in seconds, got {rest!r}"
        ) from error
    if piece[1] < 0 or (piece[2] is not None and piece[2] <= piece[1]):
        raise ValueError(f"{directory / 'segments'}: {name!r} must end after it starts, got {rest!r}")
    return piece


def _words(text: str) -> str:
    return " ".join(word for word in text.upper().split() if not re.fullmatch(r"<[^<>]*>", word))
