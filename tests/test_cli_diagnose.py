"""``rotationout diagnose``: what it says of a user's model is what `rotationout.analysis` measures."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import said

from rotationout import analysis, cli
from rotationout.cli import diagnose, loading

np = pytest.importorskip("numpy")

MODULE = '''
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from rotationout.analysis import recalibrate_batchnorm_


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)
    )


def trained():
    """Noise before a weight layer, on features with a mean: the variance before BatchNorm shifts behind it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8),
        nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.75), nn.Linear(8, 8), nn.BatchNorm1d(8)
    )
    for _ in range(3):
        for batch in more:
            model(batch)
    return model


def behind():
    """Noise before weight layers alone."""
    model = trained()
    model[1] = nn.Identity()
    for _ in range(3):
        for batch in more:
            model(batch)
    return model


def quiet():
    """Without noise, and with running statistics of other data."""
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.0), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8)
    )
    for batch in more:
        model(9 * batch)
    return model


def functional():
    """Noise that is no module."""
    model = quiet()
    model[1] = Called()
    return model


class Called(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


def repaired():
    model = trained()
    recalibrate_batchnorm_(model, more)
    return model


class Pair(nn.Module):
    """Takes keyword arguments, and has no BatchNorm."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 8), nn.Dropout(0.5)

    def forward(self, left, right):
        return self.drop(self.layer(left + right))


def loader():
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(64, 6), torch.zeros(64)), batch_size=16)


def once():
    return (batch for batch in loader())


def failing():
    yield torch.randn(16, 6)
    raise KeyError("gone")


class OfSteps(nn.Module):
    """Takes packed sequences, and needs what is packed with their values."""

    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))

    def forward(self, packed):
        assert len(packed.batch_sizes) == 5
        return self.steps(packed.data)


class OfPairs(nn.Linear):
    """Takes a pair as one argument."""

    def __init__(self):
        super().__init__(6, 8)

    def forward(self, pair):
        left, right = pair
        return super().forward(left + right)


packed = [pack_sequence([torch.randn(steps, 6) for steps in (5, 4, 2)]) for _ in range(9)]
labelled = [(batch, torch.zeros(3)) for batch in packed]
pairs = [((torch.randn(16, 6), torch.randn(16, 6)), torch.zeros(16)) for _ in range(3)]


class Torn(nn.Linear):
    def forward(self, x):
        if not self.training:
            raise RuntimeError("not for tests")
        print("learning")
        return super().forward(x)


torn, single = nn.Sequential(Torn(6, 8)), nn.Linear(6, 8)
mixed = [torch.randn(16, 6), torch.randn(16, 7)]
batches = [torch.randn(16, 6) for _ in range(3)]
more = [torch.randn(64, 6) for _ in range(20)]
clean = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
nothing = []
number = 3
targets = [(torch.randn(16, 6), torch.full((16,), float("nan"))) for _ in range(2)]


def needs(width):
    return nn.Linear(width, width)


def broken():
    return [][1]
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of the user's."""
    (tmp_path / "my_models.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("import rotationout\nraise RuntimeError('not yet')\n")
    (tmp_path / "my_needy.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "my_script.py").write_text("import sys\nsys.exit(2)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    for name in ("my_models", "my_broken", "my_needy", "my_script"):
        sys.modules.pop(name, None)


def printed(capsys: Any, *words: str) -> Any:
    assert cli.main(["diagnose", *words, "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_the_analysis_measures(here: Path, capsys: Any) -> None:
    found = printed(capsys, "my_models:build", "--data", "my_models:loader")
    module = sys.modules["my_models"]
    model, batches = module.build(), module.loader()
    assert [finding["rule"] for finding in found["findings"]] == ["noise-before-normalisation"]
    torch.manual_seed(20191118)
    (layer,) = analysis.variance_shift(model, batches).to_dict()["layers"]
    assert found["variance_shift"][0]["name"] == layer["name"] == "2"
    assert found["variance_shift"][0]["test"] == pytest.approx(layer["test"]), "without noise nothing is drawn"
    assert found["variance_shift"][0]["r_mean"] > 1.5, "p = 0.5 doubles the variance of features about zero"
    clean = analysis.coadaptation_of(model, batches, ["0", "4"])
    layers = {layer["layer"]: layer for layer in found["coadaptation"]}
    assert list(layers) == ["0", "4"], "the last has one feature, and no other to go with"
    for name, seen in clean.items():
        assert layers[name]["test"] == pytest.approx(seen.value)
        assert (layers[name]["features"], layers[name]["rows"]) == (seen.features, seen.rows)
    assert layers["0"]["train"] == pytest.approx(layers["0"]["test"]), "it is before the noise"
    assert layers["4"]["train"] != pytest.approx(layers["4"]["test"], rel=0.01)


def test_tables_for_people(here: Path, capsys: Any) -> None:
    assert cli.main(["diagnose", "my_models:build", "--data", "my_models:loader", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "| layer | channels | r mean | r max | stored r mean | stored r max |" in shown
    assert "\n| 0 | 8 | 64* |" in shown
    assert "*: fewer than 10 rows per feature" in shown
    assert shown.endswith("[noise-before-normalisation]\n")


def test_a_large_shift_is_pointed_out_unless_it_was_repaired(here: Path, capsys: Any) -> None:
    found = printed(capsys, "my_models:trained", "--data", "my_models:more")
    r = {layer["name"]: layer["r_mean"] for layer in found["variance_shift"]}
    assert [finding["layer"] for finding in found["findings"]] == ["1"], "of BatchNorm layer 2, and of no other"
    assert r["10"] > r["6"] > diagnose.LARGE_SHIFT
    assert r["2"] > diagnose.LARGE_SHIFT
    assert found["advice"].splitlines() == [
        f"2: r = {r['2']:.4g}; repair running_var with recalibrate_batchnorm_(model, batches)",
        f"10: r = {r['10']:.4g} (1 more above 1.2); lint finds no noise directly before it. With noise before a weight "
        "layer recalibrating did not help in our runs: compare accuracy before you keep it",
    ]
    assert cli.main(["diagnose", "my_models:trained", "--data", "my_models:more", "--device", "cpu"]) == 0
    assert f"running_var and the testing variance\n\n{found['advice']}\n\n" in capsys.readouterr().out
    found = printed(capsys, "my_models:repaired", "--data", "my_models:more")
    assert max(layer["r_mean"] for layer in found["variance_shift"]) > 1.5, "training is what it was"
    assert found["advice"] is None


def test_a_repair_is_advised_only_where_lint_advises_it(here: Path, capsys: Any) -> None:
    """Before a weight layer our own runs found no use in it."""
    found = printed(capsys, "my_models:behind", "--data", "my_models:more")
    assert found["findings"] == []
    assert found["advice"].startswith("10: r = ")
    assert "(1 more above 1.2); lint finds no noise directly before it" in found["advice"]
    assert "recalibrate_batchnorm_" not in found["advice"]


def test_a_model_that_was_not_trained_is_told_apart_from_a_repaired_one(here: Path, capsys: Any) -> None:
    """Both have num_batches_tracked = 0; weights from elsewhere may have it too."""
    new = (
        "no BatchNorm layer has seen data yet, so r and stored r are not those of a trained model; pass --weights or a "
    )
    found = printed(capsys, "my_models:build", "--data", "my_models:loader")
    assert found["advice"] == f"{new}trained model"
    assert found["variance_shift"][0]["r_mean"] > diagnose.LARGE_SHIFT, "measured all the same"
    weights = loading.model_of("my_models:build").state_dict()
    weights["2.running_var"] *= 4
    torch.save(weights, here / "w.pt")
    found = printed(capsys, "my_models:build", "--data", "my_models:loader", "--weights", "w.pt")
    assert found["advice"].endswith("; repair running_var with recalibrate_batchnorm_(model, batches)")
    (here / "my_models.py").write_text(MODULE.replace("nn.Dropout(0.5)", "nn.Dropout(0.0)"))
    sys.modules.pop("my_models")
    found = printed(capsys, "my_models:build", "--data", "my_models:loader")
    assert found["advice"] == f"{new}trained model\nthe model has no noise"


def test_without_noise_there_is_no_advice_about_it(here: Path, capsys: Any) -> None:
    """Even if variances shift."""
    found = printed(capsys, "my_models:quiet", "--data", "my_models:more")
    assert max(layer["r_mean"] for layer in found["variance_shift"]) > diagnose.LARGE_SHIFT
    assert found["advice"] == (
        "the model has no noise: where r is far from 1, its running statistics do not fit these batches"
    )
    found = printed(capsys, "my_models:functional", "--data", "my_models:more")
    assert [finding["rule"] for finding in found["findings"]] == ["noise-without-module"]
    assert "lint finds no noise directly before it" in found["advice"]


def test_lint_alone_needs_no_data_and_can_be_an_exit_code(here: Path, capsys: Any) -> None:
    assert printed(capsys, "my_models:build")["variance_shift"] is None
    assert cli.main(["diagnose", "my_models:build", "--strict"]) == 1
    assert cli.main(["diagnose", "my_models:clean", "--strict"]) == 0
    assert capsys.readouterr().out.endswith(
        "nothing found; shapes and axes were not checked, for want of an example input\n\n"
        "give --data for the variance shift and co-adaptation\n"
    )


@pytest.mark.parametrize("data", ["my_models:batches", "my_models:once", "x.npy", "x.npz", "x.pt", "xy.pt", "list.pt"])
def test_data_of_many_kinds(data: str, here: Path, capsys: Any) -> None:
    inputs = torch.randn(48, 6, dtype=torch.float64)
    np.save(here / "x.npy", inputs.numpy())
    np.savez(here / "x.npz", x=inputs.numpy(), y=np.zeros(48))
    torch.save(inputs, here / "x.pt")
    torch.save((inputs, torch.zeros(48)), here / "xy.pt")
    torch.save(list(inputs.float().split(16)), here / "list.pt")
    found = printed(capsys, "my_models:build", "--data", data, "--batch-size", "16", "--batches", "3")
    assert found["variance_shift"][0]["calls"] == 3
    assert found["coadaptation"][0]["rows"] == 48


def test_keyword_arguments_and_a_model_without_batchnorm(here: Path, capsys: Any) -> None:
    torch.save({"left": torch.randn(40, 6), "right": torch.randn(40, 6)}, here / "pairs.pt")
    assert cli.main(["diagnose", "my_models:Pair", "--data", "pairs.pt", "--device", "cpu", "--json"]) == 0
    shown = capsys.readouterr()
    assert "the model has no BatchNorm layer, so there is no variance shift" in shown.err
    found = json.loads(shown.out)
    assert found["variance_shift"] is None
    assert [layer["layer"] for layer in found["coadaptation"]] == ["layer"]


@pytest.mark.parametrize(
    ("model", "data", "rules"),
    [
        ("OfSteps", "packed", ["noise-before-normalisation"]),
        ("OfSteps", "labelled", ["noise-before-normalisation"]),
        ("OfPairs", "pairs", []),
    ],
)
def test_lint_calls_the_model_as_all_else_does(
    model: str, data: str, rules: list[str], here: Path, capsys: Any
) -> None:
    found = printed(capsys, f"my_models:{model}", "--data", f"my_models:{data}")
    assert [finding["rule"] for finding in found["findings"]] == rules


def test_examples_of_a_file_are_shuffled_together(here: Path) -> None:
    torch.save({"a": torch.arange(10), "b": torch.arange(10) * 2}, here / "sorted.pt")
    batches = list(loading.batches_of("sorted.pt", size=4, limit=9))
    assert [len(batch["a"]) for batch in batches] == [4, 3, 3]
    order = torch.cat([batch["a"] for batch in batches])
    assert not torch.equal(order, torch.arange(10))
    assert torch.equal(torch.cat([batch["b"] for batch in batches]), 2 * order)


def test_no_batch_of_a_file_is_a_single_example(here: Path) -> None:
    """BatchNorm refuses one while it learns."""
    torch.save(torch.randn(65, 6), here / "odd.pt")
    assert [len(batch) for batch in loading.batches_of("odd.pt", size=64, limit=9)] == [33, 32]


def test_targets_may_be_missing(here: Path, capsys: Any) -> None:
    assert printed(capsys, "my_models:build", "--data", "my_models:targets")["variance_shift"]


def test_a_model_that_is_a_layer_has_no_layers(here: Path, capsys: Any) -> None:
    assert printed(capsys, "my_models:single", "--data", "my_models:batches")["coadaptation"] == []


def test_what_a_model_prints_is_no_data(here: Path, capsys: Any) -> None:
    (here / "my_models.py").write_text(MODULE.replace("if not self.training", "if False"))
    assert printed(capsys, "my_models:torn", "--data", "my_models:batches")["model"] == "my_models:torn"


def test_weights_are_loaded(here: Path, capsys: Any) -> None:
    weights = loading.model_of("my_models:build").state_dict()
    weights["2.running_var"] += 9
    torch.save({"state_dict": weights, "epoch": 3}, here / "w.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), here / "other.pt")
    words = ["my_models:build", "--data", "my_models:batches"]
    assert printed(capsys, *words, "--weights", "w.pt")["variance_shift"][0]["stored"] == [10.0] * 8
    assert cli.main(["diagnose", *words, "--weights", "other.pt"]) == 1
    assert "other.pt does not fit the model" in said(capsys)


def test_wide_layers_are_left_out(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "MOST_FEATURES", 4)
    found = printed(capsys, "my_models:build", "--data", "my_models:batches")
    assert [layer["layer"] for layer in found["coadaptation"]] == ["4"]
