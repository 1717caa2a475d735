"""Which choices of RotationOut matter? One choice is changed at a time, on few handwritten digits.

    rotationout study forms

The data, the 200 training examples and the optimizer are those of `rotationout.experiments.digits`. There are two
networks. *vectors* is the one of that study: two hidden layers, `RotationOut` after each. *maps* has three 3×3
convolutions with 32, 64 and 64 channels and `RotationOut2d` before the second and the third. In each network the
default form of RotationOut is compared with forms that differ from it by one choice, with the presets, with no noise
and with Dropout and other noises; p = 0.5 unless the name of a form says otherwise. One form has the default choices,
but is before the ReLU instead of after it. Seed by seed all forms share the split, the initial weights and the order of
the examples.

The form whose zeros stay zero, and the place before the ReLU, were first tried with other seeds. The convolutional
network is one of three that were tried with other seeds, with no noise, Dropout, Dropout2d and the default form, for
one that is quick, fits every training example without noise and leaves room for Dropout to help.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..nn import CentredDropout, GaussianDropout, IsotropicNoise, RotationOut, RotationOut2d
from . import digits
from .jobs import in_order
from .records import paired_difference, readable, surroundings

__all__ = ["DEFAULT", "FORMS", "NETWORKS", "PLANE", "Form", "FormsStudy", "build", "run", "train"]

P = 0.5
WEAKER = digits.WEAKER[::-1]
"""Other strengths on maps; on vectors the study of digits has them."""
CHANNELS = 32
POOLED = 2
"""The side of what the maps are averaged to before the last layer."""
SEEDS = 40
FIRST_SEED = 1000  # the setting was chosen with seeds below 1000
DEFAULT = "default"
"""The form that all others are compared with."""
BEFORE = "before the ReLU"
"""The form that differs from the default only in its place."""
ORIGIN, ORIGIN_SYMMETRIC = "about the origin", "about the origin, symmetric angles"
"""On maps, why centring helps may be that one-sided angles do not average out over positions, which matters most about
the origin: symmetric ones do. Or it may be that noise about the mean is weaker: at smaller p that about the origin is
too. And each position may have a pairing of its own, so that no two turn alike."""
ISOTROPIC = "isotropic noise"
"""`IsotropicNoise`: beside RotationOut with a pairing for every row, it tells what pairing features does."""
PLANE = "gradient in the plane"
"""Less noise in the gradient of the same features; on maps it needs symmetric angles."""
CENTRED = "Dropout about the batch mean"
"""Beside "about the origin" or "about the batch mean", this tells what centring does from what rotating does."""

_LAWS: dict[str, dict[str, Any]] = {
    "tan θ uniform": {"law": "uniform_tan"},
    "θ uniform": {"law": "uniform_angle"},
    "θ Gaussian, truncated": {"law": "gaussian_angle"},
}
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "vectors": {
        DEFAULT: {},
        "permutation": {"pairing": "permutation"},
        "a pairing per batch": {"pairing_per": "batch"},
        "an angle per batch": {"angle_per": "batch"},
        **_LAWS,
        "one-sided angles": {"side": "one"},
        "about the batch mean": {"center": "batch"},
        "about a running mean": {"center": "running", "num_features": "features"},
        "the paper's preset": {"preset": "paper"},
        "the authors' preset": {"preset": "authors"},
        BEFORE: {},
        "zeros stay zero": {"keep_zeros": True},
        PLANE: {"gradient": "plane"},
        f"zeros stay zero, {PLANE}": {"keep_zeros": True, "gradient": "plane"},
    },
    "maps": {
        DEFAULT: {},
        "structured pairing": {"pairing": "structured"},
        "a pairing per batch": {"pairing_per": "batch"},
        "an angle per example": {"angle_per": "example"},
        **_LAWS,
        "symmetric angles": {"side": "symmetric"},
        "a pairing per position": {"pairing_per": "row"},
        ORIGIN: {"center": None},
        ORIGIN_SYMMETRIC: {"center": None, "side": "symmetric"},
        "about the origin, a pairing per position": {"center": None, "pairing_per": "row"},
        **{f"{ORIGIN}, p = {p:g}": {"center": None, "p": p} for p in WEAKER},
        "about a running mean": {"center": "running", "num_features": "features"},
        "the authors' preset": {"preset": "authors"},
        "inside blocks of 3": {"block_size": 3},
        BEFORE: {},
        "zeros stay zero": {"keep_zeros": True},
        f"symmetric angles, {PLANE}": {"side": "symmetric", "gradient": "plane"},
        **{f"p = {p:g}": {"p": p} for p in WEAKER},
    },
}
"""By network, the options of each form of RotationOut. ``num_features="features"`` is filled in for each place. On maps
the preset "paper" differs from the default only by its law, "θ uniform"."""
OTHERS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "vectors": {
        "no noise": nn.Identity,
        "Dropout": partial(nn.Dropout, P),
        "Gaussian Dropout": partial(GaussianDropout, P),
        CENTRED: partial(CentredDropout, P),
        ISOTROPIC: partial(IsotropicNoise, P),
    },
    "maps": {
        "no noise": nn.Identity,
        "Dropout": partial(nn.Dropout, P),
        "Gaussian Dropout": partial(GaussianDropout, P),
        CENTRED: partial(CentredDropout, P, dim=1),
        **{f"{CENTRED}, p = {p:g}": partial(CentredDropout, p, dim=1) for p in WEAKER},
        **{f"Dropout, p = {p:g}": partial(nn.Dropout, p) for p in WEAKER},
        ISOTROPIC: partial(IsotropicNoise, P, center="batch", dim=1),
        "Dropout2d": partial(nn.Dropout2d, P),
    },
}
"""By network, what RotationOut is compared with."""


@dataclass(frozen=True)
class Form:
    """All runs of a form in a network: by seed the fractions of test and training examples that are labelled right."""

    network: str
    form: str
    seeds: list[int]
    test_accuracy: list[float]
    train_accuracy: list[float]
    seconds: list[float]


@dataclass(frozen=True)
class FormsStudy:
    """All runs, with the settings they share."""

    settings: dict[str, Any]
    forms: list[Form]

    def find(self, network: str, form: str) -> Form:
        """The runs of one form."""
        (found,) = (one for one in self.forms if (one.network, one.form) == (network, form))
        return found

    def of(self, network: str) -> list[Form]:
        """All forms of a network, in the order in which they were run."""
        return [one for one in self.forms if one.network == network]

    def paired_difference(self, network: str, form: str, baseline: str = DEFAULT) -> tuple[float, float]:
        """Mean over seeds of the difference in test accuracy, and its standard error (NaN for one seed)."""
        found = (self.find(network, name) for name in (form, baseline))
        ours, theirs = (dict(zip(one.seeds, one.test_accuracy, strict=True)) for one in found)
        return paired_difference(ours, theirs)

    def save(self, path: Path) -> None:
        """Write the study as JSON, a line for each form."""
        lines = ",\n".join(f"  {json.dumps(asdict(one), ensure_ascii=False)}" for one in self.forms)
        path.write_text(
            f'{{\n "settings": {json.dumps(self.settings)},\n "forms": [\n{lines}\n ]\n}}\n', encoding="utf-8"
        )

    @classmethod
    def load(cls, path: Path) -> FormsStudy:
        """Read what `save` wrote."""
        with readable(path):
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(data["settings"], [Form(**one) for one in data["forms"]])


def build_maps(noise: Callable[[int], nn.Module], *, before: bool = False) -> nn.Sequential:
    """Three convolutions on 8×8 and 4×4 maps; the arguments are those of `digits.build_model`."""
    first, second = CHANNELS, 2 * CHANNELS
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, first, 3, padding=1),
        *digits.activated(noise(first), before),
        nn.Conv2d(first, second, 3, stride=2, padding=1),
        *digits.activated(noise(second), before),
        nn.Conv2d(second, second, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(POOLED),
        nn.Flatten(),
        nn.Linear(second * POOLED**2, 10),
    )


NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "vectors": digits.build_model,
    "maps": build_maps,
}
"""By name, what builds a network with a noise in its places."""


def noise_of(network: str, form: str) -> Callable[[int], nn.Module]:
    """What makes the noise of a form, given the number of features."""
    if form in OTHERS[network]:
        return lambda features: OTHERS[network][form]()
    layer: type[nn.Module] = {"vectors": RotationOut, "maps": RotationOut2d}[network]
    options = FORMS[network][form]

    def make(features: int) -> nn.Module:
        chosen = {name: features if value == "features" else value for name, value in options.items()}
        return layer(**{"p": P} | chosen)

    return make


def build(network: str, form: str) -> nn.Sequential:
    """A network with the noise of a form in its places."""
    return NETWORKS[network](noise_of(network, form), before=form == BEFORE)


def train(network: str, form: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one network; the fields of a `Form` that a run has a value of."""
    return timed(lambda: build(network, form), seed, epochs)


