"""``rotationout images``: folders of images, a file for each split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json
from .output import print_json

__all__ = ["images"]


def images(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", exists=True, help="A folder with train/<class>/ and val/<class>/.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="NAME", help="This split instead of train and val; may be given again."),
    ] = None,
    json: Json = False,
) -> None:
    """Pack folders of images into a file for each split, which is quicker to copy to another machine.

    The images are packed as they are; those that are damaged are found when they are used.

    Example:
        rotationout images IMAGEWOOF out/imagewoof
    """
    from ..experiments.images.files import pack

    paths = pack(data, folder, split or ["train", "val"])
    if json:
        print_json([{"file": str(path), "bytes": path.stat().st_size} for path in paths])
        return
    for path in paths:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
