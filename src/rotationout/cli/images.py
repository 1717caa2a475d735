"""``rotationout images``: pack folders of images, one file for each split."""

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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the files to.")],
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="NAME", help="This split instead of train and val. Repeat for several."),
    ] = None,
    json: Json = False,
) -> None:
    """Pack folders of images into one file per split, which is quicker to copy to another machine.

    The images are packed unchanged and unchecked; training leaves out those that are damaged. A file
    that cannot be read is packed as an empty one, which training leaves out too.

    Example:
        rotationout images IMAGEWOOF out/imagewoof
    """
    from ..experiments.images.files import pack
    from ..experiments.results import check_folders

    check_folders(folder)  # before the work, not after it
    paths = pack(data, folder, split or ["train", "val"])
    if json:
        print_json([{"file": str(path), "bytes": path.stat().st_size} for path in paths])
        return
    for path in paths:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
