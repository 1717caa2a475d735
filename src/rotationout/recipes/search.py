"""A search for the best form of RotationOut under stronger weight decay, and its comparison with the best Dropout.

The network is ResNet110 on CIFAR-100. A noise that helps with weak weight decay may help less, or not at all, with
enough of it. So forms that the paper does not have are tried at weight decay 5e-4, with half the schedule, on 5,000
held-out training images (`search_rows`). At first the strengths were p = 0.1 and 0.2, and all forms but one had 0.2.
The weaker came first, so p = 0.05 is tried too, and p = 0.1 in the form that came first at 0.2. The form that came
first on handwritten digits (`rotationout.experiments.forms`) is tried at both. The best Dropout and the best
RotationOut are then compared on the test set, with the whole schedule (`strong_rows`). All else is as in the authors'
protocol, see `rotationout.recipes.cifar100`, without a ramp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..experiments.classification import ClassificationConfig
from .cifar100 import SIGMAS, WEAK, resnet110

__all__ = ["BEST", "SEARCH", "STRONG", "TABLES", "search_rows", "strong_rows"]

SEARCH, STRONG = "cifar100_resnet110_search", "cifar100_resnet110_strong"
WEIGHT_DECAY = 5e-4
STEPS, MILESTONES = 32_000, (16_000, 24_000, 31_200)
"""Half of the schedule."""
FADE_OUT = 8_000
"""The number of steps at the end over which RotationOut fades out: those after the second drop of the learning rate."""
BEST = "dropout keep 0.9", "rotation sigma 0.333"
"""The rows of the search with the best Dropout and the best RotationOut; a test chooses them again from the records."""


def search_rows() -> list[ClassificationConfig]:
    """No noise, Dropout and RotationOut by strength, and forms of RotationOut that differ in one thing from these."""
    base = resnet110().replace(
        recipe=SEARCH,
        weight_decay=WEIGHT_DECAY,
        steps=STEPS,
        milestones=MILESTONES,
        held_out=5_000,
        studies=(),
    )

    def dropout(keep: float) -> ClassificationConfig:
        return base.replace(row=f"dropout keep {keep}", noise="dropout", p=round(1 - keep, 10))

    def rotation(form: str, keep: float = 0.8, **options: Any) -> ClassificationConfig:
        row = f"rotation sigma {SIGMAS[keep]}{form}"
        return base.replace(row=row, noise="rotation", p=round(1 - keep, 10), noise_options={"dims": 2, **options})

    return [
        base,
        dropout(WEAK),
        dropout(0.9),
        dropout(0.8),
        rotation("", WEAK),
        rotation("", 0.9),
        rotation(""),
        rotation(", P for the batch", 0.9, pairing_per="batch"),
        rotation(", P for the batch", pairing_per="batch"),
        rotation(", an angle for the example", angle_per="example"),
        rotation(", to either side", side="symmetric"),
        rotation(", uniform angles", law="uniform_angle"),
        rotation(", not centred", center=None),
        rotation(", blocks of 3", block_size=3),
        rotation(", zeros stay zero", 0.9, keep_zeros=True),
        rotation(", zeros stay zero", keep_zeros=True),
        rotation(", fading out").replace(fade_out=FADE_OUT),
        rotation(", dropout keep 0.9", 0.9).replace(dropout=0.1),
    ]


def strong_rows() -> list[ClassificationConfig]:
    """No noise and the `BEST` rows, with the whole schedule, on the test set."""
    whole = resnet110()
    changes = {"recipe": STRONG, "steps": whole.steps, "milestones": whole.milestones, "held_out": 0}
    found = {row.row: row for row in search_rows()}
    scale = whole.steps // STEPS
    return [
        found[name].replace(**changes, fade_out=scale * found[name].fade_out, studies=("coadaptation",))
        for name in ("none", *BEST)
    ]


TABLES: dict[str, Callable[[], list[ClassificationConfig]]] = {SEARCH: search_rows, STRONG: strong_rows}
"""Every table by its name: a function that returns the configs of its rows."""
