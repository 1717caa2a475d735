"""Table 4 of the paper: a bidirectional LSTM with CTC on WSJ (`wsj`), and on AN4 (`an4`), which stands in for it.

The paper gives the network, Adam, 80 epochs and the rates of all noises except RotationOut's. That rate is chosen here
on ten speakers held out of AN4's training set (`strength_rows`); the test speakers are not used for it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..experiments.speech.recognition import SpeechConfig
from ..experiments.speech.text import WSJ_ALPHABET

__all__ = ["ROTATION_P", "TABLES", "an4", "rows", "strength_rows", "wsj"]

EPOCHS, DROP = 80, 40
"""The number of epochs, and the epoch after which the learning rate drops."""
ROTATION_P = 0.1
"""The p of RotationOut in both tables: that of the row of `strength_rows` with the least mean edit distance, as a test
finds from the records."""
SEARCHED = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
"""The strengths of RotationOut in `strength_rows`, as keep rates of the equally strong Dropout."""
SPEAKERS = 10
"""The number of speakers held out in `strength_rows`."""


def an4() -> SpeechConfig:
    """The base config of AN4, without noise: 948 training utterances, 29 whole batches per epoch."""
    return _base("an4", batches=29)


def wsj() -> SpeechConfig:
    """The base config of WSJ, without noise, for the data directories that Kaldi's own recipe makes; tested on eval92.

    Kaldi's train_si284 has 37,416 utterances, 1,169 batches per epoch.
    """
    return _base("wsj", batches=1169).replace(
        alphabet=WSJ_ALPHABET, train_split="train_si284", test_split="test_eval92"
    )


def _base(recipe: str, batches: int) -> SpeechConfig:
    return SpeechConfig(
        recipe=recipe,
        row="none",
        steps=EPOCHS * batches,
        milestones=(DROP * batches,),
        precision="fp16",
        lstm="stepped",
    )


def rows(base: SpeechConfig) -> list[SpeechConfig]:
    """The eight rows of the table, with the keep rates of the paper."""
    locked = base.replace(noise="locked")
    rotation = base.replace(noise="rotation-sequence", p=ROTATION_P)
    return [
        base,
        base.replace(row="dropout keep 0.9", noise="dropout", p=0.1),
        base.replace(row="weight drop keep 0.8", weight_drop=0.2),
        base.replace(row="variational weight drop keep 0.8", weight_drop=0.2, variational=True),
        locked.replace(row="locked keep 0.7", p=0.3),
        locked.replace(
            row="locked keep 0.8, variational weight drop keep 0.8", p=0.2, weight_drop=0.2, variational=True
        ),
        rotation.replace(row="rotation"),
        rotation.replace(row="rotation, variational weight drop keep 0.9", weight_drop=0.1, variational=True),
    ]


def strength_rows() -> list[SpeechConfig]:
    """RotationOut of several strengths, and no noise, tested on speakers held out of AN4's training set."""
    base = _base("an4_strength", batches=25).replace(held_out=SPEAKERS)
    return [
        base,
        *(
            base.replace(row=f"rotation keep {keep}", noise="rotation-sequence", p=round(1 - keep, 10))
            for keep in SEARCHED
        ),
    ]


TABLES: dict[str, Callable[[], list[SpeechConfig]]] = {
    "an4": lambda: rows(an4()),
    "an4_strength": strength_rows,
    "wsj": lambda: rows(wsj()),
}
"""Every table by its name: a function that returns the configs of its rows."""
