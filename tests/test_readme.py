"""The README says what the records say, its code runs, its links lead somewhere, and it is short."""

import json
import math
import re
import statistics
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


def test_the_speed_table_is_part_of_that_of_the_record() -> None:
    lines = [line for line in gpu_table().splitlines() if line in README.splitlines()]
    assert "\n".join(lines) in README
    assert len(lines) == 2 + 3


def test_numbers_in_the_text_are_those_of_the_records() -> None:
    measured = by_tensor("ops_nvidia-h200_torch-2.11.0.json")
    large = [noises for noises in measured if "both_us" in noises["nn.Dropout"]]
    kept = span([noises["RotationOut (default)"]["bytes_kept"] / 1e6 for noises in large], 1)
    dropped = span([noises["nn.Dropout"]["bytes_kept"] / 1e6 for noises in large], 0)
    assert f"the default keeps {kept} MB for backward where `nn.Dropout` keeps {dropped}." in TEXT

    maps = [noises for noises in measured if re.match(r"bfloat16 .*, 8, 8\)", noises["nn.Dropout"]["tensor"])]
    slower, slower2d = (
        span(
            [noises["RotationOut (default)"]["captured_us"][0] / noises[other]["captured_us"][0] for noises in maps], 1
        )
        for other in ("nn.Dropout", "nn.Dropout2d")
    )
    said = f"the default takes {slower} times `nn.Dropout`'s time, {slower2d} times `nn.Dropout2d`'s."
    assert f"(bf16, 8 × 8 positions): {said}" in TEXT

    small = by_tensor("ops_cpu_torch-2.11.0.json")
    plain, centred = (
        span([_either(noises, f"RotationOut, {form}")["ms"] / noises["nn.Dropout"]["ms"] for noises in small], 2)
        for form in ("un-centred", "batch-centred")
    )
    assert f"half a million elements and more, it takes {plain} of Dropout's time un-centred, {centred} about" in TEXT
    name = "RotationOut, gradient in the plane"
    plane = span([noises[name]["ms"] / noises["nn.Dropout"]["ms"] for noises in small if name in noises], 2)
    assert f'about the batch mean, {plane} with `gradient="plane"`' in TEXT
    assert '(`gradient="plane"` was slower, then changed)' in TEXT
    plane_and_dropout = [
        [noises[name]["captured_us"][0] for name in ("gradient in the plane", "nn.Dropout")]
        for noises in large
        if "gradient in the plane" in noises
    ]
    assert len(plane_and_dropout) == 3
    assert all(ours > theirs for ours, theirs in plane_and_dropout)
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
    said = f"{default} % longer than without noise, {structured} % un-centred and {dropout} % with"
    assert f"a training step of ResNet-50 takes {said} `nn.Dropout`" in TEXT


def cells_of(task: str) -> list[str]:
    """The cells of a task in the table of tasks where RotationOut is not ahead, without its name."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| [{task}]"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def scores_of(recipe: str, score: str, task: str, named: tuple[str, ...]) -> dict[str, list[float]]:
    """The scores of all rows of a recipe; those that are named are in the README."""
    records = by_row(read_records(ROOT / "results", recipe))
    scores = {row: [run[score] for run in runs] for row, runs in records.items()}
    shown = [spread(scores[row]) for row in named]
    rates = [f" ({records[row][0]['config']['p']:g})" for row in named[1:]]
    assert cells_of(task) == [a + b for a, b in zip(shown, ["", *rates], strict=True)] + ["–"] * (4 - len(shown))
    return scores


def test_accuracies_on_digits_are_those_of_the_record() -> None:
    study = Study.load(ROOT / "results" / "digits.json")
    runs = [[run.test_accuracy for run in study.select(noise)] for noise in ("none", "dropout", "rotationout")]
    none, dropout, rotation = map(percent, runs)
    assert cells_of("handwritten digits") == [none, f"{dropout} ({study.p:g})", f"{rotation} ({study.p:g})", "–"]
    assert {len(values) for values in runs} == {20}
    behind = difference(study).removeprefix("−")
    assert f"On digits the default is {behind} points (standard error) behind, and not ahead in any of" in TEXT
    for p in study.rates:  # "also negative at p = …", in negative_results.md
        mean, error = study.paired_difference("rotationout", "dropout", p)
        assert mean + error < 0


def test_errors_in_speech_are_those_of_the_records() -> None:
    edits = scores_of("an4", "edit_distance", "speech, AN4", ("none", "dropout keep 0.9", "rotation"))
    assert len(edits) == 8
    assert all(len(values) == 5 for values in edits.values())
    for row, values in edits.items():  # nor in negative_results.md is one told from none
        assert row == "none" or p_value(values, edits["none"]) > LEVEL
    assert p_value(edits["rotation"], edits["dropout keep 0.9"]) > LEVEL


def test_precision_in_detection_is_that_of_the_records() -> None:
    named = ("none", "dropout keep 0.9", "rotation", "rotation block")
    scores = scores_of("bccd", "ap", "detection, BCCD", named)
    assert {len(scores[row]) for row in named} == {3}
    p = {row: p_value(scores[row], scores["none"]) for row in named[1:]}
    said = f"(p-values below 0.05, but {p['dropout keep 0.9']:.3f} for Dropout on BCCD);"
    assert f"In ResNet-50 both are behind no noise {said}" in TEXT
    assert p["rotation"] < LEVEL < min(p["dropout keep 0.9"], p["rotation block"])
    assert statistics.fmean(scores["dropout keep 0.9"]) < statistics.fmean(scores["none"])


def test_accuracies_on_imagewoof_are_those_of_the_records() -> None:
    named = ("none", "dropout keep 0.7", "rotation", "rotation block")
    scores = scores_of("imagewoof", "last10_top1", "ResNet-50 on Imagewoof", named)
    assert {len(values) for values in scores.values()} == {3}
    p = {row: p_value(values, scores["none"]) for row, values in scores.items()}
    assert max(p["rotation"], p["dropout keep 0.7"]) < LEVEL < p["rotation block"]


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


def test_it_is_short() -> None:
    code_and_links = re.sub(r"```.*?```|\]\([^)]*\)", "", README, flags=re.S)
    prose = [line for line in code_and_links.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 750
    assert max(len(line) for line in README.splitlines() if not line.startswith("|")) <= 145
