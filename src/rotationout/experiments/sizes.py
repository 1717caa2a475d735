"""Does who is ahead on digits depend on the setting? Fewer and more examples, a narrower network, less noise.

    rotationout study sizes

The settings of `rotationout.experiments.digits` and `rotationout.experiments.forms` were chosen because Dropout helps
in them. Here nothing is chosen: every setting is run, and all are reported. The network has two hidden layers with a
noise after each. Seed by seed all noises share the split, the initial weights and the order of the examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from torch import nn

from ..nn import RotationOut
from . import digits, forms
from .forms import PLANE, FormsStudy

__all__ = ["NOISES", "SETTINGS", "run", "train"]

SETTINGS = {
    f"{examples} examples, width {width}": (examples, width)
    for examples, width in itertools.product((100, 200, 500, 1000), (64, 256))
}
"""Training examples and features of the hidden layers, by the name of the setting."""
RATES = (0.2, 0.5)
KINDS: dict[str, Callable[[float], nn.Module]] = {
    "Dropout": nn.Dropout,
    "RotationOut": RotationOut,
    "zeros stay zero": partial(RotationOut, keep_zeros=True),
    PLANE: partial(RotationOut, gradient="plane"),
}
NOISES: dict[str, Callable[[], nn.Module]] = {
    "no noise": nn.Identity,
    **{f"{kind}, p = {p:g}": partial(make, p) for p in RATES for kind, make in KINDS.items()},
}
"""What is compared in every setting."""
SEEDS = 40


def train(setting: str, noise: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one network; the values of its run, as in `rotationout.experiments.forms.train`."""
    examples, width = SETTINGS[setting]

    def build() -> nn.Sequential:
        return digits.build_model(lambda _: NOISES[noise](), width=width)

    return forms.timed(build, seed, epochs, train_examples=examples)


def plan() -> Iterator[tuple[str, str]]:
    """Every setting and noise."""
    yield from itertools.product(SETTINGS, NOISES)


def run(seeds: int = SEEDS, epochs: int = digits.EPOCHS, jobs: int = 1) -> FormsStudy:
    """All runs, with a progress bar, so many at a time; settings take the place of networks in the study."""
    return forms.run_all(list(plan()), train, seeds, epochs, jobs, {})
