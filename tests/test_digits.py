"""The digits study from the command line to the page."""

import itertools
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.command_line import said

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("rich")

from rotationout import cli
from rotationout.experiments import digits
from rotationout.experiments.records import LABELS, Study
from rotationout.report.digits import summary_table
from rotationout.report.figures import accuracy_figure

ROOT = Path(__file__).parents[1]
FILES = ("digits.json", "digits.png", "digits.svg", "digits_strength.png", "digits_strength.svg", "index.html")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_accuracy_is_without_noise() -> None:
    """However the model comes: none is drawn, and it is right about as many as in eval mode."""
    model = digits.build_model(lambda _: digits.NOISES["rotationout"](0.5))
    inputs, labels = torch.rand(200, 64), torch.randint(10, (200,))
    with torch.no_grad():
        expected = (model.eval()(inputs).argmax(1) == labels).float().mean().item()
    drawn = torch.get_rng_state()
    assert digits.accuracy(model.train(), inputs, labels) == pytest.approx(expected)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "new" / "out"
    alone = ["--no-theory", "--results", str(folder / "none")]
    assert cli.main(["demo", "--epochs", "2", "--seeds", "2", "--out", str(folder), *alone]) == 0
    return folder


def test_writes_everything(out):
    for name in FILES:
        assert (out / name).stat().st_size > 500, name


def test_page_shows_the_means_of_the_records(out):
    records = json.loads((out / "digits.json").read_text(encoding="utf-8"))["records"]
    page = (out / "index.html").read_text(encoding="utf-8")
    final = {}
    for r in records:
        if r["noise"] == "none" or r["p"] == 0.5:
            final.setdefault(r["noise"], {})[r["seed"]] = 100 * r["test_curve"][-1]
    for noise, label in (("none", "No noise"), ("dropout", "Dropout"), ("rotationout", "RotationOut")):
        values = list(final[noise].values())
        cell = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
        assert f'<th scope="row">{label}</th><td>{cell}</td>' in page
    differences = [final["rotationout"][seed] - final["dropout"][seed] for seed in (1000, 1001)]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / 2**0.5
    assert f"{mean:+.2f}".replace("-", "−") + f" ± {error:.2f} percentage points" in page
    assert "(over 2 paired seeds, ± one standard error)" in page
    assert "p = 0.5: E tan²θ = p/(1 − p) = 1." in page


def test_a_slow_first_run_does_not_count(out):
    study = Study.load(out / "digits.json")
    runs = [r for r in study.records if r.noise == "none"]
    slow = [replace(runs[0], seed=seed, seconds=seconds) for seed, seconds in enumerate((9.0, 1.0, 1.2))]
    found = summary_table(replace(study, records=slow + [r for r in study.records if r.noise != "none"]))
    assert found.rows[0][-1] == "1.2"


def test_page_stands_alone(out):
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(ids)


def test_labels_and_markers_of_the_figure_are_apart():
    """In the figure of the published records, where many accuracies are the same."""
    figure = accuracy_figure(Study.load(ROOT / "results" / "digits.json"))
    figure.draw_without_rendering()
    finals = figure.axes[1]
    labels = [label.get_window_extent() for label in finals.get_xticklabels()]
    assert all(right.x0 - left.x1 > labels[0].height for left, right in itertools.pairwise(labels))
    for line in finals.lines[: len(LABELS)]:
        places = finals.transData.transform(line.get_xydata())
        assert len(places) == 20
        gaps = [math.dist(*pair) for pair in itertools.combinations(places, 2)]
        assert min(gaps) > line.get_markersize() * figure.dpi / 72


def test_records_survive_the_file(out, tmp_path):
    study = Study.load(out / "digits.json")
    study.save(tmp_path / "again.json")
    assert Study.load(tmp_path / "again.json") == study


def test_rows_are_paired_and_complete(out):
    study = Study.load(out / "digits.json")
    assert study.rates == [0.1, 0.2, 0.35, 0.5]
    assert [r.seed for r in study.select("none")] == [1000, 1001]
    for p in study.rates:
        assert (
            [r.seed for r in study.select("dropout", p)]
            == [r.seed for r in study.select("rotationout", p)]
            == [1000, 1001]
        )


@pytest.mark.parametrize("noise", list(digits.NOISES))
def test_a_seed_decides_everything(noise):
    data = digits.load_data()
    first, again, other = (digits.train(data, noise, 0.5, seed, epochs=2) for seed in (7, 7, 8))
    assert first.test_curve == again.test_curve
    assert first.test_curve != other.test_curve


def test_one_seed_has_no_error(tmp_path, capsys):
    alone = ["--no-theory", "--results", str(tmp_path / "none")]
    assert cli.main(["demo", "--epochs", "1", "--seeds", "1", "--p", "0.2", "--out", str(tmp_path), *alone]) == 0
    shown = capsys.readouterr()
    said = " ".join(shown.out.split())
    assert "single seed" in said
    assert "run this in a clone of it, or name that folder with --results" in said
    assert f"there is no folder {tmp_path / 'none'}: the page will have no records of runs" in shown.err
    assert "E tan²θ = p/(1 − p) = 0.25." in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", (tmp_path / "index.html").read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--p", "1"], "must be in [0, 1)"),
        (["--p", "0"], "nothing to compare"),
        (["--p", "nan"], "must be in [0, 1)"),
        (["--p", "half"], "must be a number in (0, 1), got 'half'"),
        (["--seeds", "0"], "'--seeds'"),
        (["--epochs", "2.5"], "'--epochs'"),
    ],
)
def test_bad_options(arguments, message, capsys):
    assert cli.main(["demo", *arguments]) == 2
    assert message in said(capsys)
