"""Small batches beyond the core: theory against scipy, the study and its figures."""

import csv
import io
import json
import math
import statistics
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

import numpy as np
from scipy import integrate, special, stats

from rotationout import cli
from rotationout.analysis import batchnorm as theory
from rotationout.experiments import small_batch
from rotationout.experiments.small_batch import SmallBatchStudy
from rotationout.report import gallery
from rotationout.report import small_batch as report
from rotationout.report.gallery import batchnorm as figures

RECORD = Path(__file__).parents[1] / "results" / "small_batch.json"


def f_expect(x: float, size: int) -> float:
    """By another way than ours: Tricomi's function for the mean over σ, scipy's adaptive rule over μ."""
    mean, sd, half = x * math.sqrt((size - 1) / size), 1 / math.sqrt(size), (size - 2) / 2

    def integrand(u: float) -> float:
        z = u * u / 2
        inverse = z ** (half - 0.5) * special.hyperu(half, half + 0.5, z) / math.sqrt(2) if z else 0.0
        return stats.norm.pdf(u, mean, sd) * u * inverse

    edges = mean - 10 * sd, mean + 10 * sd
    points = [0.0] if edges[0] < 0 < edges[1] else None
    return math.sqrt(size - 1) * integrate.quad(integrand, *edges, points=points, epsabs=1e-10, limit=200)[0]


@pytest.mark.parametrize("size", [3, 4, 8, 32])
def test_expectation_against_tricomi(size: int) -> None:
    x = torch.tensor([-0.3, 0.5, 1.0, 3.0, 6.0])
    expected = torch.tensor([f_expect(v.item(), size) for v in x], dtype=torch.float64)
    torch.testing.assert_close(theory.f_expect(x, size).value, expected, rtol=0, atol=1e-7)


def test_variance_against_a_double_integral() -> None:
    """Over the mean and the variance of the others, with scipy's densities."""
    size, x = 8, 1.3
    node, weight = np.polynomial.legendre.leggauss(300)
    mu, q = 3 * node, 40 * (node + 1)
    means, variances = stats.norm.pdf(mu, 0, 1 / math.sqrt(size - 1)), stats.chi2.pdf(q, size - 2)
    density = np.outer(3 * weight * means, 40 * weight * variances)
    about = (x - mu)[:, None]
    out = math.sqrt((size - 1) / size) * about / np.sqrt(q / (size - 1) + about**2 / size)
    mean, second = (density * out).sum(), (density * out**2).sum()
    ours = theory.moments(torch.tensor(x), size)
    assert ours.expect.value.item() == pytest.approx(mean, abs=1e-7)
    assert ours.var.value.item() == pytest.approx(second - mean**2, abs=1e-7)


def test_polynomial_against_numpy() -> None:
    node, weight = np.polynomial.legendre.leggauss(40)
    x = 2.25 * (node + 1)
    root = np.sqrt(weight * np.exp(-(x**2) / 2))
    powers = np.stack([x, x**3, x**5, x**7], axis=1)
    target = np.array([f_expect(v, 8) for v in x])
    expected = np.linalg.lstsq(powers * root[:, None], target * root, rcond=None)[0]
    ours = theory.poly_coefficients(8)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    slope = [7 * ours[3], 0, 5 * ours[2], 0, 3 * ours[1], 0, ours[0]]
    turns = [z.real for z in np.roots(slope) if abs(z.imag) < 1e-9 and z.real > 0]
    assert theory.turning_point(ours) == pytest.approx(min(turns))


@pytest.mark.parametrize("size", [5, 8, 30])
def test_factor_of_cross_norm_against_scipy(size: int) -> None:
    mean_inverse = stats.chi(size - 2).expect(lambda r: 1 / r)
    assert theory.cross_norm_factor(size) == pytest.approx(math.sqrt(size - 2) * mean_inverse)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small_batch") / "out"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(small_batch, "TRAIN_EXAMPLES", 128)
        patch.setattr(small_batch, "AVERAGED_EPOCHS", 1)
        words = ["study", "small_batch", "--epochs", "1", "--seeds", "2", "--jobs", "1"]
        assert cli.main([*words, "--out", str(folder)]) == 0
    (folder / "printed").write_text(printed.getvalue(), encoding="utf-8")
    return folder


def test_the_bar_is_not_among_the_results(out: Path) -> None:
    printed = (out / "printed").read_text(encoding="utf-8")
    assert "Appendix B: BatchNorm of small batches, on digits" in printed
    assert all(verdict in printed for verdict in report.verdicts(SmallBatchStudy.load(out / "small_batch.json")))
    assert "Training" not in printed


def test_rows_are_complete_and_paired(out: Path) -> None:
    study = SmallBatchStudy.load(out / "small_batch.json")
    for statistic in small_batch.STATISTICS:
        for ghost, sizes in ((False, (4, 8, 16, 128)), (True, (4, 8, 16))):
            for size in sizes:
                for name in small_batch.LABELS:
                    seeds = [r.seed for r in study.select(name, size, ghost, statistic)]
                    assert seeds == ([] if name == "cross" and size == 4 else [1000, 1001])


