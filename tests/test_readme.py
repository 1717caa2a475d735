"""The README says what the records say, and its code runs."""

import re
from pathlib import Path

from benchmarks.tables import cpu_table, gpu_table

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_speed_tables_are_those_of_the_records() -> None:
    assert gpu_table() in README
    assert cpu_table() in README


def test_the_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "README.md", "exec"), {})
