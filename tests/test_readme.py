"""The README says what the records say, and its code runs."""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS
from benchmarks.tables import cpu_table, gpu_table

from rotationout.experiments.records import Study
from rotationout.report.digits import difference, percent

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_speed_tables_are_those_of_the_records() -> None:
    assert gpu_table() in README
    assert cpu_table() in README


def record(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]


def test_figures_in_the_text_are_those_of_the_records() -> None:
    steps = {row["noise"]: row["step_ms"][0] for row in record("models_nvidia-h200_torch-2.11.0.json")[:5]}
    structured, default, dropout = (
        f"{100 * (steps[name] / steps['none'] - 1):.1f} %"
        for name in ("un-centred, structured", "RotationOut (default)", "nn.Dropout")
    )
    text = " ".join(README.split())
    assert f"takes {structured} longer than without noise if un-centred and structured" in text
    assert f"structured, {default} with the default, {dropout} with `nn.Dropout`" in text

    calls: dict[str, dict[str, float]] = {}
    for row in record("ops_nvidia-h200_torch-2.11.0.json"):
        if "both_us" in row:
            calls.setdefault(row["tensor"], {})[row["noise"]] = row["both_us"][0]
    ratios: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for tensor, times in calls.items():
        ours = times.get("structured per example", times["structured per row"])
        ratios[tensor.split()[0]].append(ours / times["nn.Dropout"])
    single, half = (f"{min(found):.2f} to {max(found):.2f}" for found in ratios.values())
    assert f"takes {single} of Dropout's time on the fp32 tensors above, {half} on the bf16 ones" in text

    assert f"takes {recurrent_ratios('cpu')} of the time of four `nn.LSTM`" in text
    assert f"fp32 and fp16, padded and packed) {recurrent_ratios('nvidia-h200')}, cuDNN in every layer" in text


def recurrent_ratios(device: str) -> str:
    rows = record(f"recurrent_{device}_torch-2.11.0.json")
    base = {row["input"]: row["ms"] for row in rows if row["network"] == "nn.LSTMs, nn.Dropout"}
    noisy = [row["ms"] / base[row["input"]] for row in rows if re.search("Rotation|Locked", row["network"])]
    assert device == "cpu" or all(row["cudnn_calls"] == row["layers"] for row in rows)
    return f"{min(noisy):.2f} to {max(noisy):.2f}"


def test_the_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 5
    exec(compile("\n".join(blocks), "README.md", "exec"), {})


def test_accuracies_are_those_of_the_record() -> None:
    study = Study.load(ROOT / "results" / "digits.json")
    for noise, label in {"none": "none", "dropout": "Dropout", "rotationout": "RotationOut"}.items():
        assert f"| {label} | {percent([run.test_accuracy for run in study.select(noise)])} |" in README
    assert f"RotationOut − Dropout is {difference(study)} " in README
