"""The README says what the records say, its code runs, its links lead somewhere, and it is short."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.records import RESULTS
from benchmarks.tables import gpu_table

import rotationout as ro
from rotationout.bench.noises import DEFAULT
from rotationout.cli.app import COMMANDS
from rotationout.experiments.records import Study
from rotationout.experiments.results import read_records
from rotationout.report.cells import by_row, p_value, spread
from rotationout.report.digits import difference, percent
from rotationout.report.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())


def rows(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]


def by_tensor(name: str) -> list[dict[str, dict[str, Any]]]:
    """For every tensor the rows of its noises."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows(name):
        found.setdefault(row["tensor"], {})[row["noise"]] = row
    return list(found.values())


def _either(noises: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """A row whether it is the default or not."""
    return noises[name] if name in noises else noises[f"{name}{DEFAULT}"]


def span(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def test_the_speed_table_is_that_of_the_record() -> None:
    assert gpu_table() in README


def test_numbers_in_the_text_are_those_of_the_records() -> None:
    large = [noises for noises in by_tensor("ops_nvidia-h200_torch-2.11.0.json") if "both_us" in noises["nn.Dropout"]]
    ours = [noises.get("structured per example", noises["structured per row"]) for noises in large]
    kept = span([row["bytes_kept"] / 1e6 for row in ours], 1)
    dropped = span([noises["nn.Dropout"]["bytes_kept"] / 1e6 for noises in large], 0)
    assert f"a layer keeps {kept} MB for backward where `nn.Dropout` keeps {dropped}." in TEXT

    small = by_tensor("ops_cpu_torch-2.11.0.json")
    plain, centred = (
        span([_either(noises, f"RotationOut, {form}")["ms"] / noises["nn.Dropout"]["ms"] for noises in small], 2)
        for form in ("un-centred", "batch-centred")
    )
    assert f"half a million elements and more, it takes {plain} of Dropout's time un-centred, {centred} about" in TEXT
    shapes = {noises["nn.Dropout"]["tensor"] for noises in small}
    assert min(math.prod(map(int, re.findall(r"\d+", shape))) for shape in shapes) > 500_000

    models = [row for row in rows("models_nvidia-h200_torch-2.11.0.json") if not row["compiled"]]
    block = {row["noise"]: row["step_ms"][0] for row in models if row["network"].startswith("transformer")}
    ours, theirs = (
        f"{100 * (block[name] / block['none'] - 1):.1f}" for name in ("RotationOut (default)", "nn.Dropout")
    )
    assert f"one of a transformer block {ours} %, {theirs} % with `nn.Dropout`" in TEXT

    steps = {row["noise"]: row["step_ms"][0] for row in models if row["network"].startswith("ResNet-50")}
    structured, default, dropout = (
        f"{100 * (steps[name] / steps['none'] - 1):.1f}"
        for name in ("un-centred, structured", "RotationOut (default)", "nn.Dropout")
    )
    said = f"takes {structured} to {default} % longer than without noise, {dropout} % with `nn.Dropout`"
    assert f"a training step of ResNet-50 {said}" in TEXT


def test_accuracies_on_digits_are_those_of_the_record() -> None:
    study = Study.load(ROOT / "results" / "digits.json")
    none, dropout, turned = (
        percent([run.test_accuracy for run in study.select(noise)]) for noise in ("none", "dropout", "rotationout")
    )
    assert f"accuracy is {none} without noise, {dropout} with Dropout, {turned} with RotationOut." in TEXT
    assert f"RotationOut − Dropout is {difference(study)} (standard error). " in TEXT
    examples = (study.settings["train_examples"], f"{study.settings['test_examples']:,}")
    assert "{} training and {} test examples".format(*examples) in TEXT
    for p in study.rates:  # "also negative at p = …", in negative_results.md
        mean, error = study.paired_difference("rotationout", "dropout", p)
        assert mean + error < 0


def test_errors_in_speech_are_those_of_the_records() -> None:
    rows = by_row(read_records(ROOT / "results", "an4"))
    edits = {row: [run["edit_distance"] for run in runs] for row, runs in rows.items()}
    assert len(edits) == 8
    assert all(len(values) == 5 for values in edits.values())
    none, dropout, rotation = (spread(edits[row]) for row in ("none", "dropout keep 0.9", "rotation"))
    assert f"Errors per utterance are {none} without, {dropout} with Dropout, {rotation} with RotationOut." in TEXT
    for row, values in edits.items():  # nor in negative_results.md is one told from none
        assert row == "none" or p_value(values, edits["none"]) > LEVEL


def test_precision_in_detection_is_that_of_the_records() -> None:
    scores = {row: [run["ap"] for run in runs] for row, runs in by_row(read_records(ROOT / "results", "bccd")).items()}
    none, block, rotation = (spread(scores[row]) for row in ("none", "rotation block", "rotation"))
    said = f"AP is {none} without noise, {block} with RotationOut in blocks, {rotation} without blocks."
    assert f"{len(scores['rotation'])} seeds: {said}" in TEXT


def test_the_code_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    exec(compile(block, "README.md", "exec"), {})


def test_links_lead_somewhere_and_commands_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link.partition("#")[0]).exists()]
    assert (ROOT / "docs" / "assets" / "rotationout.svg").stat().st_size < 200_000
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in re.findall(r"^make (\w+)", README, flags=re.M))
    named = set(re.findall(r"`rotationout (\w+)", README))
    assert named
    assert named <= COMMANDS.keys()


def test_the_picture_shows_what_the_layers_do() -> None:
    """Heights of its bars, to the tenth that is drawn: kept features double, pairs of one colour turn by one angle."""
    picture = (ROOT / "docs" / "assets" / "rotationout.svg").read_text(encoding="utf-8")
    bars = re.findall(r'<rect class="([nabcd]|ghost)" x="(\d+)" y="([\d.]+)" width="26" height="([\d.]+)"', picture)
    before, after = (
        {int(x): float(h) for _, x, y, h in bars if (float(y) + float(h) < 200) == top} for top in (True, False)
    )
    kinds = {int(x): kind for kind, x, y, h in bars if float(y) + float(h) > 200}
    for x in [x for x, kind in kinds.items() if kind == "n"]:
        assert after[x] == pytest.approx(2 * before[x]), "p = 0.5"
    turned = [x for x, kind in kinds.items() if kind in "abcd"]
    order = [[x for x in turned if kinds[x] == colour][place] for place in (0, 1) for colour in "abcd"]
    pairs = torch.tensor([[before[x] for x in order[:4]], [before[x] for x in order[4:]]])
    theta = math.atan((after[order[0]] - pairs[0, 0].item()) / pairs[1, 0].item())
    rotation = ro.Rotation.from_permutation(list(range(8)), theta=theta)
    expected = ro.functional.rotate(pairs.flatten(), rotation).tolist()
    assert [after[x] for x in order] == pytest.approx(expected, abs=0.1)


def test_it_is_read_in_half_a_minute_or_so() -> None:
    assert len(README.splitlines()) <= 100
