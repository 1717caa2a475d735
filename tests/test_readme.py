"""The README says what the records say, and its code runs."""

import re
from pathlib import Path

from benchmarks.tables import cpu_table, gpu_table

from rotationout.experiments.records import Study
from rotationout.report.digits import difference, percent

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_speed_tables_are_those_of_the_records() -> None:
    assert gpu_table() in README
    assert cpu_table() in README


def test_the_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 4
    exec(compile("\n".join(blocks), "README.md", "exec"), {})


def test_accuracies_are_those_of_the_record() -> None:
    study = Study.load(ROOT / "results" / "digits.json")
    for noise, label in {"none": "none", "dropout": "Dropout", "rotationout": "RotationOut"}.items():
        assert f"| {label} | {percent([run.test_accuracy for run in study.select(noise)])} |" in README
    assert f"RotationOut − Dropout is {difference(study)} " in README