def timed(
    build: Callable[[], nn.Module], seed: int, epochs: int, *, train_examples: int | None = None
) -> dict[str, float]:
    """Train the network that ``build`` makes on digits; the fields of a `Form` that a run has a value of."""
    start = time.perf_counter()
    learned = digits.learn(digits.load_data(), build, seed, epochs, train_examples=train_examples)
    return {
        "test_accuracy": learned.test_curve[-1],
        "train_accuracy": learned.train_accuracy,
        "seconds": time.perf_counter() - start,
    }


def plan() -> Iterator[tuple[str, str]]:
    """Every network and form."""
    for network in NETWORKS:
        for form in (*OTHERS[network], *FORMS[network]):
            yield network, form


def run(seeds: int = SEEDS, epochs: int = digits.EPOCHS, jobs: int = 1) -> FormsStudy:
    """All runs, with a progress bar, so many at a time."""
    settings = {
        "p": P,
        "train_examples": digits.TRAIN_EXAMPLES,
        "test_examples": len(digits.load_data()[1]) - digits.TRAIN_EXAMPLES,
        "width": digits.WIDTH,
        "channels": CHANNELS,
    }
    return run_all(list(plan()), train, seeds, epochs, jobs, settings)


def run_all(
    rows: Sequence[tuple[str, str]],
    train: Callable[[str, str, int, int], Mapping[str, float]],
    seeds: int,
    epochs: int,
    jobs: int,
    settings: Mapping[str, Any],
) -> FormsStudy:
    """Train every row, a network and a form, with every seed.

    Args:
        rows: what to train.
        train: trains one network, given a row, a seed and the number of epochs; other processes import it.
        seeds: networks per row.
        epochs: passes over the data.
        jobs: runs at a time.
        settings: what the record says of the study besides.
    """
    chosen = range(FIRST_SEED, FIRST_SEED + seeds)
    runs = [(*row, seed, epochs) for row in rows for seed in chosen]
    found: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for (network, form, *_), result in zip(runs, in_order(train, runs, jobs), strict=True):
        found.setdefault((network, form), []).append(result)
    forms = [
        Form(network, form, list(chosen), *([round(one[name], 6) for one in each] for name in FIELDS))
        for (network, form), each in found.items()
    ]
    shared = {
        "batch": digits.BATCH,
        "learning_rate": digits.LEARNING_RATE,
        "epochs": epochs,
        "seeds": seeds,
        **surroundings(),
    }
    return FormsStudy({**settings, **shared}, forms)


FIELDS = ("test_accuracy", "train_accuracy", "seconds")
"""Those of a `Form` that a run has a value of, in its order."""
