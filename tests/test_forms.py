"""The study of forms: each differs from the default by what its name says, and its tables are those of its record."""

import dataclasses
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from rotationout import cli
from rotationout.experiments import digits, forms
from rotationout.experiments.forms import CENTRED, DEFAULT, FORMS, NETWORKS, OTHERS, Form, FormsStudy
from rotationout.nn import RotationOut, RotationOut2d
from rotationout.report import forms as report
from rotationout.report.cells import is_clear
from rotationout.report.style import HUES

CHOICES = {"vectors": RotationOut(forms.P), "maps": RotationOut2d(forms.P)}


@pytest.mark.parametrize(("network", "form"), [(network, form) for network in FORMS for form in FORMS[network]])
def test_a_form_differs_from_the_default_by_what_it_says(network: str, form: str) -> None:
    layer = forms.noise_of(network, form)(8)
    assert isinstance(layer, type(CHOICES[network]))
    default, options = CHOICES[network], FORMS[network][form]
    before, after = (
        {
            **dataclasses.asdict(one.draw),
            "center": one.center,
            "keep_zeros": one.keep_zeros,
            "gradient": one.gradient,
        }
        for one in (default, layer)
    )
    changed = {name for name in before if before[name] != after[name]}
    if "preset" in options:
        assert len(changed) > 1, "more than one choice at once"
    else:
        assert changed == set(options) - {"num_features", "block_size", "p"}
    assert layer.block_size == options.get("block_size")
    assert layer.p == options.get("p", forms.P)


def test_the_papers_form_on_maps_is_the_one_with_uniform_angles() -> None:
    """Why there is no row for it."""
    paper, uniform = RotationOut2d(forms.P, preset="paper"), forms.noise_of("maps", "θ uniform")(8)
    assert isinstance(uniform, RotationOut2d)
    assert (paper.draw, paper.center) == (uniform.draw, uniform.center)


@pytest.mark.parametrize("network", NETWORKS)
def test_forms_begin_alike_and_noise_is_in_two_places(network: str) -> None:
    built = []
    for form in (DEFAULT, "Dropout"):
        torch.manual_seed(0)
        built.append(forms.build(network, form))
    ours, theirs = (list(model.parameters()) for model in built)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    kinds = type(CHOICES[network]), nn.Dropout
    for model, kind in zip(built, kinds, strict=True):
        assert sum(isinstance(module, kind) for module in model) == 2
        assert model(torch.rand(5, 64)).shape == (5, 10)


@pytest.mark.parametrize("network", NETWORKS)
def test_one_form_is_before_the_relu(network: str) -> None:
    for form in FORMS[network]:
        model = forms.build(network, form)
        places = [k for k, layer in enumerate(model) if isinstance(layer, type(CHOICES[network]))]
        assert len(places) == 2
        assert all(isinstance(model[k + 1 if form == forms.BEFORE else k - 1], nn.ReLU) for k in places), form


def test_the_network_of_vectors_is_that_of_the_demonstration() -> None:
    data = digits.load_data()
    ours = forms.train("vectors", "Dropout", seed=3, epochs=2)
    theirs = digits.train(data, "dropout", forms.P, seed=3, epochs=2)
    assert ours["test_accuracy"] == theirs.test_accuracy
    assert ours["train_accuracy"] == theirs.train_accuracy


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "TRAIN_EXAMPLES", 50)
        assert cli.main(["study", "forms", "--epochs", "1", "--seeds", "2", "--jobs", "1", "--out", str(folder)]) == 0
    return folder


def test_every_form_is_run_with_the_same_seeds(out: Path) -> None:
    study = FormsStudy.load(out / "forms.json")
    expected = [(n, form) for n in NETWORKS for form in (*OTHERS[n], *FORMS[n])]
    assert [(one.network, one.form) for one in study.forms] == expected
    assert all(one.seeds == [1000, 1001] for one in study.forms)
    assert (out / "forms.json").stat().st_size < 20_000


def test_several_processes_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "plan", lambda: iter([("vectors", "Dropout"), ("maps", DEFAULT)]))
        alone, shared = (forms.run(seeds=2, epochs=1, jobs=jobs) for jobs in (1, 2))
    for ours, theirs in zip(alone.forms, shared.forms, strict=True):
        assert dataclasses.replace(ours, seconds=[]) == dataclasses.replace(theirs, seconds=[])
    assert "Training" in capsys.readouterr().err


INTERRUPTED = """
import sys, rich.progress
from rotationout import cli

def track(results, *arguments, **options):
    yield next(iter(results))
    raise KeyboardInterrupt

rich.progress.track = track
sys.exit(cli.main(["study", "forms", "--jobs", "2", "--out", sys.argv[1]]))
"""


