"""The page of all results, from the records of this repository, in a real browser where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.command_line import said

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


from rotationout import cli
from rotationout.experiments.results import read_records
from rotationout.report import reproduced, whole
from rotationout.report.gallery.catalogue import all_figures
from rotationout.report.page import Section, Table, render
from rotationout.report.table3 import table as table3

ROOT = Path(__file__).parents[1]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


FRAME = """<html><body><iframe id="page" width="WIDTH" height="4000" src="index.html"></iframe><script>
document.getElementById("page").onload = function () {
  const page = this.contentDocument, all = name => [...page.querySelectorAll(name)];
  const box = e => e.getBoundingClientRect(), text = page.createRange();
  const seen = all("svg").map(box), moved = all(".scroll").filter(e => e.scrollWidth > e.clientWidth);
  const middle = e => (box(e).left + box(e).right) / 2, here = middle(page.querySelector("main"));
  const lines = e => (text.selectNodeContents(e), new Set([...text.getClientRects()].map(line => line.top)).size);
  document.body.dataset.found = JSON.stringify({
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    hidden: seen.filter(box => box.width < 200 || box.height < 50).length,
    figures: seen.length,
    empty: all("tbody td").filter(cell => !cell.textContent.trim()).length,
    cells: all("tbody td").length,
    tables: all("table").length,
    aside: all("table").filter(e => Math.abs(middle(e.parentElement) - here) > 1).length,
    moved: moved.length,
    shaded: moved.filter(e => page.defaultView.getComputedStyle(e).backgroundAttachment.includes("local")).length,
    broken: all("tbody th").filter(e => lines(e) > 2 && lines(e) === e.textContent.split(" ").length).length,
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
    for title in ("Handwritten digits", "Appendix B", "Speed: nvidia-h200", "Speed: cpu", "What is reproduced"):
        assert f"<h2>{title}" in page
    assert "Only on stand-in data: Table 2" in page
    for part in reproduced.PARTS:
        assert f'<th scope="row" class="name">{part.title}: {part.what}</th>' in page
    drawn = {drawing.name for drawing in all_figures(ROOT / "results")}
    assert all(set(part.figures) <= drawn for part in reproduced.PARTS if not part.own)
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert len(re.findall(r'<li><a href="#s\d+">', page)) == len(re.findall("<h2>", page))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser(folder: Path, width: int) -> None:
    """No errors on the console, figures and tables are there, and the page fits on a phone and fills a screen."""
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
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
    assert numbers["tables"] > 10
    assert numbers["hidden"] == numbers["empty"] == numbers["aside"] == 0, "what is wider than the text is centred"
    assert numbers["cells"] > 100
    assert numbers["broken"] == 0, "names of rows are not broken word by word"
    if width == 1200:
        assert numbers["moved"] == 0, "every table has room"
    else:
        assert numbers["moved"] == numbers["shaded"] > 15, "what can be moved sideways shows it"
    assert ":CONSOLE" not in shown.stderr


def test_figures_are_written_with_their_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figures", "--list", "--results", str(ROOT / "results")]) == 0
    names = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(names) == len(set(names)) > 14
    assert {"dropout_ab", "batchnorm_study"} <= set(names)
    assert cli.main(["figures", "coadaptation_factor", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "coadaptation_factor.svg")]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".png", ".svg"]
    assert cli.main(["figures", "coadaptation", "--out", str(tmp_path)]) == 2
    assert "did you mean 'coadaptation_factor'?" in said(capsys)


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = str(tmp_path / "none")
    assert (
        cli.main(["report", "--out", str(tmp_path), "--results", nothing, "--benchmarks", nothing, "--no-theory"]) == 0
    )
    shown = capsys.readouterr()
    assert shown.out.strip() == str(tmp_path / "index.html")
    assert f"there is no folder {nothing}: the page will have no records of runs" in shown.err
    assert "Not run: Table 1a, 1b: ResNet110 on CIFAR-100;" in (tmp_path / "index.html").read_text("utf-8")


def test_a_p_value_is_not_taken_for_a_drop_probability(folder: Path) -> None:
    """In every sentence, and above every column."""
    page = re.sub(r"<svg.*?</svg>", "", (folder / "index.html").read_text(encoding="utf-8"), flags=re.S)
    assert re.findall(r"points, p-value (?:&lt; )?0\.\d{3}[,)]", page)
    assert not re.findall(r"[,(] ?p (?:=|&lt;) 0\.\d{3}\b", page)
    assert '<th scope="col">p-value, none</th>' in page
    assert not re.findall(r"<th[^>]*>p,", page)
    assert "p is from" not in page


def test_runs_with_changed_fields_are_shown_last(tmp_path: Path) -> None:
    """By the table of their task, under its name and the changes; other folders, and hidden files, are ignored."""
    shutil.copytree(ROOT / "results" / "bccd", tmp_path / "bccd_p=0.1_weight_decay=0.5")
    shutil.copytree(ROOT / "results" / "bccd", tmp_path / "bccd")
    for place, hidden in (("notes", "todo.json"), ("bccd_p=0.3", "._none_seed0.json"), ("bccd", "._none_seed0.json")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / hidden).write_text("[]")
    sections = whole.sections(tmp_path, figures=False)
    assert [section.title for section in sections] == [
        "What is reproduced, and what is not",
        "The rows of Table 3 on BCCD’s blood cells",
        "Other runs: bccd, p=0.1, weight_decay=0.5",
    ]
    shown = sections[2].table
    assert shown is not None
    assert shown.rows == table3(read_records(tmp_path, "bccd")).rows


def test_figures_of_one_part_have_ids_of_their_own() -> None:
    svg = '<svg><path id="p"/><use href="#p"/></svg>'
    page = render("title", "lead", [Section("a part", [], figure=svg, more=[(svg, "again")])], "footer")
    ids = re.findall(r'<path id="([^"]+)"', page)
    assert len(set(ids)) == 2
    assert re.findall(r'<use href="#([^"]+)"', page) == ids


def test_a_bar_in_a_cell_does_not_end_it_on_a_page_of_markdown() -> None:
    assert Table(["where"], [["from |x| = 4"]]).markdown().splitlines()[-1] == r"| from \|x\| = 4 |"


def test_sentences_in_cells_are_wrapped() -> None:
    table = Table(["row", "%", "what came out"], [["none", "70.1", "ahead of nothing, " * 3], ["other", "70.2", "–"]])
    page = render("title", "lead", [Section("a part", [], table)], "footer")
    assert "<td>70.1</td>" in page
    assert '<td class="words">ahead of' in page
    assert '<td class="words">–</td>' in page, "a column is aligned the same all the way down"
    assert '<th scope="col">%</th><th scope="col" class="words">what came out</th>' in page
