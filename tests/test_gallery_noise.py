"""The figures of the noise analysis are written, and their numbers say what their captions say."""

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from rotationout.report.gallery import noise, shift_theory, write


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    folder = tmp_path_factory.mktemp("figures")
    found = {}
    for path in write([*shift_theory.FIGURES, *noise.FIGURES], folder):
        assert path.read_text(encoding="utf-8").startswith("<svg")
        assert path.with_suffix(".png").read_bytes()[1:4] == b"PNG"
        with Path(path).with_suffix(".csv").open(encoding="utf-8") as file:
            found[path.stem] = list(csv.DictReader(file))
    return found


def curve(rows: list[dict[str, str]], name: str, column: str) -> list[float]:
    return [float(row[column]) for row in rows if row["curve"] == name]


def test_all_are_there_and_have_names_of_their_own(tables: dict[str, list[dict[str, str]]]) -> None:
    assert len(tables) == len([*shift_theory.FIGURES, *noise.FIGURES]) == 7
    assert all(len(rows) > 3 for rows in tables.values())
    assert [row["block"] for row in tables["dropout_ab"] if row["curve"] == "Dropout-b"][1] == "Dropout"


def test_the_captions_of_the_variance_shift_hold(tables: dict[str, list[dict[str, str]]]) -> None:
    rates = tables["variance_shift_rate"]
    assert curve(rates, "Uout-b", "mean r") == curve(rates, "Dropout-b", "mean r")
    for keep, mean, largest in zip(
        *(curve(rates, "Dropout-a, centred", name) for name in ("keep rate", "mean r", "largest r of 64 outputs")),
        strict=True,
    ):
        assert mean == pytest.approx(1 / keep)
        assert largest == pytest.approx(1 / keep)
    shares = tables["variance_shift_distribution"]
    tails = {
        name: curve(shares, name, "share of outputs above r")[80] for name in ("Dropout-a", "Dropout-b")
    }  # r = 3.5
    assert tails["Dropout-a"] > 0.03 > 0.001 > tails["Dropout-b"]
    widths = tables["variance_shift_width"]
    for name in ("Dropout-b", "RotationOut-b, centred"):
        limit, mean, sd = (curve(widths, name, column)[-1] for column in ("limit of r", "mean r", "sd of r"))
        assert limit > 1.9
        assert mean == pytest.approx(limit, abs=0.02)
        assert sd < 0.1
    assert min(curve(widths, "Dropout-a", "sd of r")) > 0.5


def test_the_other_captions_hold(tables: dict[str, list[dict[str, str]]]) -> None:
    turns = tables["dropout_rotation"]
    for name in ("Dropout, D = 16", "Dropout, D = 256"):
        for row in (row for row in turns if row["curve"] == name):
            spread = float(row["sd by theory (Dropout)"])
            assert float(row["mean cos²θ, sampled"]) == pytest.approx(
                float(row["keep rate"]), abs=5 * spread / 2000**0.5
            )
            assert float(row["sd, sampled"]) == pytest.approx(spread, rel=0.1)
    assert all(
        float(row["mean cos²θ, sampled"]) > float(row["keep rate"]) for row in turns if row["curve"] == "RotationOut"
    )
    for row in tables["correlation_terms"]:
        _, keep, before, dropped, turned = row.values()
        assert float(turned) <= float(dropped) == pytest.approx(float(before) * float(keep))
        lam = 1 / float(keep) - 1
        assert float(turned) == pytest.approx(float(dropped) * (1 - lam / (int(row["curve"][4:]) - 1)))
    left = tables["coadaptation_factor"]
    ours = dict(
        zip(
            curve(left, "Dropout, ReLU features", "keep rate"),
            curve(left, "Dropout, ReLU features", "co-adaptation left"),
            strict=True,
        )
    )
    for keep, printed in zip(
        *(curve(left, "the paper's ReLU example", c) for c in ("keep rate", "co-adaptation left")), strict=True
    ):
        assert math.isclose(ours[keep], printed, abs_tol=0.005)
