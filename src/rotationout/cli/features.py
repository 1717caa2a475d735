"""``rotationout features``: the features of a speech corpus in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json
from .output import print_json
from .trouble import check_file

__all__ = ["features"]


def features(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", exists=True, help="A corpus with a manifest.tsv, or Kaldi's data directories."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    split: Annotated[
        list[str] | None, typer.Option("--split", metavar="NAME", help="Only this split. Repeat for several.")
    ] = None,
    json: Json = False,
) -> None:
    """Compute the features of a speech corpus, to train on a machine without the audio.

    Utterances that cannot be used are left out and counted.

    Example:
        rotationout features CORPUS an4.pt --split train --split test
    """
    from ..experiments.problems import counts
    from ..experiments.results import check_folders
    from ..experiments.speech.features import open_corpus, save

    check_file(file, "FILE")  # before the work, not after it
    check_folders(file.parent)
    found = open_corpus(data, split or None)
    save(found, file)
    left_out = counts(found.problems)
    if json:
        print_json({"file": str(file), "utterances": len(found), "bytes": file.stat().st_size, "left_out": left_out})
        return
    skipped = "".join(f", {count} left out: {reason}" for reason, count in left_out.items())
    print(f"{file}: {len(found)} utterances, {file.stat().st_size / 1e6:.1f} MB{skipped}")