def test_summary_and_table_are_those_of_the_results(out: Path) -> None:
    content = json.loads((out / "small_batch.json").read_text(encoding="utf-8"))
    found = [
        r["test_accuracy"]
        for r in content["results"]
        if (r["norm"], r["size"], r["ghost"], r["statistics"]) == ("poly", 8, True, "averaged")
    ]
    (row,) = (
        r
        for r in content["summary"]
        if (r["norm"], r["size"], r["ghost"], r["statistics"]) == ("poly", 8, True, "averaged")
    )
    assert row["n"] == 2
    assert row["test_accuracy"] == {"mean": statistics.fmean(found), "sd": statistics.stdev(found)}
    table = report.table(SmallBatchStudy.load(out / "small_batch.json"))
    (line,) = (line for line in table.rows if line[0] == "ghost batches of 8, averaged")
    assert line[2] == f"{100 * statistics.fmean(found):.2f} ± {100 * statistics.stdev(found):.2f}"
    assert table.rows[0][3] == "–"


def test_a_seed_decides_everything_and_test_modes_share_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_batch, "TRAIN_EXAMPLES", 128)
    data = small_batch.load_data()
    first, again, other = (small_batch.train(data, "batch", 8, False, seed, 1) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert [(r.norm, r.statistics) for r in first] == [
        (name, statistic) for statistic in ("running", "averaged") for name in ("batch", "poly")
    ]
    assert len({r.test_loss for r in first}) == 4, "every test mode is another"


def test_verdict_counts_what_is_clear() -> None:
    def result(name: str, seed: int, accuracy: float) -> small_batch.Result:
        return small_batch.Result(name, 8, False, "running", seed, accuracy, 1.0, 1.0)

    pairs = [("batch", 0.9), ("poly", 0.8), ("cross", 0.9)]
    results = [
        result(name, seed, value + 0.01 * seed * (name != "batch")) for seed in range(3) for name, value in pairs
    ]
    study = SmallBatchStudy({}, results)
    assert "worse in 1 (by" in report.verdict(study, "poly")
    assert report.verdict(study, "poly").endswith("worse: batches of 8 (running).")
    assert "better than BatchNorm in 0 of 1 comparisons, worse in 0" in report.verdict(study, "cross")


def test_a_loss_that_is_lower_is_better() -> None:
    losses = {"batch": 1.0, "poly": 1.5, "cross": 0.5}
    results = [
        small_batch.Result(name, 8, False, "running", seed, 0.9, loss + 0.01 * seed * (name != "batch"), 1.0)
        for seed in range(3)
        for name, loss in losses.items()
    ]
    study = SmallBatchStudy({}, results)
    assert report.verdict(study, "poly", "test_loss").endswith("; worse: batches of 8 (running).")
    assert report.verdict(study, "cross", "test_loss").endswith("; better: batches of 8 (running).")
    assert "better than BatchNorm in 0 of 1 comparisons, worse in 0" in report.verdict(study, "cross"), (
        "accuracies that are all the same"
    )


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    study = SmallBatchStudy({}, [small_batch.Result("batch", 8, False, "running", 0, 0.5, 1.0, 1.0)])
    study.save(tmp_path / "one.json")
    text = (tmp_path / "one.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert SmallBatchStudy.load(tmp_path / "one.json") == study


def test_the_record_is_of_the_study_as_it_is() -> None:
    study = SmallBatchStudy.load(RECORD)
    assert study.settings["epochs"] == small_batch.EPOCHS
    assert study.settings["learning_rate"] == small_batch.LEARNING_RATE
    runs = {(r.norm, r.size, r.ghost, r.seed) for r in study.results if r.norm != "poly"}
    assert runs == set(small_batch.plan(small_batch.SEEDS))
    assert json.loads(RECORD.read_text(encoding="utf-8"))["summary"] == study.summary()


def test_figures_hold_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SAMPLES", 500)
    figures.distribution_columns.cache_clear()
    drawings = [*figures.FIGURES, figures.experiment(RECORD)]
    written = gallery.write(drawings, tmp_path)
    figures.distribution_columns.cache_clear()
    assert [path.stem for path in written] == [drawing.name for drawing in drawings]
    for path in written:
        assert path.stat().st_size > 2000
        assert path.with_suffix(".png").stat().st_size > 2000
    with (tmp_path / "batchnorm_study.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    study = SmallBatchStudy.load(RECORD)
    assert len(rows) == len(study.summary())
    accuracy = [r.test_accuracy for r in study.select("cross", 8, False)]
    (row,) = (
        r for r in rows if (r["norm"], r["size"], r["ghost"], r["statistics"]) == ("cross", "8", "batch", "running")
    )
    assert float(row["accuracy_mean"]) == pytest.approx(statistics.fmean(accuracy))
    with (tmp_path / "batchnorm_gaussian.csv").open(encoding="utf-8") as file:
        points = [r for r in csv.DictReader(file) if r["batch_size"] == "8" and float(r["f_test"]) == 3.0]
    assert float(points[0]["f_expect"]) == pytest.approx(f_expect(3.0, 8))
