"""The command ``rotationout``: run a row of a table, or all that are missing; print, draw and show what came out."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .experiments import processes
from .experiments.config import Config
from .experiments.tasks import TASKS, maker
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
    except (ValueError, TypeError, OSError, FloatingPointError, ImportError) as error:
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
    features = commands.add_parser("features", help="compute the features of a speech corpus, to use them elsewhere")
    features.add_argument("data", type=Path, help="a corpus with a manifest.tsv, or Kaldi's data directories")
    features.add_argument("file", type=Path, help="where to write them")
    features.add_argument("--splits", nargs="+", help="only these splits")
    features.set_defaults(run=_features)
    images = commands.add_parser("images", help="pack folders of images into a file for each split, to use elsewhere")
    images.add_argument("data", type=Path, help="a folder with train/<class>/ and val/<class>/")
    images.add_argument("folder", type=Path, help="where to write them")
    images.add_argument("--splits", nargs="+", default=["train", "val"], help="only these splits")
    images.set_defaults(run=_images)
    score = commands.add_parser("score", help="score detections that were made where pycocotools is absent")
    score.add_argument("recipe")
    score.add_argument("--data", type=Path, required=True, help="the data set; only its annotations are read")
    score.add_argument("--out", type=Path, default=Path("results"), help="where the records are")
    score.add_argument("--again", action="store_true", help="also records that have scores")
    score.add_argument("--picture", type=Path, metavar="DIR", help="draw detections on test images there")
    score.set_defaults(run=_score)
    figures = commands.add_parser("figures", help="write the figures of the theory and of records: SVG, PNG and CSV")
    figures.add_argument("names", nargs="*", help="only these; all if none is named")
    figures.add_argument("--out", type=Path, default=Path("out/figures"), help="where they go")
    figures.add_argument("--results", type=Path, default=Path("results"), help="where the records are")
    figures.add_argument("--list", action="store_true", help="name them and write nothing")
    figures.set_defaults(run=_figures)
    report = commands.add_parser("report", help="write one HTML page of all records, beside the paper")
    report.add_argument("--out", type=Path, default=Path("out"), help="the folder of index.html")
    report.add_argument("--results", type=Path, default=Path("results"), help="where the records of runs are")
    report.add_argument("--benchmarks", type=Path, default=Path("benchmarks/results"), help="and those of benchmarks")
    report.add_argument("--no-theory", action="store_true", help="leave the figures of the theory off")
    report.set_defaults(run=_report)
    for command in (train, sweep):
        data = "; ".join(f"{task.title}: {task.data}" for task in TASKS.values())
        command.add_argument("--data", type=Path, required=True, help=data)
        command.add_argument("--out", type=Path, default=Path("results"), help="where records go")
        command.add_argument("--checkpoints", type=Path, default=Path("out/checkpoints"))
        command.add_argument(
            "--device", default=None, help="cuda if there is one, else cpu; torchrun gives each process its own"
        )
        command.add_argument("--compile", action="store_true", help="faster steps of a run that has a GPU to itself")
        command.add_argument("--tensorboard", type=Path, metavar="DIR", help="where scalars for TensorBoard go")
        command.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long, with checkpoints")
        _add_fields(command)
    return parser


def _add_fields(command: argparse.ArgumentParser) -> None:
    """An option for every field of every config: those that all have, then those of each task."""
    groups: list[tuple[str, type[Config]]] = [("all configs", Config)]
    groups += [(f"configs of {task.title}", config) for config, task in TASKS.items()]
    known = set(FIXED)
    for title, config in groups:
        fields = command.add_argument_group(f"fields of {title}, instead of the recipe's")
        for field in dataclasses.fields(config):
            if field.name not in known:
                known.add(field.name)
                fields.add_argument(f"--{field.name.replace('_', '-')}", metavar=_kind(field).upper())


def _table(options: argparse.Namespace) -> Sequence[Config]:
    return TABLES[check_choice("recipe", options.recipe, TABLES)]()


def _rows(options: argparse.Namespace) -> int:
    print("\n".join(config.row for config in _table(options)))
    return 0


def _print_table(options: argparse.Namespace) -> int:
    from .experiments.results import read_records

    # Fields changed on the command line are in the name of what was run, behind that of the table.
    names = [name for name in TABLES if options.recipe == name or options.recipe.startswith(f"{name}_")]
    name = max(names, key=len) if names else check_choice("recipe", options.recipe, TABLES)
    task, records = TASKS[type(TABLES[name]()[0])], read_records(options.out, options.recipe)
    print(task.table(records).markdown())
    if notes := task.notes(records):
        print(f"\n{notes}")
    return 0


def _features(options: argparse.Namespace) -> int:
    from .experiments.problems import counts
    from .experiments.speech.features import open_corpus, save

    found = open_corpus(options.data, options.splits)
    save(found, options.file)
    skipped = "".join(f", {count} left out: {reason}" for reason, count in counts(found.problems).items())
    print(f"{options.file}: {len(found)} utterances, {options.file.stat().st_size / 1e6:.1f} MB{skipped}")
    return 0


def _images(options: argparse.Namespace) -> int:
    from .experiments.images.files import pack

    for path in pack(options.data, options.folder, options.splits):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def _score(options: argparse.Namespace) -> int:
    from .experiments.detection.scoring import score_records

    for path, scores in score_records(options.out, options.recipe, options.data, again=options.again).items():
        print(f"{path}: {', '.join(f'{name} {value:.2f}' for name, value in scores.items())}")
    if options.picture is not None:
        from .experiments.results import read_records
        from .report.gallery import write
        from .report.gallery.detections import seen_boxes

        records = read_records(options.out, options.recipe)
        for picture in write([seen_boxes(options.recipe, records, options.data)], options.picture):
            print(picture)
    return 0


def _figures(options: argparse.Namespace) -> int:
    from .report.gallery import write
    from .report.gallery.catalogue import chosen_figures

    chosen = chosen_figures(options.results, options.names)
    if options.list:
        print("\n".join(f"{drawing.name}: {drawing.title}" for drawing in chosen))
        return 0
    for path in write(chosen, options.out):
        print(path)
    return 0


def _report(options: argparse.Namespace) -> int:
    from .report import whole

    benchmarks = options.benchmarks if options.benchmarks.is_dir() else None
    print(whole.write(options.out, options.results, benchmarks, figures=not options.no_theory))
    return 0


def _train(options: argparse.Namespace) -> int:
    return _run(options, [options.row], [options.seed], together=1)


def _sweep(options: argparse.Namespace) -> int:
    rows = options.rows or [config.row for config in _table(options)]
    return _run(options, rows, options.seeds, options.together)


def _run(options: argparse.Namespace, rows: Sequence[str], seeds: Sequence[int], together: int) -> int:
    from .experiments.sweep import sweep

    table = {config.row: config for config in _table(options)}
    chosen = [table[check_choice("row", row, table)] for row in rows]
    changes = _changes(options, type(chosen[0]))
    if changes:  # another experiment: its records must not pass for the recipe's
        changes["recipe"] = "_".join([options.recipe, *(f"{name}={_plain(value)}" for name, value in changes.items())])
    configs = [config.replace(**changes, seed=seed) for seed in seeds for config in chosen]
    with processes.joined(options.device) as device:
        first = processes.rank() == 0
        try:
            left = sweep(
                configs,
                maker(options.data, device, compiled=options.compile),
                folder=options.out,
                checkpoints=options.checkpoints,
                together=together,
                limit_seconds=60 * options.minutes,
                tensorboard=options.tensorboard,
            )
        except KeyboardInterrupt:
            if first:
                raise
            return 130
    if left and first:
        print(f"{len(left)} runs are left; run the same command again to go on", file=sys.stderr)
    return 0


def _changes(options: argparse.Namespace, config: type[Config]) -> dict[str, Any]:
    """The fields given on the command line, as values of their types."""
    types = {field.name: _kind(field) for field in dataclasses.fields(config)}
    every = {field.name for known in TASKS for field in dataclasses.fields(known)}
    given = {name: text for name, text in vars(options).items() if name in every - set(FIXED) and text is not None}
    for name in given:
        if name not in types:
            raise ValueError(f"{_option(name)} is no field of {options.recipe}; its fields are {', '.join(types)}")
    return {name: _parse(name, kind, given[name]) for name, kind in types.items() if name in given}


def _plain(value: Any) -> str:
    """A value as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", json.dumps(value)).strip("-")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind(field: dataclasses.Field[Any]) -> str:
    """The type of a field as it is written."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


EXAMPLES = {
    "int": "100",
    "float": "0.1",
    "bool": "true",
    "dict": "'{\"dims\": 2}'",
    "tuple[int": "2,3",
    "tuple[float": "0.5,0.1",
    "tuple[str": "one,two",
}
"""Of the values of a field, by how its type begins."""


def _parse(name: str, kind: str, text: str) -> Any:
    """The text of an option as a value of the type that its field says."""
    try:
        return _value(kind, text)
    except (ValueError, KeyError) as error:
        example = next(shown for begins, shown in EXAMPLES.items() if kind.startswith(begins))
        raise ValueError(f"{_option(name)} must be {kind}, for instance {example}, got {text!r}") from error


def _value(kind: str, text: str) -> Any:
    plain: dict[str, Callable[[str], Any]] = {
        "int": int,
        "float": float,
        "str": str,
        "bool": lambda word: {"true": True, "false": False}[word.lower()],
    }
    if kind in plain:
        return plain[kind](text)
    if kind.startswith("tuple["):
        member = plain[kind.removeprefix("tuple[").partition(",")[0]]
        return tuple(member(part) for part in text.replace(",", " ").split())
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


if __name__ == "__main__":
    sys.exit(main())
