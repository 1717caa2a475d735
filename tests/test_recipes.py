"""The recipes on CIFAR-100: their networks, rows and schedules."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

import rotationout as ro
from rotationout import cli, recipes
from rotationout.experiments import networks
from rotationout.experiments.classification import ClassificationConfig, build_network
from rotationout.recipes import cifar100, search

TABLE = "cifar100_resnet110_authors"
TABLES = {**cifar100.TABLES, **search.TABLES}


def test_networks_have_the_sizes_of_their_papers() -> None:
    def millions(name: str, **options: object) -> float:
        return sum(parameter.numel() for parameter in networks.NETWORKS[name](**options).parameters()) / 1e6

    assert millions("resnet20", classes=10) == pytest.approx(0.27, abs=0.005)
    assert millions("resnet110") == pytest.approx(1.73, abs=0.01)
    assert millions("wrn28_10") == pytest.approx(36.54, abs=0.01)


def test_noise_is_before_every_convolution_of_the_stages_the_paper_names() -> None:
    for table, expected, channels in ((TABLE, 36, {32, 64}), ("cifar100_wrn28_10_paper", 16, {160, 320, 640})):
        row = next(c for c in TABLES[table]() if c.row == "rotation default sigma 0.500")
        network = build_network(row.replace(noise_options={"dims": 2, "center": "running", "num_features": "channels"}))
        layers = [module for module in network.modules() if isinstance(module, ro.RotationOut2d)]
        assert len(layers) == expected
        assert {layer.running_mean.numel() for layer in layers} == channels
        assert all(layer.p == 0.2 for layer in layers)


@pytest.mark.parametrize("name", TABLES)
def test_no_two_rows_are_the_same_experiment(name: str) -> None:
    """Nor if their options differ and name the same thing, as a preset and a law do: it would be run twice."""
    seen: dict[tuple[str, str], str] = {}
    for config in TABLES[name]():
        noise = repr(ro.noise(config.noise, config.p, **config.options_at(64)))
        rest = dataclasses.asdict(config.replace(row="", noise="none", p=0.0, noise_options={}))
        assert seen.setdefault((noise, repr(rest)), config.row) == config.row


def test_every_table_says_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(recipes.SUBJECTS) == list(recipes.TABLES)
    assert cli.main(["rows"]) == 0
    assert "wsj: 8 rows. Table 4: an LSTM on WSJ.\n" in capsys.readouterr().out


def test_tables_hold_every_row_once_and_configs_survive_json() -> None:
    for name, table in TABLES.items():
        rows = table()
        counts = {"protocol": 12, "shift": 6, "ghost": 9, "mlp": 23, "search": 18, "strong": 3}
        counts |= {"5000": 7, "20000": 10, "50000": 10, "vit": 7}
        expected = counts.get(name.rpartition("_")[2], 36)
        assert len({row.row for row in rows}) == len(rows) == expected
        assert {row.recipe for row in rows} == {name}
        for row in rows:
            assert type(row)(**json.loads(json.dumps(dataclasses.asdict(row)))) == row
    strengths = {row.row: row.p for row in TABLES[TABLE]()}
    assert ro.strength.convert(strengths["rotation default sigma 0.333"], "dropout", "gaussian_tan") == pytest.approx(
        1 / 3
    )


def test_the_schedule_is_the_recipes() -> None:
    rows = {c.row: c for c in TABLES[TABLE]()}
    row = rows["rotation authors sigma 0.500"]
    assert [row.rate_at(step) for step in (0, 31_999, 32_000, 48_000, 62_400)] == pytest.approx(
        [0.1, 0.1, 0.01, 1e-3, 1e-4]
    )
    assert (row.ramp, row.steps, row.weight_decay) == (2000, 64_000, 1e-4)
    for network in ("resnet110", "wrn28_10"):
        printed = TABLES[f"cifar100_{network}_paper"]()
        assert {(row.steps, row.milestones, row.weight_decay, row.ramp) for row in printed} == {
            (64_000, (32_000, 48_000), 1e-5, 0)
        }
    assert {name for name, row in rows.items() if row.ramp} == {name for name in rows if "rotation authors" in name}


def test_vectors_get_equal_noise_after_every_hidden_layer() -> None:
    rows = {row.row: row for row in TABLES["cifar100_mlp"]()}
    for keep, sigma in cifar100.SIGMA.items():
        strength = {rows[f"dropout keep {keep}"].p}
        for form in ("default", "keep-zeros", "plane"):
            row = rows[f"rotation {form} sigma {sigma}"]
            layers = [layer for layer in build_network(row).modules() if isinstance(layer, ro.RotationOut)]
            strength |= {layer.p for layer in layers}
            assert [layer.keep_zeros for layer in layers] == [form == "keep-zeros"] * 3
            assert [layer.gradient == "plane" for layer in layers] == [form == "plane"] * 3
        assert strength == {round(1 - keep, 10)}
    assert {(row.subset, row.steps, row.precision) for row in rows.values()} == {(10_000, 5_000, "fp32")}


def test_tables_with_other_numbers_of_images_differ_in_nothing_else() -> None:
    rows = {row.row: row for row in TABLES["cifar100_mlp"]()}
    named = {"dropout keep 0.95": "dropout keep 0.9"}
    named |= {f"rotation {form} sigma 0.229": f"rotation {form} sigma 0.333" for form in ("default", "plane")}
    weaker = {row: rows[strong].replace(row=row, p=0.05) for row, strong in named.items()}
    for images, subset in {5_000: 5_000, 20_000: 20_000, 50_000: 0}.items():
        for row in TABLES[f"cifar100_mlp_{images}"]():
            assert row.replace(recipe="cifar100_mlp", subset=10_000) == rows.get(row.row, weaker.get(row.row))
            assert row.subset == subset


def test_the_momentum_of_adamw_is_refused() -> None:
    """It would be in the record, and change nothing."""
    with pytest.raises(ValueError, match=r"momentum is SGD's: with optimizer = 'adamw' leave it at 0\.9, got 0\.5"):
        cifar100.vit_rows()[0].replace(momentum=0.5)


def test_tokens_get_equal_noise_in_every_block() -> None:
    rows = {row.row: row for row in TABLES["cifar100_vit"]()}
    for keep in cifar100.FRESH_KEEP:
        rotations = [f"rotation {form} sigma {cifar100.SIGMA[keep]}" for form in ("default", "plane")]
        for row in (f"dropout keep {keep}", *rotations):
            found = [layer for layer in build_network(rows.pop(row)).modules() if ro.registry.is_noise(layer)]
            assert [layer.p for layer in found] == [round(1 - keep, 10)] * 9
            assert {getattr(layer, "gradient", "") == "plane" for layer in found} == {"plane" in row}
    assert [*rows] == ["none"]


def test_an_option_that_the_network_does_not_have_is_refused() -> None:
    """It would be in the record, and change nothing; so would one that another field sets."""
    with pytest.raises(ValueError, match=r"network_options of 'wrn28_10' must be one of 'classes', got 'authors'"):
        cifar100.wrn28_10().replace(network_options={"authors": True})
    with pytest.raises(ValueError, match=r"network_options of 'resnet110' must be .* 'silent', got 'fused'"):
        cifar100.resnet110().replace(network_options={"fused": False})


@pytest.mark.parametrize("table", [cifar100.mlp_rows, cifar100.vit_rows])
@pytest.mark.parametrize("changes", [{"norm": "group"}, {"ghost_batch": 8}, {"studies": ("variance_shift",)}])
def test_what_is_about_batchnorm_is_refused_where_there_is_none(
    table: Callable[[], list[ClassificationConfig]], changes: dict[str, Any]
) -> None:
    """It would be in the record, and change nothing."""
    (name,) = changes
    with pytest.raises(ValueError, match=f"{name} = .* is for networks with BatchNorm; network = '(mlp|vit)' has none"):
        table()[0].replace(**changes)