def test_an_interrupt_ends_the_work_soon_and_writes_nothing(tmp_path: Path) -> None:
    """All runs take many minutes."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr.startswith("rotationout: interrupted\n")
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_tables_and_differences_are_those_of_the_record(out: Path) -> None:
    content = json.loads((out / "forms.json").read_text(encoding="utf-8"))
    study = FormsStudy.load(out / "forms.json")
    for network in NETWORKS:
        (default,) = (f for f in content["forms"] if (f["network"], f["form"]) == (network, DEFAULT))
        for row, one in zip(
            report.table(study, network).rows, (f for f in content["forms"] if f["network"] == network), strict=True
        ):
            values = [100 * value for value in one["test_accuracy"]]
            assert row[:2] == [one["form"], f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"]
            if one["form"] != DEFAULT:
                gains = [100 * (a - b) for a, b in zip(one["test_accuracy"], default["test_accuracy"], strict=True)]
                mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(2)
                assert row[2] == f"{mean:+.2f} ± {error:.2f}".replace("-", "−")
    shown = [section.title for section in report.sections(study)]
    assert shown == ["Which choices matter: RotationOut", "Which choices matter: RotationOut2d"]
    assert all("<svg" in section.figure for section in report.sections(study))
    assert f", {study.settings['epochs']} epochs. " in report.sections(study)[0].prose[1]


def made(**accuracies: list[float]) -> FormsStudy:
    names = {"default": DEFAULT, "one": "one-sided angles", "dropout": "Dropout"}
    return FormsStudy(
        {},
        [
            Form("vectors", names[name], list(range(len(v))), v, [1.0] * len(v), [1.0] * len(v))
            for name, v in accuracies.items()
        ],
    )


def test_only_clear_differences_are_called_so() -> None:
    base = [0.90, 0.92, 0.94, 0.91]
    clear = made(default=base, one=[a - 0.02 + 0.001 * k for k, a in enumerate(base)], dropout=[0.95, 0.90, 0.93, 0.92])
    said = report.verdict(clear, "vectors")
    assert "Other forms: 1 of 1 clearly different: one-sided angles (−1.85 ± 0.06). " in said
    assert "No noise and other noises: 0 of 1 clearly different. " in said
    almost = made(default=base, one=[a - 0.02 + 0.014 * k - 0.014 for k, a in enumerate(base)])
    mean, error = almost.paired_difference("vectors", "one-sided angles")
    assert 1 < abs(mean) / error < 3
    assert "Other forms: 0 of 1 clearly different. " in report.verdict(almost, "vectors")
    level = report.verdict(made(default=base, one=[0.95, 0.90, 0.93, 0.92]), "vectors")
    assert "Other forms: 0 of 1 clearly different. " in level
    assert "Other forms: 0 of 1 clearly different. " in report.verdict(made(default=[0.9], one=[0.8]), "vectors")


def test_the_figure_names_every_form(out: Path) -> None:
    study = FormsStudy.load(out / "forms.json")
    for network in NETWORKS:
        (axes,) = report.figure(study, network).axes
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [one.form for one in study.of(network) if one.form != DEFAULT]
        assert axes.yaxis_inverted(), "the first is on top"
        drawn = dict(zip(labels, axes.containers, strict=True))
        for form, (points, _, (bar,)) in drawn.items():
            mean, error = study.paired_difference(network, form)
            ends = [float(x) for x, _ in bar.get_segments()[0]]
            assert ends == pytest.approx([100 * (mean - 3 * error), 100 * (mean + 3 * error)])
            family = {"no noise": "none"}.get(form, "dropout" if form in OTHERS[network] else "rotation")
            assert points.get_color() == HUES[family][0]


def test_forms_of_other_seeds_are_not_compared() -> None:
    study = made(default=[0.9, 0.8], one=[0.9])
    with pytest.raises(ValueError, match="different seeds"):
        study.paired_difference("vectors", "one-sided angles")


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "forms.json"
    path.write_text('{"settings": {}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"forms\.json is damaged"):
        FormsStudy.load(path)


def test_what_pages_say_of_forms_is_so_in_the_record() -> None:
    """choosing.md and negative_results.md."""
    study = FormsStudy.load(Path(__file__).parents[1] / "results" / "forms.json")
    zeros, plane = "zeros stay zero", forms.PLANE
    both = f"{zeros}, {plane}"
    best = {"vectors": {zeros, plane, both}, "maps": {zeros}}
    better: dict[str, set[str]] = {}
    worse: dict[str, set[str]] = {}
    for network in NETWORKS:
        assert study.find(network, DEFAULT).seeds == list(range(1000, 1040))
        found = {form: study.paired_difference(network, form) for form in FORMS[network] if form != DEFAULT}
        better[network] = {form for form, pair in found.items() if is_clear(*pair) and pair[0] > 0}
        worse[network] = {form for form, pair in found.items() if is_clear(*pair) and pair[0] < 0}
        others = found.keys() - best[network]
        assert all(found[form][0] <= 2 * found[form][1] for form in others), "no other is better"
        ahead = {form: study.paired_difference(network, "Dropout", form) for form in FORMS[network]}
        near = {form for form, (mean, error) in ahead.items() if mean <= 2 * error}
        assert near == (best[network] if network == "vectors" else set()), "Dropout is ahead of every other form"
        assert not is_clear(*ahead[zeros])
        assert ahead[zeros][0] < 0.4 * ahead[DEFAULT][0], "most of the gap is closed"
        mean, error = study.paired_difference(network, "Gaussian Dropout", "Dropout")
        assert abs(mean) < error, "does as well"
        mean, error = study.paired_difference(network, CENTRED, "Dropout")
        assert mean < -report.CLEAR * error, "centring costs Dropout accuracy"
    assert better == best
    assert worse == {
        "vectors": {"about a running mean"},
        "maps": {forms.ORIGIN, forms.ORIGIN_SYMMETRIC, forms.BEFORE},
    }
    for form in (plane, both):
        mean, error = study.paired_difference("vectors", form, "Dropout")
        assert abs(mean) < 0.5 * error, "level with Dropout"
        mean, error = study.paired_difference("vectors", form, forms.ISOTROPIC)
        assert abs(mean) < error, "and with isotropic noise"
    mean, error = study.paired_difference("vectors", both, plane)
    assert abs(mean) < 2 * error, "zeros that stay zero add nothing clear"
    mean, error = study.paired_difference("maps", f"symmetric angles, {plane}", "symmetric angles")
    assert 0 < mean < 2 * error, "no clear difference on maps"
    mean, error = study.paired_difference("vectors", forms.ISOTROPIC)
    assert 3 * error < mean < 3.05 * error, "just three standard errors"
    assert not is_clear(*study.paired_difference("vectors", forms.ISOTROPIC, "Dropout"))
    assert not is_clear(*study.paired_difference("maps", forms.ISOTROPIC))
    for form in (forms.ORIGIN_SYMMETRIC, f"{forms.ORIGIN}, a pairing per position"):
        mean, error = study.paired_difference("maps", form, forms.ORIGIN)
        assert not is_clear(mean, error)
        assert mean < 0.005, "what averages out over positions is not what it lacks"
    assert not is_clear(*study.paired_difference("maps", "a pairing per position"))
    same, origin = {}, {}
    for weaker in forms.WEAKER:
        at = f"p = {weaker:g}"
        same[weaker] = study.paired_difference("maps", f"{CENTRED}, {at}", at)
        origin[weaker] = study.paired_difference("maps", f"Dropout, {at}", f"{forms.ORIGIN}, {at}")
        lost, error = study.paired_difference("maps", f"{CENTRED}, {at}", f"Dropout, {at}")
        assert lost < -0.003, "costs Dropout accuracy"
        assert is_clear(lost, error) == (weaker != 0.2)
        assert not is_clear(*study.paired_difference("maps", at, f"{forms.ORIGIN}, {at}")), "the origin does as well"
    assert not any(is_clear(*pair) for pair in same.values()), "about the mean they are level"
    assert [weaker for weaker, pair in origin.items() if is_clear(*pair)] == [0.35]
    assert is_clear(*study.paired_difference("maps", "Dropout", forms.ORIGIN))
    names = {forms.ORIGIN: 0.5, **{f"{forms.ORIGIN}, p = {p:g}": p for p in forms.WEAKER}}
    assert names[max(names, key=lambda form: sum(study.find("maps", form).test_accuracy))] == 0.2
    assert abs(study.paired_difference("maps", f"{forms.ORIGIN}, p = 0.2", "p = 0.2")[0]) < 0.001
    mean, error = study.paired_difference("vectors", "about a running mean")
    assert -3.5 * error < mean, "little more than three"
    assert not is_clear(*study.paired_difference("maps", CENTRED)), "nor is Dropout ahead about the same point"
    mean, error = study.paired_difference("vectors", "about the batch mean")
    assert -2 * error < mean < 0
    gains = {form: study.paired_difference("maps", form)[0] for form in ("p = 0.35", "p = 0.2")}
    assert max(map(abs, gains.values())) < 0.002, "the strength hardly matters from 0.2 to 0.5"
    for weaker in forms.WEAKER:
        assert study.paired_difference("maps", "Dropout", f"Dropout, p = {weaker:g}")[0] > 0.001, "to Dropout it does"
        same = study.paired_difference("maps", f"p = {weaker:g}", f"Dropout, p = {weaker:g}")
        assert (same[0] < -report.CLEAR * same[1]) == (weaker != 0.2), "clear at the same strength, but at 0.2"
        assert study.paired_difference("maps", f"p = {weaker:g}")[0] < 0.001, "a smaller p does not help"
    over = {form: study.paired_difference("maps", form, "Dropout2d") for form in FORMS["maps"]}
    assert {form for form, (mean, error) in over.items() if mean < 2 * error} == {"about the origin"}
    mean, error = study.paired_difference("maps", "Dropout2d", "no noise")
    assert mean < -report.CLEAR * error, "worse than no noise"
    for rival in ("no noise", "Dropout2d"):
        mean, error = study.paired_difference("maps", DEFAULT, rival)
        assert mean > report.CLEAR * error
