"""The whole report, from the records of this repository, in a real browser where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from rotationout.experiments.results import read_records
from rotationout.report import whole
from rotationout.report.table1 import differs, table1

ROOT = Path(__file__).parents[1]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FRAME = """<html><body><iframe id="page" width="390" height="4000" src="index.html"></iframe><script>
document.getElementById("page").onload = function () {
  const page = this.contentDocument, seen = [...page.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
  document.body.dataset.found = JSON.stringify({
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    hidden: seen.filter(box => box.width < 200 || box.height < 50).length,
    figures: seen.length,
    empty: [...page.querySelectorAll("tbody td")].filter(cell => !cell.textContent.trim()).length,
    cells: page.querySelectorAll("tbody td").length,
  });
};
</script></body></html>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert whole.write(out, ROOT / "results", ROOT / "benchmarks" / "results") == out / "index.html"
    return out


def test_it_shows_every_record_and_stands_alone(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    for record in read_records(ROOT / "results", "cifar100_resnet110_protocol"):
        assert f"<td>{record['last10_top1']:.2f}</td>" in page
    for title in ("Handwritten digits", "Appendix B", "Speed: nvidia-h200", "Speed: cpu", "What is not reproduced"):
        assert f"<h2>{title}" in page
    assert "There are no records yet of" in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_in_a_browser(folder: Path) -> None:
    """No errors on the console, figures and tables are there, and nothing to scroll sideways on a phone."""
    (folder / "frame.html").write_text(FRAME, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--allow-file-access-from-files", "--virtual-time-budget=10000"]
    logging = ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    shown = subprocess.run(
        [str(BROWSER), *flags, *logging, "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    found = re.search(r'data-found="\{(.*?)\}"', shown.stdout)
    assert found is not None
    numbers = {name: int(value) for name, value in re.findall(r"&quot;(\w+)&quot;:(-?\d+)", found[1])}
    assert numbers["overflow"] <= 0
    assert numbers["figures"] > 15
    assert numbers["hidden"] == numbers["empty"] == 0
    assert numbers["cells"] > 100
    assert ":CONSOLE" not in shown.stderr


def test_stars_and_empty_columns() -> None:
    assert differs([70.0, 70.2], "71.93 ± 0.16")
    assert not differs([71.8, 72.2], "71.93 ± 0.16")
    assert not differs([60.0], "71.93 ± 0.16")
    record = {"row": "none", "last10_top1": 70.0, "best_top1": 71.0, "config": {"network": "resnet110"}}
    assert table1([record]).header == [
        "row",
        "runs",
        "last 10 epochs, %",
        "the paper's",
        "best epoch, %",
        "the paper's",
    ]
