"""The command ``rotationout``: run a row of a table, or all that are missing, and print what came out."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .experiments.config import Config
from .recipes import TABLES
from .strength import check_choice

__all__ = ["main"]

FIXED = ("recipe", "row", "seed")
"""Fields that have options of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        print(f"rotationout: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rotationout: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rotationout", description="Experiments with RotationOut.")
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="run one row of a table")
    train.add_argument("recipe", help=f"a table: {', '.join(TABLES)}")
    train.add_argument("--row", default="none", help="the row; `rotationout rows TABLE` lists them")
    train.add_argument("--seed", type=int, default=0)
    train.set_defaults(run=_train)
    sweep = commands.add_parser("sweep", help="run every row and seed that has no record")
    sweep.add_argument("recipe", help=f"a table: {', '.join(TABLES)}")
    sweep.add_argument("--rows", nargs="+", help="only these rows")
    sweep.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    sweep.add_argument("--together", type=int, default=1, help="runs that share the device")
    sweep.set_defaults(run=_sweep)
    rows = commands.add_parser("rows", help="list the rows of a table")
    rows.add_argument("recipe")
    rows.set_defaults(run=_rows)
    table = commands.add_parser("table", help="what the records of a table say, beside the paper")
    table.add_argument("recipe")
    table.add_argument("--out", type=Path, default=Path("results"), help="where the records are")
    table.set_defaults(run=_print_table)
    for command in (train, sweep):
        command.add_argument("--data", type=Path, required=True, help="the folder that holds cifar-100-python/")
        command.add_argument("--out", type=Path, default=Path("results"), help="where records go")
        command.add_argument("--checkpoints", type=Path, default=Path("out/checkpoints"))
        command.add_argument("--device", default=None, help="cuda if there is one, else cpu")
        command.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long, with checkpoints")
        fields = command.add_argument_group("fields of the config, instead of the recipe's")
        for field in dataclasses.fields(Config):
            if field.name not in FIXED:
                fields.add_argument(f"--{field.name.replace('_', '-')}", metavar=str(field.type).upper())
    return parser


def _table(options: argparse.Namespace) -> list[Config]:
    return TABLES[check_choice("recipe", options.recipe, TABLES)]()


def _rows(options: argparse.Namespace) -> int:
    print("\n".join(config.row for config in _table(options)))
    return 0


def _print_table(options: argparse.Namespace) -> int:
    from .experiments.results import read_records
    from .report.table1 import table1

    print(table1(read_records(options.out, options.recipe)))
    return 0


def _train(options: argparse.Namespace) -> int:
    return _run(options, [options.row], [options.seed], together=1)


def _sweep(options: argparse.Namespace) -> int:
    rows = options.rows or [config.row for config in _table(options)]
    return _run(options, rows, options.seeds, options.together)


def _run(options: argparse.Namespace, rows: Sequence[str], seeds: Sequence[int], together: int) -> int:
    import torch

    from .experiments.sweep import load_images, sweep

    table = {config.row: config for config in _table(options)}
    changes = _changes(options)
    if changes:  # another experiment: its records must not pass for the recipe's
        changes["recipe"] = "_".join([options.recipe, *(f"{name}={_plain(value)}" for name, value in changes.items())])
    chosen = [table[check_choice("row", row, table)] for row in rows]
    configs = [config.replace(**changes, seed=seed) for seed in seeds for config in chosen]
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    splits = {config.held_out: config for config in configs}
    images = {held_out: load_images(config, options.data, device) for held_out, config in splits.items()}
    left = sweep(
        configs,
        images,
        folder=options.out,
        checkpoints=options.checkpoints,
        together=together,
        limit_seconds=60 * options.minutes,
    )
    if left:
        print(f"{len(left)} runs are left; run the same command again to go on", file=sys.stderr)
    return 0


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The fields given on the command line, as values of their types."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        text = None if field.name in FIXED else getattr(options, field.name)
        if text is not None:
            found[field.name] = _parse(field.name, str(field.type), text)
    return found


def _plain(value: Any) -> str:
    """A value as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", json.dumps(value)).strip("-")


def _parse(name: str, kind: str, text: str) -> Any:
    option = f"--{name.replace('_', '-')}"
    try:
        if kind == "int":
            return int(text.replace("_", ""))
        if kind == "float":
            return float(text)
        if kind.startswith("tuple"):
            return tuple(int(part) for part in text.replace(",", " ").split())
        if kind.startswith("dict"):
            value = json.loads(text)
            if not isinstance(value, dict):
                raise ValueError("not an object")
            return value
    except ValueError as error:
        example = {"int": "100", "float": "0.1", "tuple[int, ...]": "2,3"}.get(kind, "'{\"dims\": 2}'")
        raise ValueError(f"{option} must be {kind}, for instance {example}, got {text!r}") from error
    return text


if __name__ == "__main__":
    sys.exit(main())
