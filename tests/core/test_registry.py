"""Names, options and their errors; `is_noise` for modules of other packages."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rotationout as ro
from rotationout.registry import ALIASES, KINDS, is_noise, table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", nn.Identity),
        ("Dropout", nn.Dropout),
        ("dropout2d", nn.Dropout2d),
        ("spatial-1d", nn.Dropout1d),
        ("SPATIAL3D", nn.Dropout3d),
        ("gaussian_dropout", ro.nn.GaussianDropout),
        ("centered-dropout", ro.nn.CentredDropout),
        ("Centred Uout", ro.nn.Uout),
        ("shakeshake", ro.nn.ShakeShake),
        ("rotation", ro.RotationOut),
        ("rotation1d", ro.RotationOut1d),
        ("RotationOut2d", ro.RotationOut2d),
        ("rotation_3d", ro.RotationOut3d),
    ],
)
def test_names(name: str, expected: type[nn.Module]) -> None:
    assert type(ro.noise(name, 0.2)) is expected


def test_no_name_means_two_things() -> None:
    plain = [name.replace("-", "") for name in (*KINDS, *ALIASES)]
    assert len(set(plain)) == len(plain)
    assert all(kind in KINDS for kind, _ in ALIASES.values())


@pytest.mark.parametrize("dims", [0, 1, 2, 3])
def test_dims_say_where_the_features_are(dims: int) -> None:
    x = torch.randn(4, 3, *[2] * dims) + torch.arange(3.0).view(3, *[1] * dims)
    dropped = ro.noise("centred-dropout", 0.999, dims=dims)(x)
    mean = x.mean([axis for axis in range(x.ndim) if axis != 1], keepdim=True)
    assert ((dropped - mean).abs() < 1e-5).float().mean() > 0.9
    layers = (ro.RotationOut, ro.RotationOut1d, ro.RotationOut2d, ro.RotationOut3d)
    assert type(ro.noise("rotation", 0.2, dims=dims)) is layers[dims]


def test_options_reach_the_layer() -> None:
    layer = ro.noise("rotation2d", 0.2, preset="authors", law="uniform_tan", block_size=3)
    assert (layer.draw.law, layer.draw.pairing_per, layer.block_size) == ("uniform_tan", "batch", 3)
    layer = ro.noise("uout", 0.2, center="running", num_features=7, momentum=0.5, dim=1)
    assert (layer.center, layer.running_mean.numel(), layer.momentum, layer.dim) == ("running", 7, 0.5, 1)
    layer = ro.noise("shake-shake", 0.1, per="batch", backward="even")
    assert (layer.p, layer.per, layer.backward_weights) == (0.1, "batch", "even")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ro.noise("dropuot", 0.2), ValueError, "there is no noise 'dropuot', did you mean 'dropout'"),
        (lambda: ro.noise("shake-shack", 0.2), ValueError, "did you mean 'shake-shake'"),
        (lambda: ro.noise("stochastic_dept", 0.2), ValueError, "did you mean 'droppath'"),
        (lambda: ro.noise("xyzzy", 0.2), ValueError, "no noise 'xyzzy'. The kinds are none, dropout"),
        (lambda: ro.noise(nn.Dropout, 0.2), TypeError, "name of a noise, got type <class 'torch.nn"),
        (lambda: ro.noise("dropout", 1.0), ValueError, "p is a drop probability"),
        (lambda: ro.noise("none", "0.5"), TypeError, "p must be a number"),
        (
            lambda: ro.noise("uout", 0.2, centre="batch"),
            TypeError,
            "'uout' has no option 'centre', did you mean 'center'",
        ),
        (lambda: ro.noise("spatial", 0.2, block_size=3), TypeError, "no option 'block_size'. It has dims"),
        (lambda: ro.noise("rotation2d", 0.2, dims=3), ValueError, "'rotation2d' is 'rotation' with dims=2, got dims=3"),
        (lambda: ro.noise("rotation", 0.2, block_size=3), ValueError, "needs axes after the feature axis"),
        (lambda: ro.noise("rotation", 0.2, dims=4), ValueError, "dims, .*, must be 0, 1, 2 or 3 here, got 4"),
        (lambda: ro.noise("none", 0.2, dims=4), ValueError, "must be 0, 1, 2 or 3 here, got 4"),
        (lambda: ro.noise("droppath", 0.2, dims=4), ValueError, "must be 0, 1, 2 or 3 here, got 4"),
        (lambda: ro.noise("cutout", 0.2, dims=3), ValueError, "must be 2 here, got 3"),
        (lambda: ro.noise("uout", 0.2, dim=1, dims=2), ValueError, "dim = 1 and dims = 2 both say where"),
        (lambda: ro.noise("uout", 0.2, center="mean"), ValueError, "center must be one of"),
        (lambda: ro.noise("dropout", 0.2, num_features=3), ValueError, "num_features needs Dropout about a mean"),
        (lambda: ro.noise("weight-drop", 0.2), TypeError, "noise 'weight-drop' needs the option module"),
        (
            lambda: ro.noise("dropblock", 0.2, block_size=4),
            ValueError,
            "odd integer for torchvision's DropBlock, got 4",
        ),
        (
            lambda: ro.noise("dropblock", 0.2, block_size=-1),
            ValueError,
            "block_size must be an integer, at least 1, got -1",
        ),
        (lambda: ro.noise("droppath", 0.2, dims=True), TypeError, "dims, .*, must be an integer, got bool"),
        (lambda: ro.noise("shake-shake", 0.5), ValueError, "at most 0.25"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_torchvision_is_imported_when_asked_for_and_named_where_it_is_absent() -> None:
    script = """
import sys
import rotationout as ro
assert "torchvision" not in sys.modules
sys.modules["torchvision"] = None  # importing it fails
for kind in ("dropblock", "droppath"):
    try:
        ro.noise(kind, 0.1)
    except ImportError as error:
        assert "pip install 'rotationout[vision]'" in str(error), error
    else:
        raise AssertionError(kind)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_modules_of_other_packages() -> None:
    assert is_noise(nn.AlphaDropout())
    assert not is_noise(nn.Identity())
    assert not is_noise(nn.Linear(2, 2))
    theirs = type("DropPath", (nn.Module,), {"__module__": "timm.layers.drop"})
    assert is_noise(theirs())
    assert is_noise(type("Ours", (theirs,), {})())
    assert not is_noise(type("DropPath", (nn.Module,), {"__module__": "elsewhere"})())


def test_the_table_says_what_p_means_for_every_kind() -> None:
    text = table()
    for name, kind in KINDS.items():
        assert f"{name}: {kind.summary}\n    strength: {kind.strength}\n    options: {next(iter(kind.options))}" in text
        assert kind.strength.startswith("exact") == kind.matched
    assert "options: dims=2, block_size=7\n" in text
    assert "options: module\n" in text, "what must be given has no default"
